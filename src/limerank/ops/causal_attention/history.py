"""Each event reads itself and the events before it, in groups of histories of similar length."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from limerank.ops.causal_attention.layout import Activation, feature_major, history_and_one, row_major, score_scale
from limerank.ops.causal_attention.relative import PairBias, attend_biased
from limerank.ops.groups import Groups, group_lists
from limerank.ops.silu_attention import silu_attention
from limerank.ops.target_attention import attend_nothing


def attend_history(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    offsets: Tensor,
    activation: Activation,
    scale: float | None = None,
    bias: PairBias | None = None,
) -> Tensor:
    """Causal attention of jagged rows: queries and keys [sum_n, H, a], values [sum_n, H, v] to [sum_n, H, v].

    `scale` multiplies <q, k>; None is 1 / sqrt(a). `bias` is added to the scaled scores.
    """
    if queries.shape[0] == 0:
        return attend_nothing(queries, keys, values)
    groups = group_lists(offsets)
    factor = score_scale(queries, scale)
    if bias is None and activation == "softmax":
        padded = zip(groups.pad(queries), groups.pad(keys), groups.pad(values), strict=True)
        return groups.unpad([_causal_softmax(*rows, factor) for rows in padded])
    padded = zip(groups.pad(queries * factor), groups.pad(keys), groups.pad(values), strict=True)
    if bias is None:
        attended = [_causal_silu(*rows) for rows in padded]
    else:
        times = _padded_times(bias, groups)
        attended = [attend_biased(*rows, bias, own, activation) for rows, own in zip(padded, times, strict=True)]
    out = groups.unpad(attended)
    if activation == "softmax":
        return out
    return out / history_and_one(offsets, out.shape[0], offsets, out.shape[0])


def _padded_times(bias: PairBias, groups: Groups) -> list[Tensor | None]:
    if bias.times is None:
        return [None] * max(1, len(groups.shapes))
    return [*groups.pad(bias.times)]


def _causal_softmax(queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """[B, n, H, w]; padding stands behind every real row, so the causal mask hides it."""
    attended = functional.scaled_dot_product_attention(
        queries.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), is_causal=True, scale=scale
    )
    return attended.transpose(1, 2)


def _causal_silu(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    out = silu_attention(feature_major(queries), feature_major(keys), feature_major(values), causal=True)
    return row_major(out, values.shape[2])
