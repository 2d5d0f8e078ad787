"""Where logs come from, one file per origin; each returns a `RawLog`."""
