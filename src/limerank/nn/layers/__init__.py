"""Layers with parameters: attention, sequence encoders, XOR layers."""
