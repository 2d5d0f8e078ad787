"""`limerank bench train`: training steps as the trainer makes them, and what goes into them."""
