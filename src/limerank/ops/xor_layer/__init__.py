"""A XOR layer in one pass over the history, for inference and training; equal to the module `nn.layers.xor`."""

from limerank.ops.xor_layer.fused import fused_xor_layer, fused_xor_stack, read_sources
from limerank.ops.xor_layer.training import source_pass, streams
from limerank.ops.xor_layer.weights import XorLayerWeights

__all__ = ["XorLayerWeights", "fused_xor_layer", "fused_xor_stack", "read_sources", "source_pass", "streams"]
