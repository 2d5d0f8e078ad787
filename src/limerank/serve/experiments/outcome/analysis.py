"""What came of an experiment: arms, differences to control, and what to doubt."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from limerank.errors import DataError, did_you_mean
from limerank.serve.experiments.log_file import LogFile
from limerank.serve.experiments.outcome.doubts import doubts, periods_of
from limerank.serve.experiments.outcome.reading import (
    ALWAYS,
    Observed,
    Tally,
    Window,
    experiments_of,
    read_events,
    read_rankings,
    read_shadows,
)
from limerank.serve.experiments.outcome.result import (
    AbResult,
    ArmResult,
    Comparison,
    EventCounts,
    SampleRatio,
    ShadowResult,
    Spread,
)
from limerank.serve.experiments.outcome.shown import shown_overlaps
from limerank.serve.experiments.outcome.statistics import LEVEL, Floats, chi_square, interval_of_difference, rate_of
from limerank.serve.experiments.routing import CONTROL, Routing, read_routings

if TYPE_CHECKING:
    from limerank.serve.histories.past import Happened

UNLIKELY = 0.001
"""Arms that are so unlikely by chance are taken for a mistake."""
CLOCKS_APART = 86_400_000
"""Events have the times of clients, whose clocks may be wrong: a day before rankings they are still looked for."""
RULE = (
    "an event belongs to a ranking if it names its request_id and is of the same user; `per user` counts all events of "
    "a user from the time of their first ranking on"
)

Events = Callable[[int], Iterable["Happened"]]
"""Stored events from a time on."""


def analyse(
    store: Path,
    events: Events,
    *,
    experiment: str | None = None,
    since: int | None = None,
    until: int | None = None,
    types: Sequence[str] = (),
) -> AbResult:
    """Read the log of a store. By default: the newest experiment, since its arms were last changed, all events."""
    routings = read_routings(store)
    with closing(LogFile.reading(store)) as log:
        name = _chosen(experiment, routings, experiments_of(log))
        periods = periods_of(routings, name)
        begin = since if since is not None else periods[-1].since if periods else 0
        window = Window(name or "", begin, ALWAYS if until is None else until, begin if since is None else 0)
        seen = read_rankings(log, window) if name else Observed()
        read_events(log, seen, events(max(0, begin - CLOCKS_APART)), window.until)
        if types:
            seen.tallies = {kind: seen.tallies.get(kind) or Tally.of(len(seen.users)) for kind in types}
        inside = [one for one in periods if one.until > begin and one.since < window.until]
        percents = inside[0].routing.percents() if len(inside) == 1 else {}
        names = [CONTROL, *sorted({*seen.arms, *percents} - {CONTROL})] if name else []
        arms = [_arm(seen, arm, percents.get(arm)) for arm in names]
        others = [arm for arm in names if arm != CONTROL]
        ratio = sample_ratio(arms) if percents else None
        return AbResult(
            store=str(store),
            experiment=name,
            since=begin,
            until=until,
            running=name is not None and routings[-1].experiment == name,
            level=LEVEL,
            rule=RULE,
            arms=arms,
            comparisons=[one for arm in others for one in _comparisons(seen, arm)],
            sample_ratio=ratio,
            shown=[one for arm in others for one in shown_overlaps(log, window, seen, CONTROL, arm)],
            shadows=_shadows(log, window.since, window.until),
            users_left_out=len(seen.moved),
            unknown_requests=seen.unknown_requests,
            warnings=doubts(arms, seen, ratio, inside, periods, begin if since is None else None),
        )


def sample_ratio(arms: Sequence[ArmResult]) -> SampleRatio | None:
    """Users of arms against their percents; None where nobody is counted."""
    users = sum(arm.users for arm in arms)
    if not users or len(arms) < 2:
        return None
    expected = {arm.name: users * (arm.percent or 0.0) / 100 for arm in arms}
    probability = chi_square([float(arm.users) for arm in arms], list(expected.values()))
    return SampleRatio(
        expected=expected,
        counted={arm.name: arm.users for arm in arms},
        probability=probability,
        mismatch=probability < UNLIKELY,
    )


def _chosen(asked: str | None, routings: Sequence[Routing], logged: Sequence[str]) -> str | None:
    """The experiment that was asked for, else the one that runs, else the newest in the log, if any."""
    known = {*logged, *(one.experiment for one in routings if one.experiment is not None)}
    if asked is not None:
        if asked not in known:
            raise DataError(f"--experiment {asked}: no such experiment was logged{did_you_mean(asked, known)}")
        return asked
    return routings[-1].experiment or (logged[-1] if logged else None)


def _arm(seen: Observed, name: str, percent: float | None) -> ArmResult:
    own = seen.of_arm(name)
    sums = {kind: [float(one[own].sum()) for one in _sums(tally)] for kind, tally in sorted(seen.tallies.items())}
    return ArmResult(
        name=name,
        percent=percent,
        bundles=dict(seen.bundles.get(name, {})),
        users=len(own),
        rankings=int(_numbers(seen.rankings)[own].sum()),
        degraded=int(_numbers(seen.degraded)[own].sum()),
        events={
            kind: EventCounts(
                joined=int(joined),
                rankings_with=int(hits),
                by_users=int(owned),
                joined_value=value,
                value_by_users=all_of,
            )
            for kind, (joined, hits, owned, value, all_of) in sums.items()
        },
        milliseconds={stage: spread(spent) for stage, spent in seen.milliseconds.get(name, {}).items()},
    )


def _comparisons(seen: Observed, arm: str) -> list[Comparison]:
    rankings = _numbers(seen.rankings)
    ones = np.ones(len(rankings))
    found = [_comparison(seen, arm, "degraded", None, _numbers(seen.degraded), rankings)]
    for kind, tally in sorted(seen.tallies.items()):
        pairs = [
            ("per ranking", tally.joined, rankings),
            ("rankings with", tally.hits, rankings),
            ("per user", tally.owned, ones),
        ]
        if tally.has_values:
            pairs += [("value per ranking", tally.joined_value, rankings), ("value per user", tally.owned_value, ones)]
        found += [_comparison(seen, arm, what, kind, above, below) for what, above, below in pairs]
    return [one for one in found if one is not None]


def _comparison(
    seen: Observed, arm: str, what: str, kind: str | None, numerator: Floats, denominator: Floats
) -> Comparison | None:
    own, other = (rate_of(numerator[users], denominator[users]) for users in map(seen.of_arm, (arm, CONTROL)))
    if own is None or other is None:
        return None
    between = interval_of_difference(own, other)
    difference = own.value - other.value
    return Comparison(
        arm=arm,
        what=what,
        type=kind,
        control=other.value,
        rate=own.value,
        difference=difference,
        low=None if between is None else between.low,
        high=None if between is None else between.high,
        relative=difference / other.value if other.value else None,
    )


def _shadows(log: LogFile, since: int, until: int) -> list[ShadowResult]:
    found: dict[tuple[str, str], list[tuple[Any, ...]]] = defaultdict(list)
    for answered_by, bundle, *values in read_shadows(log, since, until):
        found[bundle, answered_by].append(tuple(values))
    results = []
    for (bundle, answered_by), rows in sorted(found.items()):
        *agreement, answer_ms, shadow_ms = zip(*rows, strict=True)
        overlap_10, overlap_100, tau, difference = map(_mean, agreement)
        results.append(
            ShadowResult(
                bundle=bundle,
                answered_by=answered_by,
                rankings=len(rows),
                overlap_10=overlap_10,
                overlap_100=overlap_100,
                tau=tau,
                score_difference=difference,
                answer_ms=spread(answer_ms),
                shadow_ms=spread(shadow_ms),
            )
        )
    return results


def spread(milliseconds: Sequence[float]) -> Spread:
    """The middle and the slow end."""
    p50, p99 = np.percentile(np.asarray(milliseconds, dtype=np.float64), [50, 99])
    return Spread(p50=float(p50), p99=float(p99))


def _sums(tally: Tally) -> tuple[Floats, ...]:
    return tally.joined, tally.hits, tally.owned, tally.joined_value, tally.owned_value


def _numbers(values: Any) -> Floats:
    return np.asarray(values, dtype=np.float64)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
