"""What a log is like: the properties by which the evaluation logs were fixed, measured of any dataset."""
