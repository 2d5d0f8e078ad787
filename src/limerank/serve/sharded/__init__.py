"""Item rows split over scorers that Ray keeps alive: one user stage here, rows and their scores there."""
