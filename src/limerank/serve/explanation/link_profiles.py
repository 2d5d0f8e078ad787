"""What a link stands for, over the whole catalog: the items nearest to it and the attributes it attracts.

    nearest items    those with the largest weight w_(c,i), the mean over heads of their rows
    attributes       lift = fraction of a value in what the link attracts / fraction of that value in the catalog
                          = [sum_c w_(c,i) 1(c has the value) / sum_c w_(c,i)] / [items with the value / items]

Rows know no user, so neither does a profile. A SiLU weight may be negative; such an item is not attracted and counts 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from limerank.batch import Features, Jagged
from limerank.data.store.encoders import Encoder
from limerank.data.store.manifest import UNKNOWN_ROW
from limerank.errors import UsageError
from limerank.models import RANKERS
from limerank.models.lime import LimeRanker
from limerank.ops.candidate import RowStore, RunningTop
from limerank.ops.jagged import row_of
from limerank.schema import FIRST_KNOWN_INDEX, Kind
from limerank.serve.bundles.bundle import Bundle

BLOCK = 4096
LEAST_ITEMS, LEAST_FRACTION = 5, 0.001
FIRST_ITEM_ROW = UNKNOWN_ROW + 1


@dataclass(frozen=True)
class Attribute:
    """A value of an item feature, and how much more of it a link attracts than the catalog holds."""

    feature: str
    value: str
    lift: float
    fraction: float
    """Of the link's weight that lies on items with this value."""
    items: int
    """How many items of the catalog have it."""

    @property
    def told(self) -> float:
        """fraction * log(lift): large for a value that is both frequent in the link and rare elsewhere."""
        return self.fraction * math.log(self.lift)


@dataclass(frozen=True)
class LinkProfile:
    """One link, numbered as in an item row."""

    link: int
    level: str
    """`link`, or with two levels `coarse` or `fine`"""
    parent: int | None
    weight: float
    """Mean over items and heads: 1 / links for a link that attracts like any other."""
    items: list[tuple[str, float]]
    """Nearest items and their weights, nearest first."""
    attributes: list[Attribute]
    """Values with a lift above 1; first what tells the link most from the catalog, fraction * log(lift)."""

    @property
    def name(self) -> str:
        """The number, and on two levels what it is."""
        return {"link": f"{self.link}", "coarse": f"{self.link} (coarse)"}.get(
            self.level, f"{self.link} (fine, of {self.parent})"
        )


def lime_ranker(bundle: Bundle) -> LimeRanker:
    """The ranker of a bundle, which must be one whose candidates read links through cached weights."""
    if not isinstance(bundle.ranker, LimeRanker):
        known = ", ".join(name for name, ranker in RANKERS.items() if issubclass(ranker, LimeRanker))
        raise UsageError(
            f"bundle {bundle.manifest.id}: only LIME rankers ({known}) have links to explain a ranking by, "
            f"and this one is '{bundle.ranker.name}'"
        )
    return bundle.ranker


def link_profiles(bundle: Bundle, *, top: int = 5, minimum_items: int | None = None) -> list[LinkProfile]:
    """The profile of every link, with up to `top` items and attributes each.

    A value that fewer than `minimum_items` items have says little and is left out; by default five items, or a
    thousandth of the catalog if that is more.
    """
    ranker, catalog = lime_ranker(bundle), bundle.rows.behind(FIRST_ITEM_ROW)
    fewest = max(LEAST_ITEMS, int(LEAST_FRACTION * len(catalog))) if minimum_items is None else minimum_items
    if top < 1 or fewest < 1:
        raise UsageError(f"top and minimum_items must be at least 1, but are {top} and {fewest}")
    counters = [
        _ValueCounter(encoder, column, fewest, ranker.options.all_links)
        for encoder, column in _columns(bundle.encoders.item, bundle.item_table, bundle.manifest.items)
    ]
    nearest = [RunningTop(top) for _ in range(ranker.options.all_links)]
    attracted = torch.zeros(ranker.options.all_links, dtype=torch.float64)
    total = torch.zeros_like(attracted)
    for start, stop, weights in _link_weights(catalog, ranker):
        for link, scores in enumerate(weights.T.contiguous()):
            nearest[link].add(scores, scores.new_zeros(stop - start, 0))
        positive = weights.clamp(min=0).double()
        attracted += positive.sum(0)
        total += weights.double().sum(0)
        for counter in counters:
            counter.add(start, stop, positive)
    profiles = []
    for link in range(ranker.options.all_links):
        best = nearest[link].result() if len(catalog) else None
        names = [] if best is None else bundle.item_ids.names_of(best.positions.numpy() + FIRST_ITEM_ROW)
        attributes = [
            one for counter in counters for one in counter.attributes(link, attracted[link], len(catalog), top)
        ]
        attributes.sort(key=lambda one: -one.told)
        level, parent = level_of(ranker, link)
        profiles.append(
            LinkProfile(
                link=link,
                level=level,
                parent=parent,
                weight=float(total[link]) / max(len(catalog), 1),
                items=[] if best is None else list(zip(names, best.scores.tolist(), strict=True)),
                attributes=attributes[:top],
            )
        )
    return profiles


