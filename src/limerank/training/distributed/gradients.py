"""The gradient of a whole batch from those of its shares: a sum, the same to the last bit on every rank.

Dense gradients travel in one tensor. Of a table that every rank has whole, only rows with a gradient travel, unless
they are so many that the table itself is less.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch import distributed as dist

from limerank.training.distributed.ranks import Ranks
from limerank.training.optimizer import touched_rows

WORTH_LISTING = 2  # with fewer rows of a table for each row that travels, the whole table does
NO_GRADIENT = -1


def sum_dense(parameters: list[nn.Parameter], told: Tensor) -> Tensor:
    """Replace gradients by their sums over ranks; `told`, some more numbers, is summed on the way and comes back.

    A parameter that no rank has a gradient of has none afterwards either.
    """
    has = told.new_tensor([parameter.grad is not None for parameter in parameters])
    pieces = [(torch.zeros_like(one) if one.grad is None else one.grad).flatten().to(told.dtype) for one in parameters]
    joined = torch.cat([told, has, *pieces])
    dist.all_reduce(joined)
    told, has, *sums = joined.split([len(told), len(has), *(one.numel() for one in parameters)])
    for parameter, any_has, summed in zip(parameters, has.tolist(), sums, strict=True):
        parameter.grad = summed.view_as(parameter).to(parameter.dtype) if any_has else None
    return told


def sum_tables(tables: list[nn.Parameter], ranks: Ranks, *, dense: bool) -> None:
    """The same for tables that every rank has whole; `dense`: for an optimizer that wants whole gradients."""
    found = [None if table.grad is None else touched_rows(table.grad) for table in tables]
    own = torch.tensor([NO_GRADIENT if one is None else len(one[0]) for one in found], dtype=torch.int64)
    counts = [torch.empty_like(own) for _ in range(ranks.size)]
    dist.all_gather(counts, own)
    for number, (table, rows) in enumerate(zip(tables, found, strict=True)):
        of_ranks = [int(one[number]) for one in counts]
        if max(of_ranks) == NO_GRADIENT:
            continue
        if rows is None:
            rows = torch.zeros(0, dtype=torch.int64, device=table.device), table.new_zeros(0, table.shape[1])
        lengths = [max(count, 0) for count in of_ranks]
        if dense or sum(lengths) * WORTH_LISTING >= table.shape[0]:
            whole = torch.zeros_like(table).index_add_(0, *rows)
            dist.all_reduce(whole)
            table.grad = whole
        else:
            table.grad = _listed(table, rows, lengths)


def _listed(table: nn.Parameter, rows: tuple[Tensor, Tensor], lengths: list[int]) -> Tensor:
    """The rows of all ranks, one rank after the other; a row may stand in it once for each."""
    every = [_gathered(one, lengths) for one in rows]
    return torch.sparse_coo_tensor(every[0][None], every[1], table.shape, check_invariants=False)


def _gathered(own: Tensor, lengths: list[int]) -> Tensor:
    padded = own.new_zeros(max(lengths), *own.shape[1:])
    padded[: own.shape[0]] = own
    everyone = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(everyone, padded)
    return torch.cat([one[:length] for one, length in zip(everyone, lengths, strict=True)])
