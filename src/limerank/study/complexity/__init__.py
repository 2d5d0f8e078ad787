"""`limerank study complexity`: the paper's architecture table, its exponents beside counted and measured ones."""
