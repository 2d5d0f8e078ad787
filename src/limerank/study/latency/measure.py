"""One size: all contestants take turns, and the medians become rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TypeVar

from limerank.bench.engine.made_up_store import user_with
from limerank.bench.train.results import Spread
from limerank.study.latency.floors import Shape, Work, counted_work, interact_work, user_work
from limerank.study.latency.results import LatencyRow, MachinePeaks
from limerank.study.latency.served import Contestant, Timed, some_names
from limerank.study.latency.sweeps import Plan, Point

FAST_MS, FAST_ROUNDS = 20.0, 5
"""What takes less is measured in so many times more rounds."""
SLOW_MS = 2_000.0
"""What takes longer needs no round to warm up: the first one counts."""
BUDGET_MS = 8_000.0
"""A contestant that has used so much at one size takes no more rounds."""
LEAST_ROUNDS = 2
CLEARLY = 1.3
"""A way to serve that takes so many times longer than the ranker's other one in the first round is given up."""
T = TypeVar("T")


@dataclass
class Turns:
    """The answers of one contestant at one size."""

    contestant: Contestant
    take: Callable[[], Timed]
    first: Timed
    answers: list[Timed] = field(default_factory=list)

    def more(self, repeats: int) -> bool:
        """Whether it takes another round."""
        latest = self.answers[-1] if self.answers else self.first  # the first one may have filled tables
        wanted = repeats * (FAST_ROUNDS if latest.total_ms < FAST_MS else 1)
        spent = sum(answer.total_ms for answer in self.answers)
        return len(self.answers) < (wanted if spent < BUDGET_MS else min(LEAST_ROUNDS, wanted))

    @property
    def total_ms(self) -> float:
        """The median."""
        return median(answer.total_ms for answer in self.answers)


def take_turns(
    group: Sequence[tuple[Contestant, Callable[[], Timed]]], repeats: int
) -> dict[str, tuple[Contestant, list[Timed]]]:
    """Answers by ranker, each served in its better way; every round asks each contestant once."""
    turns = [Turns(contestant, take, _first(take)) for contestant, take in group]
    for one in turns:
        if one.first.total_ms > SLOW_MS:
            one.answers.append(one.first)
    turns = [one for one in turns if not _given_up(one, turns)]
    while waiting := [one for one in turns if one.more(repeats)]:
        for one in waiting:
            one.answers.append(one.take())
    best: dict[str, Turns] = {}
    for one in turns:
        known = best.get(one.contestant.model)
        if known is None or one.total_ms < known.total_ms:
            best[one.contestant.model] = one
    return {model: (one.contestant, one.answers) for model, one in best.items()}


def _first(take: Callable[[], Timed]) -> Timed:
    """What a contestant is judged by before the rounds: a cold call alone would give up whoever was asked first."""
    cold = take()
    return cold if cold.total_ms > SLOW_MS else min(cold, take(), key=lambda answer: answer.total_ms)


def _given_up(one: Turns, turns: Sequence[Turns]) -> bool:
    others = [other.first.total_ms for other in turns if other.contestant.model == one.contestant.model]
    slow = one.first.total_ms > SLOW_MS
    return one.first.total_ms > min(others) * (1 if slow else CLEARLY)


def measure_point(
    point: Point, contestants: Sequence[Contestant], plan: Plan, threads: int, peaks: MachinePeaks
) -> list[LatencyRow]:
    """Rows with the head, and without it where a second pass over the candidates is affordable."""
    names = None if point.whole_catalog else some_names(contestants[0].engine.bundle, point.candidates)

    def asking(one: Contestant) -> Callable[[], Timed]:
        return lambda: one.ask(point.history, names)

    served = take_turns([(one, asking(one)) for one in contestants], plan.repeats)
    rows = [row_of(point, threads, *found, plan, peaks) for found in served.values()]
    if point.whole_catalog or not plan.extras:
        return rows
    known = {row.model: row for row in rows}

    def without_head(one: Contestant) -> Callable[[], Timed]:
        state, user_ms = one.state(point.history), known[one.model].user_ms

        def take() -> Timed:
            spent = one.interact_ms(state, names)
            return Timed(user_ms, spent, user_ms + spent, "o_c", "computed")

        return take

    bare = take_turns([(one, without_head(one)) for one, _ in served.values()], plan.repeats)
    return rows + [row_of(point, threads, *found, plan, peaks, head=False) for found in bare.values()]


def measure_cached(
    point: Point, contestants: Sequence[Contestant], plan: Plan, threads: int, peaks: MachinePeaks
) -> list[LatencyRow]:
    """Rows of requests whose user state is found; a ranker whose state cannot be kept has none."""
    names = some_names(contestants[0].engine.bundle, point.candidates)
    group = []
    for one in contestants:
        one.ask(point.history, names)  # computes the state that the next request finds
        if one.ask(point.history, names).user_state == "cached":
            group.append((one, lambda one=one: one.ask(point.history, names)))
    served = take_turns(group, plan.repeats)
    return [row_of(point, threads, *found, plan, peaks) for found in served.values()]


def row_of(
    point: Point,
    threads: int,
    contestant: Contestant,
    answers: Sequence[Timed],
    plan: Plan,
    peaks: MachinePeaks,
    *,
    head: bool = True,
) -> LatencyRow:
    """Medians, and the floor."""
    user, interact = stage_work(contestant, point, plan, head=head)
    cached = answers[-1].user_state == "cached"
    return LatencyRow(
        sweep=point.sweep,
        model=contestant.model,
        candidates=point.candidates,
        history=point.history,
        qk=point.qk,
        head=head,
        threads=threads,
        threading=contestant.threading,
        user_state=answers[-1].user_state,
        path=answers[-1].path,
        user_ms=median(one.user_ms for one in answers),
        interact_ms=median(one.interact_ms for one in answers),
        total_ms=median(one.total_ms for one in answers),
        spread=Spread.of([one.total_ms / 1000 for one in answers]),
        rounds=len(answers),
        user_floor_ms=0.0 if cached else user.least_ms(peaks),
        interact_floor_ms=interact.least_ms(peaks),
    )


def stage_work(contestant: Contestant, point: Point, plan: Plan, *, head: bool) -> tuple[Work, Work]:
    """The counted work of both stages."""
    engine, model = contestant.engine, contestant.model
    shape = Shape(
        history=point.history,
        candidates=point.candidates,
        width=plan.width,
        qk=point.qk,
        heads=plan.heads,
        links=plan.links,
        hidden=plan.head,
        layers=getattr(engine.ranker.options, "layers", 1),
        row_bytes=engine.bundle.rows.row_bytes,
    )
    user, interact = user_work(model, shape), interact_work(model, shape, head=head)
    if user is None or interact is None:
        inputs, _ = engine.user_inputs(user_with(point.history), {})
        user, interact = counted_work(engine.ranker, inputs, engine.bundle.rows, shape)
    return user, interact
