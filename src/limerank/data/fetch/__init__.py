"""Public logs from their owners' servers: download, check, unpack."""
