"""A user's events as one list, newest first: the bundle's and those stored since, and which of them a ranker reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from limerank.data.store.manifest import UNKNOWN_ROW
from limerank.serve.bundles.bundle import Bundle
from limerank.serve.engine import Engine
from limerank.serve.explanation.explain import item_name
from limerank.serve.histories.merging import OF_BUNDLE, Merged
from limerank.serve.histories.past import Event, Happened, Past, StoredHistories

EVERYTHING = 1_000_000
"""More events than a history store keeps of anybody."""
NO_TIME = -1
NOT_READ, HELD, TOO_OLD = "not in the history", "held by the bundle", "too old"


@dataclass(frozen=True)
class ShownEvent:
    """An event as people see it."""

    item_id: str
    time: int | None
    features: dict[str, Any]
    """As they were sent; of a bundle's events as its encoders read them, in words."""
    stored: Happened | None
    """None: it came with the bundle."""
    position: int | None
    """1 is the most recent event that a ranker reads; None: it does not read this one."""
    why: str
    """Why it is not read: NOT_READ, HELD (the bundle has the same event) or TOO_OLD (newer ones fill the history)."""
    display: str | None = None


@dataclass(frozen=True)
class UserEvents:
    """A page of a user's events, and how many there are."""

    known: bool
    erased_at: int | None
    in_bundle: int
    stored: int
    """Of those that are stored, how many belong to the history."""
    total: int
    read: int
    events: list[ShownEvent]


def user_events(engine: Engine, histories: StoredHistories, user_id: str, offset: int, limit: int) -> UserEvents:
    """A page of the events of a user, newest first; what it costs depends on the page, but for some sorting."""
    bundle, catalog = engine.bundle, engine.catalog
    happened = histories.newest(user_id, EVERYTHING)[::-1]
    erased_at = histories.of(user_id).erased_at
    ours = [one for one in happened if one.in_history]
    past = Past([Event(one.item_id, one.features, one.time) for one in ours], erased_at=erased_at)
    merged = engine.requests.whole_history(user_id, past)
    merged_stored = set(merged.sources[merged.sources != OF_BUNDLE].tolist())
    others = [one for one in happened if not one.in_history]
    others += [one for number, one in enumerate(ours) if number not in merged_stored]
    times = np.concatenate([_times(merged, ours), np.array([one.time for one in others], dtype=np.int64)])
    newest_first = times.argsort(kind="stable")[::-1]
    longest, count = bundle.manifest.max_history, len(merged.items)
    in_bundle = merged.sources == OF_BUNDLE
    oldest = times[:count][in_bundle].min(initial=np.iinfo(np.int64).max)
    full = int(in_bundle.sum()) >= longest
    shown = []
    for number in newest_first[offset : offset + limit].tolist():
        if number >= count:
            one = others[number - count]
            why = NOT_READ if not one.in_history else TOO_OLD if full and one.time <= oldest else HELD
            shown.append(ShownEvent(one.item_id, one.time, one.features, one, None, why))
            continue
        position = count - number
        read = position <= longest
        source = int(merged.sources[number])
        about: dict[str, Any] = {"position": position if read else None, "why": "" if read else TOO_OLD}
        if source == OF_BUNDLE:
            shown.append(ShownEvent(**_of_bundle(bundle, merged, number), stored=None, **about))
        else:
            one = ours[source]
            shown.append(ShownEvent(one.item_id, one.time, one.features, one, **about))
    displays: Sequence[str | None] = [None] * len(shown)
    if bundle.manifest.display is not None:
        displays = catalog.displays_of([event.item_id for event in shown])
    return UserEvents(
        known=bool(len(times)) or bundle.user_ids.row_of(user_id) != UNKNOWN_ROW,
        erased_at=erased_at,
        in_bundle=int(in_bundle.sum()),
        stored=len(ours),
        total=len(times),
        read=min(count, longest),
        events=[replace(event, display=display) for event, display in zip(shown, displays, strict=True)],
    )


def _times(merged: Merged, ours: Sequence[Happened]) -> Any:
    """When each event of a history happened; the bundle's are the oldest where the log has no times."""
    if merged.times is not None:
        return merged.times
    own = merged.sources != OF_BUNDLE
    times = np.full(len(merged.items), NO_TIME, dtype=np.int64)
    times[own] = [ours[source].time for source in merged.sources[own].tolist()]
    return times


def _of_bundle(bundle: Bundle, merged: Merged, number: int) -> dict[str, Any]:
    """What a bundle knows of an event."""
    indices = merged.events[number].tolist()
    return {
        "item_id": item_name(bundle, int(merged.items[number])),
        "time": None if merged.times is None else int(merged.times[number]),
        "features": {one.name: one.decode(index) for one, index in zip(bundle.encoders.event, indices, strict=True)},
    }
