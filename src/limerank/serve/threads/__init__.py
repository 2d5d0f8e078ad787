"""Threads that compute, where they are woken, and one for works that nobody waits for."""
