"""Attention mathematics: tensors in, tensors out; no modules, no parameters, no features."""

from limerank.ops.xor_attention import explain_backends, source_attention, use_backend, xor_attention

__all__ = ["explain_backends", "source_attention", "use_backend", "xor_attention"]
