"""What travels over HTTP: typed bodies of the service and its clients, for msgspec."""
