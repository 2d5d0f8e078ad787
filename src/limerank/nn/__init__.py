"""Parameters: feature embeddings, towers, links, projections, heads."""
