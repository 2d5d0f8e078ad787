"""How many directions attention has: singular values of attention matrices and of links (figure `svd_analysis`)."""
