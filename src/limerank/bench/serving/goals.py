"""What the project wants of the service, judged by the figures of one run."""

from __future__ import annotations

from collections.abc import Sequence

from limerank.bench.serving.results import EventRate, EventThenRank, Knee, Overhead, ServeRow
from limerank.bench.train.results import Goal

OVERHEAD_AT = 10_000
MOST_OVERHEAD, MOST_ADDED_MS, MOST_TAIL, MOST_VARIED, MOST_MICROSECONDS = 1.30, 5.0, 3.0, 1.1, 5.0
LEAST_EVENTS, MOST_COMMIT_MS = 5_000, 50.0


def judge(
    rows: Sequence[ServeRow],
    overhead: Sequence[Overhead],
    knees: Sequence[Knee],
    after_events: Sequence[EventThenRank],
    event_rates: Sequence[EventRate],
) -> list[Goal]:
    """All goals for which this run has the figures."""
    goals = [
        Goal(
            name=f"{one.model}: over HTTP against the engine alone, {one.candidates:,} candidates, user state "
            f"{one.user_state}",
            goal=f"at most {MOST_OVERHEAD:g} times",
            measured=f"{one.http_overhead:.2f} times",
            reached=one.http_overhead <= MOST_OVERHEAD,
        )
        for one in overhead
        if one.candidates == OVERHEAD_AT
    ]
    goals += [
        Goal(
            name=f"{one.model}: an event, then a ranking that has read it, more than a ranking alone",
            goal=f"below {MOST_ADDED_MS:g} ms, and seen every time",
            measured=f"{one.added_ms:.1f} ms, seen {one.seen} of {one.rounds} times",
            reached=one.added_ms < MOST_ADDED_MS and one.seen == one.rounds,
        )
        for one in after_events
    ]
    goals += [_tail_goal(one) for one in knees]
    goals += [
        Goal(
            name=f"events in calls of {one.events_per_call}, each durable",
            goal=f"at least {LEAST_EVENTS:,} per second, p99 of a call at most {MOST_COMMIT_MS:g} ms",
            measured=f"{one.events_per_second:,.0f} per second, p99 {one.call_p99_ms:.0f} ms",
            reached=one.events_per_second >= LEAST_EVENTS and one.call_p99_ms <= MOST_COMMIT_MS and not one.errors,
        )
        for one in event_rates
    ]
    return [*goals, *_shape_goals(rows)]


def _tail_goal(knee: Knee) -> Goal:
    row = knee.at_70
    tail = row.p99_ms / row.p50_ms
    return Goal(
        name=f"{knee.model}: p99 to p50 at 70 % of the knee, {knee.candidates:,} candidates, history {knee.history:,}",
        goal=f"at most {MOST_TAIL:g} times",
        measured=f"{tail:.2f} times",
        reached=tail <= MOST_TAIL and not row.errors and not row.refused,
    )


def _shape_goals(rows: Sequence[ServeRow]) -> list[Goal]:
    """The paper's promises, through the service: stages vary with what they read, and with nothing else."""
    goals: list[Goal] = []
    computed = [row for row in rows if row.user_state == "computed" and {"user", "interact"} <= row.stage_ms.keys()]
    for model in dict.fromkeys(row.model for row in computed):
        own = [row for row in computed if row.model == model]
        many, few = (choose(row.candidates for row in own) for choose in (max, min))
        long, short = (choose(row.history for row in own) for choose in (max, min))
        at = {(row.candidates, row.history): row for row in own}
        if many > few and (many, long) in at and (few, long) in at:
            times = at[many, long].stage_ms["user"] / at[few, long].stage_ms["user"]
            name = f"{model}: user stage at {many:,} candidates against {few:,}, history {long:,}"
            goals.append(_at_most(name, times))
        if long > short and (many, long) in at and (many, short) in at:
            times = at[many, long].stage_ms["interact"] / at[many, short].stage_ms["interact"]
            name = f"{model}: interaction at history {long:,} against {short:,}, {many:,} candidates"
            goals.append(_at_most(name, times))
        if (many, short) in at and (1_000, short) in at and many > 1_000:
            each = 1000 * (at[many, short].p50_ms - at[1_000, short].p50_ms) / (many - 1_000)
            name = f"{model}: a candidate more, between 1,000 and {many:,}, over HTTP"
            goal = f"at most {MOST_MICROSECONDS:g} µs"
            goals.append(Goal(name=name, goal=goal, measured=f"{each:.2f} µs", reached=each <= MOST_MICROSECONDS))
    return goals


def _at_most(name: str, times: float) -> Goal:
    return Goal(
        name=name, goal=f"at most {MOST_VARIED:g} times", measured=f"{times:.2f} times", reached=times <= MOST_VARIED
    )
