"""The parts of the simulated log: configuration, tables of items and users, events, the evaluation logs."""
