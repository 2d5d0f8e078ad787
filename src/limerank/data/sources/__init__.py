"""Where logs come from: a file per origin, or a folder whose door is `read.py`; each returns a `RawLog`."""
