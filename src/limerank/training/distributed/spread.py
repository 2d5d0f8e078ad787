"""A batch that is spread over ranks: sums over all of it, rows of all of it, with gradients that are exact.

If every rank's loss is its share of the batch's loss, then the gradient of the whole with respect to what one rank
contributed is the sum of what all ranks' gradients say of it. So the way back is a sum, too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from limerank.nn.peers import Peers
from limerank.training.distributed.ranks import Ranks


class Spread(Peers):
    """The ranks that share each batch. One whose share is `empty` takes part, and adds nothing."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.empty = False

    def total(self, tensor: Tensor) -> Tensor:
        """The sum over ranks."""
        summed: Tensor = _Total.apply(tensor * 0 if self.empty else tensor)  # type: ignore[no-untyped-call]
        return summed

    def rows(self, tensor: Tensor) -> Tensor:
        """One's own rows, then those of the others."""
        counts = torch.zeros(self.ranks.size, dtype=torch.int64)
        counts[self.ranks.rank] = tensor.shape[0]
        dist.all_reduce(counts)
        gathered: Tensor = _Rows.apply(tensor, counts.tolist(), self.ranks.rank)  # type: ignore[no-untyped-call]
        return gathered

    def agreed(self, tensor: Tensor) -> Tensor:
        """What the first rank drew."""
        agreed = tensor.contiguous()
        dist.broadcast(agreed, 0)
        return agreed


def set_peers(ranker: nn.Module, peers: Peers) -> None:
    """Let every module that computes over whole batches ask these."""
    for module in ranker.modules():
        if isinstance(getattr(module, "peers", None), Peers):
            module.peers = peers  # type: ignore[assignment]


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, tensor: Tensor) -> Tensor:
        summed = tensor.clone()
        dist.all_reduce(summed)
        return summed

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        summed = gradients[0].contiguous().clone()
        dist.all_reduce(summed)
        return summed


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, tensor: Tensor, counts: list[int], rank: int) -> Tensor:
        context.counts, context.rank = counts, rank
        padded = tensor.new_zeros(max(counts), *tensor.shape[1:])
        padded[: counts[rank]] = tensor
        everyone = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(everyone, padded)
        pieces = [one[:count] for one, count in zip(everyone, counts, strict=True)]
        return torch.cat([tensor, *pieces[:rank], *pieces[rank + 1 :]])

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        counts, rank = context.counts, context.rank
        own, *others = gradients[0].split([counts[rank], *counts[:rank], *counts[rank + 1 :]])
        summed = torch.cat([*others[:rank], own, *others[rank:]])  # in the order of ranks, the same for all
        dist.all_reduce(summed)
        mine: Tensor = summed.split(counts)[rank]
        return mine, None, None
