"""Item rows computed by a Ray cluster: joining one, what travels, what a worker process does."""
