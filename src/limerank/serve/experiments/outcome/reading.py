"""The ranking log and events, read and summed by user."""

from __future__ import annotations

import json
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from limerank.serve.experiments.log_file import LogFile
from limerank.serve.experiments.outcome.statistics import Floats

if TYPE_CHECKING:
    from limerank.serve.histories.past import Happened

ROWS_AT_ONCE = 10_000
ALWAYS = 2**62
RANKINGS = """
SELECT id, request_id, time, user, arm, bundle, milliseconds, degraded FROM rankings
WHERE id > ? AND experiment = ? AND arm IS NOT NULL AND time >= ? AND time < ? AND coalesce(routed, time) >= ?
ORDER BY id LIMIT ?
"""
ITEMS = """
SELECT id, user, items FROM rankings
WHERE id > ? AND experiment = ? AND arm IS NOT NULL AND time >= ? AND time < ? AND coalesce(routed, time) >= ?
ORDER BY id LIMIT ?
"""
SHADOWS = """
SELECT id, answered_by, bundle, overlap_10, overlap_100, tau, score_difference, answer_ms, shadow_ms FROM shadows
WHERE id > ? AND time >= ? AND time < ? ORDER BY id LIMIT ?
"""


@dataclass(frozen=True)
class Window:
    """The rankings that are looked at: of one experiment, from a time up to another."""

    experiment: str
    since: int = 0
    until: int = ALWAYS
    routed: int = 0
    """Assigned by a routing since then: for a second or two after a change some processes know the old one only."""


@dataclass
class Tally:
    """Events of one type by user: sums that rates are made of."""

    joined: Floats
    hits: Floats
    """Rankings that have such an event."""
    owned: Floats
    joined_value: Floats
    owned_value: Floats
    has_values: bool

    @classmethod
    def of(cls, users: int) -> Tally:
        """Nothing yet."""
        joined, hits, owned, joined_value, owned_value = np.zeros((5, users))
        return cls(joined, hits, owned, joined_value, owned_value, has_values=False)


@dataclass
class Observed:
    """Everything of one experiment by user, in order of first ranking."""

    users: dict[bytes, int] = field(default_factory=dict)
    """The position of each user, by what stands for them in the log."""
    arms: list[str] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    requests: list[set[str]] = field(default_factory=list)
    rankings: array[int] = field(default_factory=lambda: array("q"))
    degraded: array[int] = field(default_factory=lambda: array("q"))
    moved: set[int] = field(default_factory=set)
    """Users with rankings in more than one arm."""
    bundles: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    milliseconds: dict[str, dict[str, array[float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(lambda: array("d")))
    )
    tallies: dict[str, Tally] = field(default_factory=dict)
    unknown_requests: int = 0

    def of_arm(self, arm: str) -> NDArray[np.int64]:
        """Positions of the users that had this arm and no other."""
        found = [number for number, own in enumerate(self.arms) if own == arm and number not in self.moved]
        return np.array(found, dtype=np.int64)


def read_rankings(log: LogFile, window: Window) -> Observed:
    """Who had which arm, how often, and how long it took."""
    seen = Observed()
    for request_id, time, user, arm, bundle, milliseconds, degraded in _rows(log, RANKINGS, window):
        number = seen.users.setdefault(user, len(seen.users))
        if number == len(seen.arms):
            seen.arms.append(arm)
            seen.first.append(time)
            seen.requests.append(set())
            seen.rankings.append(0)
            seen.degraded.append(0)
        elif seen.arms[number] != arm:
            seen.moved.add(number)
        seen.rankings[number] += 1
        seen.degraded[number] += degraded != "[]"
        seen.requests[number].add(request_id)
        seen.bundles[arm][bundle] += 1
        for stage, spent in json.loads(milliseconds).items():
            seen.milliseconds[arm][stage].append(spent)
    return seen


def read_events(log: LogFile, seen: Observed, events: Iterable[Happened], until: int = ALWAYS) -> None:
    """Add events to the users whose they are: those that name a ranking, and all since a user's first ranking."""
    users, hit = len(seen.users), set()
    for event in events:
        number = seen.users.get(log.user(event.user_id))
        if number is None or event.time >= until:
            continue
        tally = seen.tallies.get(event.type) or seen.tallies.setdefault(event.type, Tally.of(users))
        value = event.value or 0.0
        tally.has_values |= event.value is not None
        named = event.request_id is not None and event.request_id in seen.requests[number]
        if named:
            tally.joined[number] += 1
            tally.joined_value[number] += value
            if (ranking := (event.type, number, event.request_id)) not in hit:
                hit.add(ranking)
                tally.hits[number] += 1
        if event.time >= seen.first[number]:
            seen.unknown_requests += event.request_id is not None and not named
            tally.owned[number] += 1
            tally.owned_value[number] += value


def read_items(log: LogFile, window: Window) -> Iterator[tuple[bytes, list[str]]]:
    """What each ranking showed, with what stands for its user."""
    for user, items in _rows(log, ITEMS, window):
        yield user, json.loads(items)


def read_shadows(log: LogFile, since: int, until: int) -> Iterator[tuple[Any, ...]]:
    """All comparisons of a time: answered_by, bundle, overlaps, tau, score difference, milliseconds of both."""
    yield from _pages(log, SHADOWS, (since, until))


def experiments_of(log: LogFile) -> list[str]:
    """Experiments in the log; the one with the newest ranking last."""
    with log.sqlite.explained():
        rows = log.connection.execute(
            "SELECT experiment FROM rankings WHERE experiment IS NOT NULL GROUP BY experiment ORDER BY max(id)"
        )
        return [name for (name,) in rows]


def _rows(log: LogFile, query: str, window: Window) -> Iterator[tuple[Any, ...]]:
    yield from _pages(log, query, (window.experiment, window.since, window.until, window.routed))


def _pages(log: LogFile, query: str, values: tuple[object, ...]) -> Iterator[tuple[Any, ...]]:
    """Rows without their id, some at a time: nobody waits long for a reader who is in no hurry."""
    last = 0
    while True:
        with log.sqlite.explained():
            rows = log.connection.execute(query, (last, *values, ROWS_AT_ONCE)).fetchall()
        yield from (row[1:] for row in rows)
        if len(rows) < ROWS_AT_ONCE:
            return
        last = rows[-1][0]
