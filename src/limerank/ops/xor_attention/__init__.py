"""XOR attention: history rows read links, links read the history, nobody reads its own side.

`reference` is the specification, `chunked` the pure torch default, `triton` the GPU kernels; `xor_attention` chooses.
docs/explanation/xor-attention.md derives both passes.
"""

from limerank.ops.xor_attention.api import Activation, Backend, source_attention, xor_attention
from limerank.ops.xor_attention.backends import BackendReport, BackendReports, explain_backends, use_backend

__all__ = [
    "Activation",
    "Backend",
    "BackendReport",
    "BackendReports",
    "explain_backends",
    "source_attention",
    "use_backend",
    "xor_attention",
]
