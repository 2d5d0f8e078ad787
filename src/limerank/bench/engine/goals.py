"""What the project wants of the engine, judged by the rows of one run."""

from __future__ import annotations

from collections.abc import Sequence

from limerank.bench.engine.results import Append, EngineRow, Exported, OpenedIds
from limerank.bench.train.results import Goal

ABOUT_A_SECOND = 1.25
LARGE, INDUSTRIAL, SMALL = "large", "industrial", "small"
"""Groups of contestants that take turns: a large catalog; d = 256, H = 4, l = 32; and short histories of that size."""


def find(rows: Sequence[EngineRow], **wanted: object) -> EngineRow | None:
    """The row with these values, if it was measured."""
    return next((row for row in rows if row.is_for(**wanted)), None)


def at_least(name: str, least: float, slower: float, faster: float) -> Goal:
    """A goal of so many times faster."""
    times = slower / faster
    return Goal(name=name, goal=f"at least {least:g} times", measured=f"{times:.3g} times", reached=times >= least)


def at_most(name: str, most: float, value: float, base: float) -> Goal:
    """A goal of not more than so many times."""
    times = value / base
    return Goal(name=name, goal=f"at most {most:g} times", measured=f"{times:.3g} times", reached=times <= most)


def on(threads: int) -> str:
    """How many threads, in words."""
    return f"{threads} thread{'s' * (threads > 1)}"


def judge(
    rows: Sequence[EngineRow],
    read_ms: dict[str, float],
    appends: Sequence[Append],
    exports: Sequence[Exported],
    cores: int,
) -> list[Goal]:
    """All goals for which this run has the rows."""
    goals = [*_large(rows, read_ms, cores), *_industrial(rows), *_small(rows)]
    for one in appends:
        name = f"{one.model}: one event more, history {one.history:,}, of reading it anew"
        measured = f"1/{1 / one.fraction:,.0f}"
        goals.append(Goal(name=name, goal="below 1/1,000", measured=measured, reached=one.fraction < 1e-3))
    for rate in exports:
        name = f"export, {rate.model}, d {rate.width}, {on(rate.threads)}, against 17,000 items per second"
        goals.append(at_least(name, 3, rate.items_per_second, 17_000))
    return goals


def ids_goal(opened: OpenedIds) -> Goal:
    """About a second for ten million."""
    seconds = opened.open_seconds
    name = f"{opened.ids:,} ids hashed, mapped and proven to find their rows"
    return Goal(name=name, goal="about a second", measured=f"{seconds:.2f} s", reached=seconds < ABOUT_A_SECOND)


def _large(rows: Sequence[EngineRow], read_ms: dict[str, float], cores: int) -> list[Goal]:
    goals = []
    best = find(rows, group=LARGE, threads=cores, burner=False, forced=None)
    one = find(rows, group=LARGE, threads=1, burner=False, forced=None)
    if best is not None:
        reading = min(map(int, read_ms))
        name = (
            f"exact top 100 of {best.candidates:,} items, {on(cores)}, against reading their rows once, {on(reading)}"
        )
        goals.append(at_most(name, 4, best.interact_ms, read_ms[str(reading)]))
    for row in rows:
        if one is not None and row.is_for(group=LARGE, burner=True, forced=None):
            name = f"the same beside a busy process, {on(row.threads)}, against one thread without"
            goals.append(at_most(name, 1.5, row.total_ms, one.total_ms))
    return goals


def _industrial(rows: Sequence[EngineRow]) -> list[Goal]:
    goals = []
    quiet = [row for row in rows if row.group == INDUSTRIAL and not row.burner]
    for row in quiet:
        alike = {"model": row.model, "threads": row.threads, "user_state": row.user_state}
        fp32 = find(quiet, **alike, candidates=row.candidates, history=row.history, forced="fp32")
        if row.forced is not None:
            continue
        if fp32 is not None and row.path == "integer":
            name = f"{row.model}, {row.candidates:,} candidates, integer against fp32, {on(row.threads)}"
            goals.append(at_least(name, 3, fp32.interact_ms, row.interact_ms))
        short = find(quiet, **alike, candidates=row.candidates, history=16, forced=None)
        if short is not None and row.history > 16:
            name = f"{row.model}: interaction at history {row.history:,} against 16, {on(row.threads)}"
            goals.append(at_most(name, 1.1, row.interact_ms, short.interact_ms))
        few = find(quiet, **alike, candidates=16, history=row.history, forced=None)
        if few is not None and row.candidates == 32_768:
            name = (
                f"{row.model}: user stage at 32,768 candidates against 16, history {row.history:,}, {on(row.threads)}"
            )
            goals.append(at_most(name, 1.1, row.user_ms, few.user_ms))
        goals += _against_skyline(row, quiet)
    return goals


def _against_skyline(row: EngineRow, rows: Sequence[EngineRow]) -> list[Goal]:
    """How many times faster a LIME ranker answers than the skyline it stands for."""
    skyline, least = {"lime-mha": ("mha", 150.0), "lime-xor": ("hstu", 130.0)}.get(row.model, ("", 0.0))
    other = find(rows, model=skyline, candidates=row.candidates, history=row.history, threads=row.threads)
    if other is None or row.history < 16_384:
        return []
    shape = f"{row.history:,} events x {row.candidates:,} candidates, {on(row.threads)}"
    if row.user_state == "cached" and row.candidates == 1_024:
        return [at_least(f"{row.model}, cached state, against {skyline}, {shape}", 300, other.total_ms, row.total_ms)]
    if row.user_state == "computed" and row.candidates == 32_768:
        return [at_least(f"{row.model} against {skyline}, {shape}", least, other.total_ms, row.total_ms)]
    return []


def _small(rows: Sequence[EngineRow]) -> list[Goal]:
    goals = []
    for lime in (row for row in rows if row.is_for(group=SMALL, model="lime-mha")):
        mha = find(rows, group=SMALL, model="mha", threads=lime.threads)
        if mha is not None:
            name = f"lime-mha against mha, user stage, 100 events x 100 candidates, {on(lime.threads)}"
            goals.append(at_most(name, 1, lime.user_ms, mha.user_ms))
    return goals
