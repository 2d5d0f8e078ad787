"""Softmax pooling of one history by links, as a stream into a state that grows and merges: for serving, no gradients.

`LinkPool` pools a history into a `PoolState`, to which events are appended and which merges with others. `absorb_keys`,
`pool_absorbed` and `project_pooled` do it without projecting the history, as LIME-MHA's user stage does. Batches with
gradients are `limerank.ops.target_attention.attend_dense`, what training calls.
"""

from limerank.ops.link_pool.absorbed import HistoryProjection, absorb_keys, pool_absorbed, project_pooled, project_state
from limerank.ops.link_pool.pool import LinkPool
from limerank.ops.link_pool.state import PoolState, add_states, merge_states

__all__ = [
    "HistoryProjection",
    "LinkPool",
    "PoolState",
    "absorb_keys",
    "add_states",
    "merge_states",
    "pool_absorbed",
    "project_pooled",
    "project_state",
]
