"""Search for good options of rankers and of their training, by validation alone, with the same budget for each."""
