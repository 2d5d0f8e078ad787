"""What each choice in LIME is worth, and LIME beside linear attention: the two sections that the paper leaves empty."""
