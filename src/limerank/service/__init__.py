"""The HTTP service: one host of engines behind FastAPI."""
