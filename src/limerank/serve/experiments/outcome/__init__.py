"""What came of an experiment, read from its log."""
