"""Attention mathematics: tensors in, tensors out; no modules, no parameters, no features."""
