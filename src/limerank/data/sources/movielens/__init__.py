"""MovieLens, in the layouts of its releases."""
