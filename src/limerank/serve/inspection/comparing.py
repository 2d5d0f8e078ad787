"""Two bundles on the same users: how orders and scores change, over all of them and by kinds of users."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from typing import Any

import numpy as np

from limerank.data.store.encoders import Encoder
from limerank.data.store.manifest import UNKNOWN_ROW
from limerank.errors import UsageError, did_you_mean
from limerank.schema import Kind
from limerank.serve.bundles.ids import IdMap
from limerank.serve.deadline import Deadline
from limerank.serve.engine import Engine
from limerank.serve.experiments.agreement import agreement
from limerank.serve.ranking import Ranking

FIRST_ROW = UNKNOWN_ROW + 1
LENGTHS = ((0, "0"), (10, "1-10"), (100, "11-100"), (1000, "101-1000"))
LONGER = "more than 1000"
MOST_CHANGED = 20
HISTORY = "history"
TRIES = 4
"""Users that are looked up for each that is wanted: the other bundle may not know them."""


@dataclass(frozen=True)
class Change:
    """How a ranking changes, or the means over several; None where there is nothing to compare."""

    overlap_10: float | None
    """The fraction of the best 10 that both have."""
    overlap_100: float | None
    tau: float | None
    """Kendall's tau of the items that both lists hold."""
    score_shift: float | None
    """The mean of new - old over these items, of the task that orders."""
    score_difference: float | None
    """The mean of |new - old|."""
    moved: float | None
    """By how many positions these items moved, in the mean."""
    same_first: float | None
    """1 if both have the same first item."""


@dataclass(frozen=True)
class Compared:
    """One user under both bundles."""

    user_id: str
    history: int
    """Events that the new bundle's ranker reads of the user."""
    change: Change


@dataclass(frozen=True)
class Segment:
    """Users of one kind."""

    feature: str
    value: str
    users: int
    change: Change


@dataclass(frozen=True)
class MovedItem:
    """An item of one user's rankings; positions count from 1 and are None beyond the lists."""

    id: str
    old_position: int | None
    new_position: int | None
    old_score: float | None
    """None: that bundle does not know the item."""
    new_score: float | None


@dataclass(frozen=True)
class Comparison:
    """Two bundles, user by user."""

    task: str
    asked: int
    compared: list[Compared]
    segments: list[Segment]
    items: list[MovedItem] | None
    """Where one user was named: what is in either list, in the order of the new one."""

    def overall(self) -> Change:
        """The means over all users."""
        return mean_of([one.change for one in self.compared])

    def most_changed(self) -> list[Compared]:
        """Users whose rankings changed most."""
        return sorted(self.compared, key=_sameness)[:MOST_CHANGED]


def _sameness(one: Compared) -> tuple[float, float]:
    change = one.change
    return (1.0 if change.overlap_10 is None else change.overlap_10, 1.0 if change.tau is None else change.tau)


def compare(
    old: Engine,
    new: Engine,
    users: Sequence[str] | None,
    *,
    sample: int,
    seed: int,
    limit: int,
    by: str | None,
    request: Callable[[Engine], dict[str, Any]],
    deadline: Deadline,
) -> Comparison:
    """Rank the whole catalog for users, named or sampled, by both; as many as there is time for, at least one.

    `request` is what an engine is asked besides user and limit.
    """
    tasks = [task for task in new.bundle.manifest.tasks if task in old.bundle.manifest.tasks]
    if not tasks:
        raise UsageError("the two bundles have no task in common, so their scores cannot be compared")
    kind = None if by is None else _feature(new, by)
    chosen = list(users) if users is not None else sampled_users(old, new, sample, seed)
    asked_old, asked_new = request(old), request(new)
    compared: list[Compared] = []
    kinds: list[str | None] = []
    items = None
    for user in chosen:
        if compared and deadline.over():
            break
        before = old.answer(user, limit=limit, task=tasks[0], **asked_old)
        after = new.answer(user, limit=limit, task=tasks[0], **asked_new)
        compared.append(Compared(user, after.history_used, change_of(before, after, tasks[0])))
        kinds.append(None if kind is None else _value(new, kind, user))
        if users is not None and len(chosen) == 1:
            scored = [(old, before, asked_old), (new, after, asked_new)]
            items = _moved(user, tasks[0], *scored)
    return Comparison(tasks[0], len(chosen), compared, list(_segments(compared, by, kinds)), items)


