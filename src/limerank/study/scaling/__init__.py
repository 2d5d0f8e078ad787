"""What longer histories, more links and more layers are worth (paper, appendix "Scaling Law for LIME-XOR")."""
