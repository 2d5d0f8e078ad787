"""Events that happened since bundles were exported, by user, durable."""
