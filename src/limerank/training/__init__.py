"""Training: one trainer, exact metrics, run folders."""
