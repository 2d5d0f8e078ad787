"""Embedding tables that TorchRec cuts over ranks: it plans, sends indices to where rows are, and rows back.

Each feature is a table of its own for TorchRec, so that its planner can place one by one. What a rank holds of all
features of an embedding is one parameter, which takes the place of the whole table: the same name, the same optimizer,
the same gradients by row. TorchRec's own kernels would change the numbers (docs/decisions/0026-training-on-many-
machines.md), so that the lookup on a rank is that of a training on one process.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from limerank.config import DistributedConfig
from limerank.errors import UnavailableError, UsageError, require_extra
from limerank.models import Ranker
from limerank.nn.features import FeatureEmbedding
from limerank.training.distributed.pieces import CutTable, CutTables, Piece, embeddings_of
from limerank.training.distributed.ranks import Ranks

HELP = "docs/how-to/train-on-many-machines.md says how to install it, with and without CUDA"
RESERVED = 0.1  # of each rank's memory, for all that is not a table
NOISY = ("torchrec", "torch.fx._symbolic_trace")
"""Loggers that warn of what is as it should be: kernels and topologies that were chosen, hints for developers."""
SHIFTS = (0, 22, 44)
"""Where in the 64 bits of a number the words begin that carry it; a whole number of 22 bits is one in float32, too."""


def cut_tables(ranker: Ranker, config: DistributedConfig, ranks: Ranks, device: torch.device) -> CutTables:
    """Leave every rank its rows of each table; lookups find the others. Every rank has the whole ranker before."""
    check_engine()
    from torchrec.distributed.comm_ops import set_gradient_division
    from torchrec.distributed.embedding import EmbeddingCollectionSharder
    from torchrec.distributed.types import ShardingEnv

    for name in NOISY:
        logging.getLogger(name).setLevel(logging.ERROR)
    set_gradient_division(False)  # shares of a loss add up; means of means would not be the gradient of the batch
    embeddings = embeddings_of(ranker)
    asked = {str(number): _collection(number, one) for number, (_, one) in enumerate(embeddings) if one.sizes}
    sharder, group = EmbeddingCollectionSharder(), ShardingEnv.from_process_group(dist.group.WORLD)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its planner's estimates, which are for GPUs
        plans = _plans(asked, config.sharding, sharder, ranks, device)
        sharded = {number: sharder.shard(one, plans[number], group, device) for number, one in asked.items()}
    tables: dict[str, CutTable] = {}
    zeros: list[Tensor] = []
    for number, module in sharded.items():
        name, embedding = embeddings[int(number)]
        names = [_feature(number, feature) for feature in range(len(embedding.sizes))]
        cut, starts = _cut(embedding, [plans[number][one].sharding_spec.shards for one in names], ranks.rank)
        embedding.table = nn.Parameter(cut.part(embedding.table.detach(), ranks.rank).clone())
        _look_up_in(embedding, module, dict(zip(names, starts, strict=True)))
        embedding.elsewhere = TorchRecLookup(module, names, embedding.table.dtype, zeros)
        tables[name] = cut
    numbers = {number: tables[name] for number, (name, _) in enumerate(embeddings) if name in tables}
    return CutTables(tables, numbers, zeros)


def check_engine() -> None:
    """Refuse, in one line, where TorchRec is missing or does not load."""
    require_extra("torchrec", "torchrec")
    try:
        import torchrec.distributed  # noqa: F401
    except (ImportError, OSError, AttributeError, RuntimeError) as broken:
        reason = str(broken).splitlines()[0] if str(broken) else type(broken).__name__
        raise UnavailableError(f"distributed.embeddings: torchrec does not load ({reason}); {HELP}") from None


class TorchRecLookup:
    """Rows by the indices of each feature, wherever they are: one exchange for all features of an embedding."""

    def __init__(self, sharded: Any, names: list[str], kind: torch.dtype, asked: list[Tensor]) -> None:
        """Every lookup that gradients come back to leaves a zero in `asked` (`CutTables`)."""
        self.sharded = sharded
        self.names = names
        self.kind = kind
        self.asked = asked

    def __call__(self, indices: Sequence[Tensor]) -> list[Tensor]:
        """The rows of each feature; all ranks ask at the same point, each for what it needs."""
        from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

        lengths = torch.tensor([len(one) for one in indices], device=indices[0].device)
        asked = KeyedJaggedTensor(keys=self.names, values=torch.cat([*indices]), lengths=lengths)
        found = self.sharded(asked).wait()
        rows = [_unpacked(found[name].values(), self.kind) for name in self.names]
        if torch.is_grad_enabled():
            self.asked.extend(one[:0].sum() for one in rows)
        return rows


class RowsHere(nn.Module):
    """The rows of an embedding that this rank holds, where TorchRec looks for them in place of its own kernel."""

    def __init__(self, embedding: FeatureEmbedding, starts: list[int]) -> None:
        super().__init__()
        self.find = embedding.rows  # a method, not a module: its parameters belong to the ranker alone
        self.starts = starts

    def forward(self, indices: Tensor, offsets: Tensor) -> Tensor:
        """Indices of each feature one after the other, numbered in this rank's piece of it."""
        each = (offsets.shape[0] - 1) // len(self.starts)
        lengths = offsets[:: max(each, 1)].diff()
        starts = torch.tensor(self.starts, device=indices.device)
        return _packed(self.find(indices + starts.repeat_interleave(lengths)))


def words_of(rows: Tensor) -> Tensor:
    """Float64 [n, w] as float32 [n, 3 w], from which `from_words` makes the same bits again.

    TorchRec moves float32 only, and on the way back it adds what it moves to zeros. Halves of the bits would not
    outlive that: where they look like a signaling NaN, a sum sets one of them, and the number is another by 1e-9.
    """
    bits = rows.contiguous().view(torch.int64)
    words = [(bits >> shift) & (2**22 - 1) for shift in SHIFTS]
    return torch.stack(words, -1).flatten(-2).to(torch.float32)


