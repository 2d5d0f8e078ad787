"""Attention along a history, and of candidates appended to it (the target-aware mask of HSTU).

    history row i   reads rows 0..i of its history
    a candidate     reads the whole history and itself, never another candidate

So history rows never see a candidate: their keys and values are computed once per request, and candidates come in any
number, in any blocks, over those. With SiLU both are divided by N + 1, the length of the history with one candidate:
a number that depends on nothing but the request's own history. Softmax normalizes by itself.
"""

from limerank.ops.causal_attention.appended import attend_appended
from limerank.ops.causal_attention.history import attend_history
from limerank.ops.causal_attention.layout import Activation
from limerank.ops.causal_attention.relative import TIME_BUCKETS, PairBias, time_buckets

__all__ = ["TIME_BUCKETS", "Activation", "PairBias", "attend_appended", "attend_history", "time_buckets"]
