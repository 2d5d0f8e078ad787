"""Softmax attention with gradients over histories whose rows are held once: what training calls for long histories.

`attend_gathered` takes queries, normalized rows and the projections of keys and values, and walks the histories one
after the other (`walk`): no padding and no jagged copy of a history exists. With many queries per request each row is
projected once and heads are multiplied one by one (`by_head`); for few queries the projections move to the queries'
side (`absorbed`).
"""

from limerank.ops.gathered_attention.attend import attend_gathered, gathers

__all__ = ["attend_gathered", "gathers"]
