"""One step of training: where it runs, what it minimizes, how it is stopped."""
