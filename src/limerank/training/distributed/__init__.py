"""One training on several processes, which `torchrun` starts: each learns from its share of every batch."""
