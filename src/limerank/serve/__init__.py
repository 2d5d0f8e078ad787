"""Serving: bundles, the offline item stage, and the engine with its timed stages."""
