"""What a reader of an experiment should know before believing its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from limerank.serve.experiments.outcome.reading import ALWAYS, Observed
from limerank.serve.experiments.outcome.result import ArmResult, SampleRatio
from limerank.serve.experiments.routing import Routing
from limerank.times import time_text

FEW_USERS = 100


@dataclass(frozen=True)
class Period:
    """A time in which the arms of an experiment were the same."""

    since: int
    until: int
    routing: Routing


def periods_of(routings: Sequence[Routing], experiment: str | None) -> list[Period]:
    """The times in which an experiment had the same arms; shadows do not matter."""
    found: list[Period] = []
    for number, routing in enumerate(routings):
        following = routings[number + 1].since if number + 1 < len(routings) else None
        if routing.experiment != experiment or experiment is None or routing.since is None:
            continue
        end = ALWAYS if following is None else following
        if found and found[-1].until == routing.since and found[-1].routing.arms == routing.arms:
            found[-1] = Period(found[-1].since, end, routing)
        else:
            found.append(Period(routing.since, end, routing))
    return found


def doubts(
    arms: Sequence[ArmResult],
    seen: Observed,
    ratio: SampleRatio | None,
    inside: Sequence[Period],
    periods: Sequence[Period],
    begun: int | None,
) -> list[str]:
    """What a reader should know before believing the numbers."""
    found = []
    if ratio is not None and ratio.mismatch:
        found.append(
            "sample ratio mismatch: chance alone gives arms of such sizes with a probability of "
            f"{ratio.probability:.1g}. Do not believe the differences before you know why: rankings that were dropped, "
            "users that are counted twice or not at all, or an arm that fails for some of them"
        )
    if len(inside) > 1:
        found.append(
            f"arms were changed {len(inside) - 1} times within this time: rates mix what was served before and after, "
            "and arm sizes cannot be checked; leave out --since to look at the time since the last change"
        )
    elif begun is not None and len(periods) > 1:
        found.append(f"arms were changed; only rankings since the last change, {time_text(begun)} UTC, are read")
    if seen.moved:
        found.append(f"{len(seen.moved):,} users had more than one arm in this time; they are left out")
    few = [arm.name for arm in arms if 0 < arm.users < FEW_USERS]
    if few:
        found.append(f"fewer than {FEW_USERS} users in {', '.join(few)}: their intervals are too narrow")
    empty = [arm.name for arm in arms if not arm.users and arm.percent != 0]
    if empty:
        found.append(f"no users in {', '.join(empty)}")
    for arm in arms:
        if len(arm.bundles) > 1:
            answered = ", ".join(arm.bundles)
            found.append(f"several bundles answered users of {arm.name}: {answered}")
    if arms and not seen.tallies:
        found.append("no events of these users are stored; send them to /v1/events with the request_id of the answer")
    elif arms and not any(tally.joined.any() for tally in seen.tallies.values()):
        found.append(
            "no event names a logged ranking: `per ranking` is 0; send the request_id of the answer with events"
        )
    return found
