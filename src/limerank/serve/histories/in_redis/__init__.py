"""Histories in Redis or Valkey: what several servers on several machines write and read together."""
