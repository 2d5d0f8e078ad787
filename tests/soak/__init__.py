"""Long runs against the real service: `make soak`. `make test` collects nothing here; it runs short versions."""
