"""Softmax pooling of a history by links: a batch op with gradients, and a mergeable state for serving.

`link_pool` is what training calls. `LinkPool` pools one history as a stream into a `PoolState`, to which events are
appended and which merges with others; `BlockedPool` also forgets. `absorb_keys`, `pool_absorbed` and `project_pooled`
do it without projecting the history.
"""

from limerank.ops.link_pool.absorbed import HistoryProjection, absorb_keys, pool_absorbed, project_pooled
from limerank.ops.link_pool.batch import link_pool
from limerank.ops.link_pool.blocks import BlockedPool
from limerank.ops.link_pool.pool import LinkPool
from limerank.ops.link_pool.state import PoolState, merge_states

__all__ = [
    "BlockedPool",
    "HistoryProjection",
    "LinkPool",
    "PoolState",
    "absorb_keys",
    "link_pool",
    "merge_states",
    "pool_absorbed",
    "project_pooled",
]
