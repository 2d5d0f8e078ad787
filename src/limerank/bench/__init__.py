"""How fast: operations, data, models, threads; ratios measured in one process."""
