"""A logit of a LIME ranker as a sum: what each link, the item itself, the user side and the biases add.

The head's first layer is linear in the item row (docs/explanation/how-a-ranking-is-computed.md):

    z_c = sum_(h,i) w_(c,h,i) G_(h,i) + (s_c - b) + r + b

Behind it stand ReLUs. With J the slope of the logit at z_c (of the units that are on for this candidate),

    logit_c = sum_(h,i) w_(c,h,i) <G_(h,i), J>  +  <s_c - b, J>  +  <r, J>  +  biases
              link i, head h                       item             user       constant

and the sum is exact: between its kinks a ReLU network is linear. The terms of z_c hold for any head behind the first
layer; their prices J are those of this candidate and this request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from limerank.models import ItemState, UserState
from limerank.models.lime import LimeRanker


@dataclass(frozen=True)
class Contributions:
    """The terms of the logits of n candidates of one request; `total` adds them up again."""

    weights: Tensor
    """[n, H, links], the item rows: how much of each link a candidate takes"""
    links: Tensor
    """[n, tasks, H, links]"""
    item: Tensor
    """[n, tasks]"""
    user: Tensor
    """[n, tasks], user and context features in the head; what they do to the links is in `links`"""
    constant: Tensor
    """[n, tasks], every bias of the head"""

    @property
    def total(self) -> Tensor:
        """logits [n, tasks]."""
        return self.links.sum((2, 3)) + self.item + self.user + self.constant


@torch.no_grad()
def contributions(ranker: LimeRanker, user: UserState, items: ItemState) -> Contributions:
    """The terms of the logits of candidates of one request; `items` may come from stored rows."""
    (folded,), bias = ranker.fold(user), ranker.head.from_item.bias
    first = items.rows @ folded.matrix + items.head_part + folded.offset
    slopes, later_biases = _slopes(first, ranker.head.later_layers())
    weights = items.rows.unflatten(1, ranker.row_shape())
    prices = (slopes @ folded.matrix.T).unflatten(2, ranker.row_shape())
    return Contributions(
        weights=weights,
        links=weights[:, None] * prices,
        item=(slopes @ (items.head_part - bias)[:, :, None])[..., 0],
        user=slopes @ folded.offset,
        constant=slopes @ bias + later_biases,
    )


def _slopes(first: Tensor, layers: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """J [n, tasks, hidden] at the pre-activations z [n, hidden], and what the biases behind them add [n, tasks]."""
    before = [first]
    for weight, bias in layers[:-1]:
        before.append(before[-1].relu() @ weight.T + bias)
    # from the logits back to z: a unit passes on its slope where it is on
    weight, bias = layers[-1]
    slopes, constant = weight.expand(first.shape[0], -1, -1) * (before[-1] > 0)[:, None], bias
    for units, (weight, bias) in zip(before[-2::-1], layers[-2::-1], strict=True):
        constant = constant + slopes @ bias
        slopes = (slopes @ weight) * (units > 0)[:, None]
    return slopes, constant
