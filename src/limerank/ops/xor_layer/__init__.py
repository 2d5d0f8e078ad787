"""A XOR layer for inference, fused into one pass over the history; `limerank.nn.xor` holds the module it equals."""

from limerank.ops.xor_layer.fused import fused_xor_layer, fused_xor_stack
from limerank.ops.xor_layer.weights import XorLayerWeights

__all__ = ["XorLayerWeights", "fused_xor_layer", "fused_xor_stack"]
