"""How good a ranker is: on any part of any dataset that it can read, by segment, against another."""
