"""What follows from measured rows: ratios at the ends of sweeps, growth at the long end, and where LIME is slower."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Literal

import numpy as np

from limerank.study.latency.results import Growth, LatencyRow, Ratio, Slower
from limerank.study.latency.sweeps import AGAINST, Sweep
from limerank.study.paper_latency import paper_ratio

LONG_END = 4
"""Exponents are fitted to sizes from a quarter of the largest on: three sizes that double."""
SWEEPS: tuple[Sweep, ...] = ("candidates", "history", "qk", "catalog", "corner")
ALONG: dict[Literal["N", "M"], Sweep] = {"N": "history", "M": "candidates"}


def size_of(row: LatencyRow) -> int:
    """What the row's sweep varies; at the corner the history."""
    sizes = {"history": row.history, "qk": row.qk, "corner": row.history}
    return sizes.get(row.sweep, row.candidates)


def chosen(rows: Iterable[LatencyRow], **wanted: object) -> list[LatencyRow]:
    """The rows that have these values."""
    return [row for row in rows if all(getattr(row, name) == value for name, value in wanted.items())]


def thread_counts(rows: Iterable[LatencyRow]) -> list[int]:
    """The numbers of threads that were measured, ascending."""
    return sorted({row.threads for row in rows})


def ratios(rows: Sequence[LatencyRow]) -> list[Ratio]:
    """Skyline / LIME at the right end of each sweep and at the corner, both states where they were measured."""
    found = []
    for sweep, head, threads in product(SWEEPS, (True, False), thread_counts(rows)):
        own = chosen(rows, sweep=sweep, head=head, threads=threads)
        for lime_name, skyline_name in AGAINST.items():
            pair = [row for row in own if row.model in (lime_name, skyline_name)]
            end = max(map(size_of, pair), default=0)
            at_end = [row for row in pair if size_of(row) == end]
            limes, skylines = (chosen(at_end, model=name) for name in (lime_name, skyline_name))
            found += [_ratio(lime, sky) for lime, sky in product(limes, skylines) if _comparable(lime, sky)]
    return found


def _comparable(lime: LatencyRow, skyline: LatencyRow) -> bool:
    """A skyline's cached state is held against a cached state only."""
    return skyline.user_state == "computed" or lime.user_state == skyline.user_state


def _ratio(lime: LatencyRow, skyline: LatencyRow) -> Ratio:
    return Ratio(
        **lime.model_dump(include={"sweep", "candidates", "history", "qk", "head", "threads"}),
        lime=lime.model,
        skyline=skyline.model,
        lime_state=lime.user_state,
        skyline_state=skyline.user_state,
        lime_ms=lime.total_ms,
        skyline_ms=skyline.total_ms,
        ratio=skyline.total_ms / lime.total_ms,
        stages_ratio=(skyline.user_ms + skyline.interact_ms) / (lime.user_ms + lime.interact_ms),
        paper=paper_ratio(
            "candidates" if lime.sweep == "catalog" else lime.sweep, size_of(lime), skyline.model, lime.model
        ),
    )


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The slope of log value against log size, by least squares."""
    slope, _ = np.polyfit(np.log(np.asarray(sizes, float)), np.log(np.asarray(values, float)), 1)
    return float(slope)


def growth(rows: Sequence[LatencyRow]) -> list[Growth]:
    """Exponents of every ranker in N and M, with the head, states computed, at the long end of each sweep."""
    found = []
    models = list(dict.fromkeys(row.model for row in rows))
    for (along, sweep), threads, model in product(ALONG.items(), thread_counts(rows), models):
        own = chosen(rows, sweep=sweep, head=True, threads=threads, model=model, user_state="computed")
        own = [row for row in own if LONG_END * size_of(row) >= max(map(size_of, own))]
        if len({size_of(row) for row in own}) < 2:
            continue
        own.sort(key=size_of)
        sizes = [size_of(row) for row in own]
        measured: dict[Literal["user", "interact", "total"], list[float]] = {
            "user": [row.user_ms for row in own],
            "interact": [row.interact_ms for row in own],
            "total": [row.total_ms for row in own],
        }
        found += [
            Growth(
                model=model,
                along=along,
                what=what,
                threads=threads,
                first=min(sizes),
                last=max(sizes),
                exponent=exponent(sizes, values),
                last_step=exponent(sizes[-2:], values[-2:]),
            )
            for what, values in measured.items()
        ]
    return found


def slower(rows: Sequence[LatencyRow]) -> list[Slower]:
    """The sizes at which LIME takes longer than its skyline, with the head and without, states computed."""
    found = []
    served = sorted(chosen(rows, user_state="computed"), key=lambda row: not row.head)
    for lime in served:
        for skyline in served:
            same = all(
                getattr(lime, name) == getattr(skyline, name)
                for name in ("sweep", "candidates", "history", "qk", "head", "threads")
            )
            if same and AGAINST.get(lime.model) == skyline.model and lime.total_ms > skyline.total_ms:
                found.append(
                    Slower(
                        **lime.model_dump(include={"sweep", "candidates", "history", "qk", "head", "threads"}),
                        lime=lime.model,
                        skyline=skyline.model,
                        lime_ms=lime.total_ms,
                        skyline_ms=skyline.total_ms,
                    )
                )
    return found
