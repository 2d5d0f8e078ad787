"""Which bundle answers whom, and what came of it."""
