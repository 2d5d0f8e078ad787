"""Opened datasets: flat columns on disk, pointers to histories, encoders."""
