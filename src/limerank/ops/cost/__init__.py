"""Counted work of the ops: for choosing a path and reading a benchmark.

What is counted, everywhere:

* FLOP are those of matrix products, two per multiply-add. Elementwise work (norms, activations, gates, additions,
  rescaling) is not counted, nor are zeros with which a kernel fills its tiles or joins narrow heads into one product,
  unless a function says so.
* Bytes are the least a path can move: what it reads is read once, what it writes is written once. Weights are not
  counted: they are shared by all users of a batch and stay near the cores between requests. Feature towers are not
  counted either; they depend on the features, not on the attention.

`history` are events (rows of the source), `links` l, `heads` H, `width` d = H * (width of one head), `hidden` the
interaction network's first layer. docs/explanation/xor-attention.md derives the formulas.
"""

from limerank.ops.cost.candidate import ScoringCost, rest_of_head_flops, scoring_cost
from limerank.ops.cost.count import Cost, Streamed
from limerank.ops.cost.link_pool import link_pool_cost
from limerank.ops.cost.xor_attention import pool_cost, spread_cost, xor_attention_cost
from limerank.ops.cost.xor_layer import Absorption, absorption, xor_layer_cost, xor_stack_cost

__all__ = [
    "Absorption",
    "Cost",
    "ScoringCost",
    "Streamed",
    "absorption",
    "link_pool_cost",
    "pool_cost",
    "rest_of_head_flops",
    "scoring_cost",
    "spread_cost",
    "xor_attention_cost",
    "xor_layer_cost",
    "xor_stack_cost",
]