def from_words(words: Tensor) -> Tensor:
    """The inverse of `words_of`."""
    parts = words.to(torch.int64).unflatten(-1, (-1, len(SHIFTS))).unbind(-1)
    bits = torch.stack([part << shift for part, shift in zip(parts, SHIFTS, strict=True)]).sum(0)
    return bits.view(torch.float64)


class _Packed(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, rows: Tensor) -> Tensor:
        return words_of(rows)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        return from_words(gradients[0])


class _Unpacked(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, words: Tensor) -> Tensor:
        return from_words(words)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        return words_of(gradients[0])


def _packed(rows: Tensor) -> Tensor:
    """Rows as TorchRec moves them, and their gradients back."""
    packed: Tensor = _Packed.apply(rows) if rows.dtype == torch.float64 else rows  # type: ignore[no-untyped-call]
    return packed


def _unpacked(rows: Tensor, kind: torch.dtype) -> Tensor:
    unpacked: Tensor = _Unpacked.apply(rows) if kind == torch.float64 else rows  # type: ignore[no-untyped-call]
    return unpacked


def _collection(number: int, embedding: FeatureEmbedding) -> Any:
    from torchrec.modules.embedding_configs import EmbeddingConfig
    from torchrec.modules.embedding_modules import EmbeddingCollection

    width = embedding.table.shape[1] * (len(SHIFTS) if embedding.table.dtype == torch.float64 else 1)
    tables = [
        EmbeddingConfig(name=name, feature_names=[name], num_embeddings=size, embedding_dim=width)
        for feature, size in enumerate(embedding.sizes)
        if (name := _feature(str(number), feature))
    ]
    return EmbeddingCollection(tables=tables, device=torch.device("meta"))


def _feature(number: str, feature: int) -> str:
    return f"{number}_{feature}"


def _plans(
    collections: Mapping[str, Any], sharding: str, sharder: Any, ranks: Ranks, device: torch.device
) -> Mapping[str, Any]:
    """TorchRec's plan for each collection; rows are looked up by `RowsHere`, whatever kernel a plan names."""
    from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise, table_wise

    here = int(os.environ.get("LOCAL_WORLD_SIZE", ranks.size))
    if sharding == "auto":
        plans = _planned(collections, sharder, ranks, here, device)
    else:
        holder = _holders(collections, ranks.size)
        plans = {
            number: construct_module_sharding_plan(
                one,
                {
                    config.name: row_wise() if sharding == "row_wise" else table_wise(rank=holder[config.name])
                    for config in one.embedding_configs()
                },
                sharder,
                local_size=here,
                world_size=ranks.size,
                device_type=device.type,
            )
            for number, one in collections.items()
        }
    for plan in plans.values():
        for table in plan.values():
            table.compute_kernel = "dense"
    return plans


def _planned(
    collections: Mapping[str, Any], sharder: Any, ranks: Ranks, here: int, device: torch.device
) -> dict[str, Any]:
    """What TorchRec's planner finds best for all tables together."""
    from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
    from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
    from torchrec.distributed.planner.types import ParameterConstraints, PlannerError

    allowed = ParameterConstraints(sharding_types=["row_wise", "table_wise"])
    planner = EmbeddingShardingPlanner(
        topology=Topology(ranks.size, device.type, local_world_size=here),
        storage_reservation=FixedPercentageStorageReservation(RESERVED),
        constraints={config.name: allowed for one in collections.values() for config in one.embedding_configs()},
        debug=False,
    )
    try:
        plan = planner.collective_plan(nn.ModuleDict(dict(collections)), [sharder], dist.group.WORLD)
    except PlannerError as none:
        raise UsageError(
            f"distributed.sharding: TorchRec's planner finds no plan ({str(none).splitlines()[0]}); use row_wise"
        ) from None
    return dict(plan.plan)


def _holders(collections: Mapping[str, Any], size: int) -> dict[str, int]:
    """Which rank holds which feature: the largest first, each where least is so far."""
    tables = [config for one in collections.values() for config in one.embedding_configs()]
    held, holder = [0] * size, {}
    for config in sorted(tables, key=lambda one: -one.num_embeddings * one.embedding_dim):
        holder[config.name] = held.index(min(held))
        held[holder[config.name]] += config.num_embeddings * config.embedding_dim
    return holder


def _cut(embedding: FeatureEmbedding, shards: Sequence[Sequence[Any]], rank: int) -> tuple[CutTable, list[int]]:
    """The pieces of a plan, and where in this rank's part its piece of each feature begins."""
    pieces: list[Piece] = []
    starts, first, held = [], 0, 0
    for size, of_feature in zip(embedding.sizes, shards, strict=True):
        starts.append(held)
        for shard in of_feature:
            piece = Piece(shard.placement.rank(), first + shard.shard_offsets[0], shard.shard_sizes[0])
            held += piece.rows if piece.rank == rank else 0
            pieces.append(piece)
        first += size
    return CutTable(pieces, first), starts


def _look_up_in(embedding: FeatureEmbedding, sharded: Any, starts: Mapping[str, int]) -> None:
    """Let TorchRec look up rows in the embedding's own parameter, and give back the memory of its own."""
    for lookup in sharded._lookups:
        for module in lookup._emb_modules:
            names = [name for table in module.config.embedding_tables for name in table.feature_names]
            module._emb_module.weights.untyped_storage().resize_(0)
            module._emb_module = RowsHere(embedding, [starts[name] for name in names])
