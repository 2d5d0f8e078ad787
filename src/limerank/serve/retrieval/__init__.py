"""Where candidates come from: the whole catalog, an index of its rows, popularity, or somebody else's service."""
