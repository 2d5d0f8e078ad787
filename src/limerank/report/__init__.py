"""Tables, plots and self-contained pages."""
