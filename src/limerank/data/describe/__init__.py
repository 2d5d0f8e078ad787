"""What is in a dataset, and checks of what usually goes wrong."""
