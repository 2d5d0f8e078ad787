"""From encoded features to vectors: embedding tables and the towers on top of them.

Paper, "Model Overview": embed every attribute, concatenate, project through an MLP to E_j. The MLP's first layer is
kept in parts (item attributes, event attributes), so that the item part is computed once per distinct item.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from limerank.batch import Features, History
from limerank.ops.gathered import Gathered, distinct
from limerank.ops.jagged import segment_mean
from limerank.schema import UNKNOWN_INDEX, EncodedFeature, Kind

EVENTS_PER_WAY = 16  # fewer do not earn the calls it takes to list the ways
MARKS_PER_EVENT = 4  # more items times ways than this per event are not worth looking through for those that occur
EVENTS_PER_PAIR = 1.3  # fewer do not earn the gather at the end
ROWS_PER_NUMBER = (
    4  # in a table with fewer rows for each number looked up, a whole gradient costs less than a sparse one
)
EMBEDDING_STD = 0.5  # wide enough for attention to tell items apart from the first step
MANY_VALUES = 1000
"""A feature with more values than this is an id: most of its values are seen too rarely to unlearn how they started."""


Lookup = Callable[[Sequence[Tensor]], Sequence[Tensor]]
"""From the indices of each feature to their rows."""


class FeatureEmbedding(nn.Module):
    """All features of one role in one table; each row of the result is their embeddings side by side.

    In training every index becomes 'unknown' with probability `unknown_rate`, so that what has never been seen has an
    embedding that was trained. Multi-valued features are averaged; an empty list is zero. Vectors are
    projected linearly to the same width; a missing one is zero.

    Ids start with deviation `id_start` where attributes can tell as much apart, everything else with 0.5: attributes
    say what is alike before anything is learned, ids what they were taught (docs/decisions/0025-ids-start-small.md).

    With `sparse_gradients` the table's gradient lists the rows that were used, if they are fewer than the table has.
    Where a training cuts tables over processes, `table` holds the rows of this one, and `elsewhere` finds them all.
    """

    def __init__(
        self,
        features: tuple[EncodedFeature, ...],
        width: int,
        unknown_rate: float,
        id_start: float = EMBEDDING_STD,
    ) -> None:
        super().__init__()
        self.lists = [feature for feature in features if feature.kind is Kind.MULTI_VALUED]
        vectors = [feature for feature in features if feature.kind is Kind.VECTOR]
        self.single = [feature for feature in features if feature not in self.lists and feature not in vectors]
        self.projections = nn.ModuleList(nn.Linear(feature.size, width, bias=False) for feature in vectors)
        self.unknown_rate = unknown_rate
        self.sparse_gradients = False
        self.elsewhere: Lookup | None = None
        self.output_width = width * len(features)
        sizes = torch.tensor([0] + [feature.size for feature in self.single + self.lists])
        first_rows = sizes.cumsum(0)
        self.first_row: Tensor
        self.register_buffer("first_row", first_rows[: len(self.single)], persistent=False)
        self.list_first_row = first_rows[len(self.single) : -1].tolist()
        self.table = nn.Parameter(torch.empty(int(first_rows[-1]), width))
        nn.init.normal_(self.table, std=EMBEDDING_STD)
        ways = _ways_to_differ(features)
        with torch.no_grad():
            for feature, first in zip(self.single + self.lists, first_rows.tolist(), strict=False):
                if MANY_VALUES < feature.size <= ways:
                    self.table[first : first + feature.size] *= id_start / EMBEDDING_STD
            self.table[first_rows[:-1] + UNKNOWN_INDEX] = 0.0

    def forward(self, features: Features) -> Tensor:
        given = (features.indices.shape[1], len(features.lists), len(features.vectors))
        expected = (len(self.single), len(self.lists), len(self.projections))
        if given != expected:
            raise ValueError(
                f"features have {given[0]} columns, {given[1]} lists and {given[2]} vectors, "
                f"this embedding has {expected[0]}, {expected[1]} and {expected[2]}"
            )
        if self.elsewhere is not None:
            return self._joined(features, self.elsewhere)
        rows = self._forget(features.indices) + self.first_row
        # index_select: its gradient is up to several times faster on a CPU than that of `embedding` or `embedding_bag`
        parts = (
            [self.rows(rows.flatten()).view(rows.shape[0], rows.shape[1] * self.table.shape[1])] if self.single else []
        )
        for jagged, first in zip(features.lists, self.list_first_row, strict=True):
            parts.append(segment_mean(self.rows(self._forget(jagged.values) + first), jagged.offsets))
        parts += [project(m) for project, m in zip(self.projections, features.vectors, strict=True)]
        return torch.cat(parts, dim=1) if parts else self.table.new_zeros(len(features), 0)

    def _joined(self, features: Features, elsewhere: Lookup) -> Tensor:
        """The same with rows that other processes hold, all asked for at once."""
        columns = self._forget(features.indices).unbind(1)
        found = elsewhere([*columns, *(self._forget(jagged.values) for jagged in features.lists)])
        parts = [*found[: len(columns)]]
        for jagged, values in zip(features.lists, found[len(columns) :], strict=True):
            parts.append(segment_mean(values, jagged.offsets))
        parts += [project(m) for project, m in zip(self.projections, features.vectors, strict=True)]
        return torch.cat(parts, dim=1)

    @property
    def sizes(self) -> list[int]:
        """How many rows each feature has in the whole table, one feature after the other."""
        return [feature.size for feature in self.single + self.lists]

    def rows(self, numbers: Tensor) -> Tensor:
        """Rows of the table, by their numbers in it."""
        few = self.sparse_gradients and self.training and not torch.compiler.is_compiling()
        if few and ROWS_PER_NUMBER * numbers.shape[0] < self.table.shape[0]:
            return functional.embedding(numbers, self.table, sparse=True)
        return self.table.index_select(0, numbers)

    def _forget(self, indices: Tensor) -> Tensor:
        if not self.training or not self.unknown_rate:
            return indices
        forgotten = torch.rand(indices.shape, device=indices.device) < self.unknown_rate
        return indices.masked_fill(forgotten, UNKNOWN_INDEX)


def _ways_to_differ(features: tuple[EncodedFeature, ...]) -> float:
    """How much attributes tell apart: the combinations of their values, ids left out; of a list two values count."""
    if any(feature.kind is Kind.VECTOR for feature in features):
        return math.inf
    attributes = [feature for feature in features if feature.size <= MANY_VALUES]
    return math.prod(feature.size ** (2 if feature.kind is Kind.MULTI_VALUED else 1) for feature in attributes)


class ItemTower(nn.Module):
    """Item attributes to T (candidates), item and event attributes to E (history), through one shared MLP.

    With `shortcut`, a second matrix leads around the ReLU, so that attributes reach E and T linearly from the first
    step on (docs/decisions/0014-tower-shortcut.md).
    """

    def __init__(
        self,
        item: tuple[EncodedFeature, ...],
        event: tuple[EncodedFeature, ...],
        *,
        embedding_width: int,
        hidden: int,
        width: int,
        unknown_rate: float,
        id_start: float,
        shortcut: bool,
    ) -> None:
        super().__init__()
        self.item_embedding = FeatureEmbedding(item, embedding_width, unknown_rate, id_start)
        self.event_embedding = FeatureEmbedding(event, embedding_width, 0.0) if event else None
        self.event_sizes = [feature.size for feature in event]
        self.from_item = nn.Linear(self.item_embedding.output_width, hidden)
        event_width = self.event_embedding.output_width if self.event_embedding else 0
        self.from_event = nn.Linear(event_width, hidden, bias=False) if event_width else None
        self.to_output = nn.Linear(hidden, width)
        self.shortcut = nn.Linear(hidden, width, bias=False) if shortcut else None

    def candidates(self, items: Features) -> Tensor:
        """T [n, d]: never sees an event."""
        return self._output(self.from_item(self.item_embedding(items)))

    def history(self, history: History) -> Tensor:
        """E [sum_n, d], jagged like the history."""
        return self.distinct_history(history).all()

    def distinct_history(self, history: History) -> Gathered:
        """E, with what happened repeatedly with the same item held once where that is less work.

        Popular items occur in many histories of a batch, and few things can happen with an item. Where there are far
        fewer pairs of item and way than events, the tower runs once per pair.
        """
        of_items, item = self.from_item(self.item_embedding(history.items)), history.item_of_event
        if self.event_embedding is None or self.from_event is None:
            if self._repeats(item, of_items.shape[0]):
                return Gathered(self._output(of_items), item)
            return Gathered(self._output(of_items.index_select(0, item)))
        ways = math.prod(self.event_sizes)
        if torch.compiler.is_compiling() or ways * EVENTS_PER_WAY > item.shape[0]:
            of_events = self.from_event(self.event_embedding(history.events))
            return Gathered(self._output(of_items.index_select(0, item) + of_events))
        of_ways = self.from_event(self.event_embedding(Features(self._ways(item.device))))
        way, index = self._way_of(history.events.indices), None
        possible = of_items.shape[0] * ways
        if self._repeats(item, max(of_items.shape[0], possible / MARKS_PER_EVENT)):  # as many pairs as items, at least
            pairs, pair_of_event = distinct(item * ways + way, possible)
            if self._repeats(item, pairs.shape[0]):
                item, way, index = pairs.div(ways, rounding_mode="floor"), pairs.remainder(ways), pair_of_event
        return Gathered(self._output(of_items.index_select(0, item).add_(of_ways.index_select(0, way))), index)

    def _output(self, hidden: Tensor) -> Tensor:
        output: Tensor = self.to_output(functional.relu(hidden))
        return output if self.shortcut is None else output.addmm(hidden, self.shortcut.weight.t())

    def _ways(self, device: torch.device) -> Tensor:
        """All that can happen with an item [ways, event features], in the order of their numbers."""
        sizes = [torch.arange(size, device=device) for size in self.event_sizes]
        return torch.cartesian_prod(*sizes).view(-1, len(sizes))

    def _way_of(self, indices: Tensor) -> Tensor:
        """The number of the way of each event."""
        way = indices[:, 0]
        for column, size in enumerate(self.event_sizes[1:], 1):
            way = way * size + indices[:, column]
        return way

    @staticmethod
    def _repeats(index: Tensor, rows: float) -> bool:
        """Whether events are so many more than rows that a gather at the end pays.

        Only on a CPU may the number of rows depend on values; elsewhere they would have to be waited for.
        """
        eager = index.device.type == "cpu" and not torch.compiler.is_compiling()
        return eager and EVENTS_PER_PAIR * rows <= index.shape[0]

    def item_parameters(self) -> list[nn.Parameter]:
        """The parameters T depends on."""
        return [
            *self.item_embedding.parameters(),
            *self.from_item.parameters(),
            *self.to_output.parameters(),
            *([] if self.shortcut is None else self.shortcut.parameters()),
        ]


class ContextTower(nn.Module):
    """User and context features to the vector E^C [B, width], which conditions the links and enters the head."""

    def __init__(
        self,
        user: tuple[EncodedFeature, ...],
        context: tuple[EncodedFeature, ...],
        *,
        embedding_width: int,
        unknown_rate: float,
        id_start: float,
    ) -> None:
        super().__init__()
        self.user_embedding = FeatureEmbedding(user, embedding_width, unknown_rate, id_start) if user else None
        self.context_embedding = FeatureEmbedding(context, embedding_width, unknown_rate, id_start) if context else None
        self.output_width = max(1, embedding_width * (len(user) + len(context)))

    def forward(self, users: Features, context: Features) -> Tensor:
        parts = []
        if self.user_embedding is not None:
            parts.append(self.user_embedding(users))
        if self.context_embedding is not None:
            parts.append(self.context_embedding(context))
        return torch.cat(parts, dim=1) if parts else users.indices.new_ones(len(users), 1).float()
