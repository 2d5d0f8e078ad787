"""What is known of a run: when and with what it was made, its curves, its page, and runs side by side."""
