"""What is measured: the paper's three sweeps, one size after the other, and the corner where all is long.

Candidates of a sweep are named, at every size: looking up 32,768 names takes longer than LIME's interaction does. Where
they are all items there are, nobody has to name them; that is the other way to ask, measured at the two largest sizes
and never mixed with the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from limerank.errors import UsageError
from limerank.models import RANKERS
from limerank.models.presets import budget_options

Sweep = Literal["candidates", "history", "qk", "catalog", "corner"]
MODELS = ("lime-mha", "lime-xor", "mha", "hstu")
AGAINST = {"lime-mha": "mha", "lime-xor": "hstu"}
"""The skyline that each LIME ranker stands for."""


WHOLE_CATALOG: tuple[Sweep, ...] = ("catalog", "corner")
"""Where a request ranks all items and names none."""


def doubling(first: int, last: int) -> tuple[int, ...]:
    """Powers of two, or any size doubled, as in the paper's table."""
    return tuple(first << step for step in range((last // first).bit_length()))


@dataclass(frozen=True)
class Point:
    """One size of one sweep."""

    sweep: Sweep
    candidates: int
    history: int
    qk: int
    """H * d_a, the width of queries and keys."""

    @property
    def whole_catalog(self) -> bool:
        """Whether the request asks for all items instead of naming its candidates."""
        return self.sweep in WHOLE_CATALOG

    def key(self, threads: int) -> str:
        """Its name in a file."""
        return f"{self.sweep}/{self.candidates}/{self.history}/{self.qk}/{threads}"


@dataclass(frozen=True)
class Plan:
    """The sizes of a study; the defaults are the paper's sweeps and its industrial ranker."""

    models: tuple[str, ...] = MODELS
    candidates: tuple[int, ...] = doubling(16, 32_768)
    histories: tuple[int, ...] = doubling(16, 16_384)
    qk_widths: tuple[int, ...] = doubling(16, 4_096)
    base_candidates: int = 1_024
    base_history: int = 1_024
    width: int = 256
    heads: int = 4
    links: int = 32
    head: int = 96
    threads: tuple[int, ...] = (1,)
    repeats: int = 7
    extras: bool = True
    """Also the whole catalog, the corner, rows without the head, and cached states."""

    def __post_init__(self) -> None:
        for width in (self.width, *self.qk_widths):
            if width % self.heads:
                said = f"a width of {width} cannot be split into {self.heads} heads"
                raise UsageError(f"{said}; choose another --width, --qk or --heads")

    @property
    def items(self) -> int:
        """Of the catalog: the most candidates are all of it."""
        return max(*self.candidates, self.base_candidates)

    @property
    def points(self) -> list[Point]:
        """All of them, those that share a width of queries and keys together."""
        return [*self.base_points(), *self.qk_points()]

    def base_points(self) -> Iterator[Point]:
        """Sweeps at the width of queries and keys that the rankers have."""
        yield from (Point("candidates", count, self.base_history, self.width) for count in self.candidates)
        yield from (Point("history", self.base_candidates, length, self.width) for length in self.histories)
        if self.extras:
            yield Point("catalog", self.items, self.base_history, self.width)
            yield Point("corner", self.items, max(self.histories), self.width)

    def qk_points(self) -> Iterator[Point]:
        """The sweep over that width."""
        yield from (Point("qk", self.base_candidates, self.base_history, width) for width in self.qk_widths)

    def history_lengths(self) -> list[int]:
        """Every length a user must have."""
        return sorted({*self.histories, self.base_history})

    def model_section(self, model: str, qk: int) -> dict[str, Any] | None:
        """A ranker of these sizes; None if it has no width of queries and keys to change."""
        known = RANKERS[model].options_type
        values = {"width": self.width, "heads": self.heads, "head": [self.head]}
        values |= dict.fromkeys(budget_options(known), self.links)
        if qk != self.width:
            if "query_width" not in known.model_fields:
                return None
            values["query_width"] = qk
        return {"name": model, **{name: value for name, value in values.items() if name in known.model_fields}}


def quick_plan(models: Sequence[str] = MODELS, threads: Sequence[int] = (1,)) -> Plan:
    """Seconds: shows that the study works."""
    return Plan(
        models=tuple(models),
        candidates=(16, 64, 256),
        histories=(16, 64, 256),
        qk_widths=(16, 32, 64),
        base_candidates=64,
        base_history=64,
        width=32,
        links=8,
        head=16,
        threads=tuple(threads),
        repeats=2,
    )
