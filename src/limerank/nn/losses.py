"""What training minimizes: the cross-entropy of several tasks, each on the rows whose label is known."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from limerank.nn.peers import NOBODY, Peers


def cross_entropy(logits: Tensor, labels: Tensor, weights: Tensor | None = None, peers: Peers = NOBODY) -> Tensor:
    """sum_k w_k L_k / sum_k w_k, with L_k the mean binary cross-entropy over the rows that have a label of task k.

    `logits` and `labels` are [rows, tasks], a label of NaN is missing; `weights` [tasks] are 1 by default. A task
    without any label in the batch has L_k = 0. Where no label is missing and all weights are equal this is the mean
    over all entries. Nothing here waits for a value: no branch depends on a tensor.

    With `peers`, means divide by the rows of all, so that this is a share: the shares add up to the loss of the batch.
    """
    missing = labels.isnan()
    # the label is replaced before the loss and the loss after it: a NaN in either would reach the gradient as 0 * NaN
    entries = functional.binary_cross_entropy_with_logits(logits, labels.masked_fill(missing, 0), reduction="none")
    known = peers.total(missing.logical_not().sum(0)).clamp(min=1)
    per_task = entries.masked_fill(missing, 0).sum(0) / known
    return per_task.mean() if weights is None else (per_task * weights).sum() / weights.sum()
