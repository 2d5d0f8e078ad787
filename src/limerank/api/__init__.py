"""What `import limerank as lr` offers, and what commands call: a dataset, a training, a run and its uses."""