def level_of(ranker: LimeRanker, link: int) -> tuple[str, int | None]:
    """`link`, `coarse` or `fine`, and the parent of a fine link."""
    coarse = ranker.options.coarse_links
    if not coarse:
        return "link", None
    return ("coarse", None) if link < coarse else ("fine", (link - coarse) % coarse)


def _link_weights(catalog: RowStore, ranker: LimeRanker) -> Iterator[tuple[int, int, Tensor]]:
    """Start, stop and weights [b, links], averaged over heads, of each block of the catalog."""
    for start, stop, rows, _ in catalog.blocks(None, BLOCK):
        yield start, stop, rows[: stop - start].unflatten(1, ranker.row_shape()).mean(1)


def _columns(encoders: Sequence[Encoder], table: Features, items: int) -> Iterator[tuple[Encoder, Tensor | Jagged]]:
    """The encoder and the indices of every item feature that has values with a name; the unknown item left out."""
    lists = iter(table.lists)
    single = iter(table.indices.unbind(1))
    for encoder in encoders:
        if encoder.kind is Kind.MULTI_VALUED:
            jagged = next(lists)
            yield encoder, Jagged(jagged.values, jagged.offsets[FIRST_ITEM_ROW : items + 1])
        elif encoder.kind is not Kind.VECTOR:
            yield encoder, next(single)[FIRST_ITEM_ROW:items]


class _ValueCounter:
    """Weight of every link on every value of one feature, for the values that enough items have.

    Only those get a place in the sums: of a feature such as the item's id, none.
    """

    def __init__(self, encoder: Encoder, column: Tensor | Jagged, fewest: int, links: int) -> None:
        self.encoder = encoder
        self.column = column
        counts = torch.zeros(encoder.size, dtype=torch.int64)
        for start in range(0, self._items(), BLOCK):
            counts += self._pairs(start, min(start + BLOCK, self._items()))[1].bincount(minlength=encoder.size)
        counts[:FIRST_KNOWN_INDEX] = 0
        self.values = (counts >= fewest).nonzero()[:, 0]
        self.counts = counts[self.values]
        self.number_of_value = torch.full((encoder.size,), -1)
        self.number_of_value[self.values] = torch.arange(len(self.values))
        self.sums = torch.zeros(len(self.values), links, dtype=torch.float64)

    def add(self, start: int, stop: int, weights: Tensor) -> None:
        """The weights [b, links] of the items from `start` to `stop`."""
        if not len(self.values):
            return
        items, values = self._pairs(start, stop)
        numbers = self.number_of_value[values]
        kept = numbers >= 0
        self.sums.index_add_(0, numbers[kept], weights.index_select(0, items[kept]))

    def attributes(self, link: int, attracted: Tensor, items: int, top: int) -> Iterator[Attribute]:
        """The values of which a link attracts more than their part, up to `top`."""
        fractions = self.sums[:, link] / attracted.clamp(min=torch.finfo(torch.float64).tiny)
        lifts = fractions / (self.counts / items)
        told = torch.xlogy(fractions, lifts)
        for number in told.argsort(descending=True, stable=True)[:top].tolist():
            if not float(lifts[number]) > 1:
                return
            yield Attribute(
                feature=self.encoder.name,
                value=self.encoder.decode(int(self.values[number])),
                lift=float(lifts[number]),
                fraction=float(fractions[number]),
                items=int(self.counts[number]),
            )

    def _items(self) -> int:
        return len(self.column) if isinstance(self.column, Tensor) else len(self.column.offsets) - 1

    def _pairs(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Items (from 0 at `start`) and the values they have, each pair once."""
        if isinstance(self.column, Tensor):
            return torch.arange(stop - start), self.column[start:stop].long()
        offsets = self.column.offsets[start : stop + 1]
        values = self.column.values[int(offsets[0]) : int(offsets[-1])].long()
        pairs = (row_of(offsets - offsets[0], len(values)) * self.encoder.size + values).unique()
        return pairs // self.encoder.size, pairs % self.encoder.size
