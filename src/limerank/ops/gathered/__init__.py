"""Histories whose rows are held once (`Gathered`), and what training computes over them when they are long.

`attend_gathered` is softmax attention, `weigh_pairs` the network of DIN. Both walk a batch request by request (`walk`):
no padding and no jagged copy of a history exists, and what a request needs stays in cache.
"""

from limerank.ops.gathered.attend import attend_gathered, gathers
from limerank.ops.gathered.rows import Gathered, distinct
from limerank.ops.gathered.weigh import PairNetwork, weigh_pairs, weighs

__all__ = ["Gathered", "PairNetwork", "attend_gathered", "distinct", "gathers", "weigh_pairs", "weighs"]