def sampled_users(old: Engine, new: Engine, count: int, seed: int) -> list[str]:
    """Users that both bundles know, at random, and nobody who was erased; the same for the same seed and bundles."""
    ids: IdMap = new.bundle.user_ids
    if len(ids) <= FIRST_ROW:
        return []
    known = len(ids) - FIRST_ROW
    rows = np.random.default_rng(seed).choice(known, min(known, TRIES * count), replace=False) + FIRST_ROW
    names = ids.names_of(rows)
    both = old.bundle.user_ids.rows_of(names) != UNKNOWN_ROW
    known_names = (name for name, one in zip(names, both.tolist(), strict=True) if one)
    return list(islice((name for name in known_names if not _is_erased(new, name)), count))


def _is_erased(engine: Engine, user: str) -> bool:
    return engine.histories is not None and engine.histories.of(user).erased_at is not None


def change_of(before: Ranking, after: Ranking, task: str) -> Change:
    """How the ranking of one user changes."""
    found = agreement(before, after)
    positions = [{item: number for number, item in enumerate(one.item_ids)} for one in (before, after)]
    shared = [item for item in positions[0] if item in positions[1]]
    here, there = ([one[item] for item in shared] for one in positions)
    shift = difference = moved = None
    if shared:
        old = before.probabilities[here, before.tasks.index(task)].astype(np.float64)
        new = after.probabilities[there, after.tasks.index(task)].astype(np.float64)
        shift, difference = float((new - old).mean()), float(np.abs(new - old).mean())
        moved = float(np.abs(np.array(there) - np.array(here)).mean())
    same_first = None
    if before.item_ids or after.item_ids:
        same_first = float(before.item_ids[:1] == after.item_ids[:1])
    return Change(found.overlap_10, found.overlap_100, found.tau, shift, difference, moved, same_first)


def mean_of(changes: Sequence[Change]) -> Change:
    """The means of what is there to compare."""

    def mean(name: str) -> float | None:
        values = [value for one in changes if (value := getattr(one, name)) is not None]
        return float(np.mean(values)) if values else None

    return Change(**{one.name: mean(one.name) for one in fields(Change)})


def length_name(events: int) -> str:
    """The segment of a history's length."""
    return next((name for most, name in LENGTHS if events <= most), LONGER)


def _segments(compared: Sequence[Compared], by: str | None, kinds: Sequence[str | None]) -> Iterator[Segment]:
    names = [length_name(one.history) for one in compared]
    for value in [name for _, name in LENGTHS] + [LONGER]:
        yield from _segment(HISTORY, value, [one for one, name in zip(compared, names, strict=True) if name == value])
    if by is not None:
        for value in sorted({kind for kind in kinds if kind is not None}):
            chosen = [one for one, kind in zip(compared, kinds, strict=True) if kind == value]
            yield from _segment(by, value, chosen)


def _segment(feature: str, value: str, compared: Sequence[Compared]) -> Iterator[Segment]:
    if compared:
        yield Segment(feature, value, len(compared), mean_of([one.change for one in compared]))


def _feature(engine: Engine, name: str) -> tuple[Encoder, int]:
    """A user feature with one value per user, and its column."""
    single = [one for one in engine.bundle.encoders.user if one.kind not in (Kind.MULTI_VALUED, Kind.VECTOR)]
    for column, encoder in enumerate(single):
        if encoder.name == name:
            return encoder, column
    names = [encoder.name for encoder in single]
    why = did_you_mean(name, names) if names else ": the log has no features of users"
    raise UsageError(f"by: no user feature '{name}' to group users by{why}")


def _value(engine: Engine, kind: tuple[Encoder, int], user: str) -> str:
    encoder, column = kind
    row = engine.bundle.user_ids.row_of(user)
    return encoder.decode(int(engine.bundle.user_table.indices[row, column]))


def _moved(user: str, task: str, *sides: tuple[Engine, Ranking, dict[str, Any]]) -> list[MovedItem]:
    """What is in either list of one user, with positions and scores under both."""
    lists = [ranking.item_ids for _, ranking, _ in sides]
    items = list(dict.fromkeys([*lists[1], *lists[0]]))
    positions = [{item: number for number, item in enumerate(one, 1)} for one in lists]
    scores = []
    for engine, ranking, asked in sides:
        values = engine.score(engine.encode_user(user, **asked), items)[:, ranking.tasks.index(task)].tolist()
        known = (engine.catalog.rows_of(items) != UNKNOWN_ROW).tolist()
        scores.append([value if one else None for value, one in zip(values, known, strict=True)])
    return [
        MovedItem(item, positions[0].get(item), positions[1].get(item), before, after)
        for item, before, after in zip(items, *scores, strict=True)
    ]
