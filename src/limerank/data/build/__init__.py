"""From a raw log to a dataset, and new events into one: read, sort, split, fit, encode."""
