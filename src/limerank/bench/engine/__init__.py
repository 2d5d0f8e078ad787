"""How fast a ranking is: real bundles, real engines, contestants interleaved in one process."""
