"""Accuracy of several rankers on one dataset: the same start, the same search, several seeds (paper, table (b))."""
