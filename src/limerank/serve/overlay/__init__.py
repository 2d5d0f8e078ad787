"""The overlay: what changed in a store's catalog since its bundles were exported, durable and served at once."""
