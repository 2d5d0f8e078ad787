"""/v1/users: what is known of a user, and how to forget it."""

from __future__ import annotations

import re
from typing import Any

from limerank.data.store.manifest import UNKNOWN_ROW
from limerank.serve.bundles.bundle import Bundle
from limerank.serve.histories.past import Happened
from limerank.service.calls import Call, Reply, Service, handles
from limerank.service.problems import invalid
from limerank.service.routes.asking import leased
from limerank.wire.body import Values, rfc3339
from limerank.wire.events import ErasedAnswer, StoredEvent, UserAnswer

SHOWN, MOST_SHOWN = 100, 10_000
NOTE = (
    "bundles are immutable and still hold the hidden events, which nothing reads; they are gone when a bundle is "
    "exported from a log without this user and the old ones are collected; backups are not touched"
)


@handles("show_user")
def show_user(service: Service, call: Call) -> Reply:
    """The newest events first: those that were stored, and those that came with the bundle."""
    user_id, limit = call.parameters["user_id"], _limit(call)
    with leased(service, call, user_id) as lease:
        bundle, histories = lease.engine.bundle, service.host.histories
        past = histories.of(user_id)
        stored = [_stored(one) for one in histories.newest(user_id, limit)]
        in_bundle, count = _of_bundle(bundle, user_id, limit, past.erased_at)
        events = sorted(stored + in_bundle, key=lambda one: one[0], reverse=True)
        answer = UserAnswer(
            user_id=user_id,
            known=bool(count or stored or bundle.user_ids.row_of(user_id) != UNKNOWN_ROW),
            bundle=lease.bundle_id,
            arm=lease.arm,
            events_in_bundle=count,
            events_stored=len(past.events),
            erased_at=rfc3339(past.erased_at),
            history=[event for _, event in events[:limit]],
        )
    return Reply.of(answer)


@handles("erase_user")
def erase_user(service: Service, call: Call) -> Reply:
    """Delete the user's events, kept states and logged rankings, and hide what immutable bundles hold.

    The answer says how much of each there was. Events that arrive later begin a new history.
    """
    erased = service.host.erase_user(call.parameters["user_id"])
    service.metrics.erased.inc()
    at = rfc3339(erased.erased_at)
    if at is None:
        raise ValueError("an erasure without a time")
    return Reply.of(
        ErasedAnswer(user_id=erased.user_id, erased_at=at, deleted=erased.deleted, hidden=erased.hidden, note=NOTE)
    )


def _limit(call: Call) -> int:
    text = call.query.get("limit", str(SHOWN))
    if not (re.fullmatch("[0-9]{1,9}", text) and 1 <= int(text) <= MOST_SHOWN):
        raise invalid("limit", f"limit: {text[:20]!r} is no whole number from 1 to {MOST_SHOWN}")
    return int(text)


def _stored(one: Happened) -> tuple[int, StoredEvent]:
    event = StoredEvent(
        item_id=one.item_id,
        timestamp=rfc3339(one.time),
        source="events",
        features=one.features,
        type=one.type,
        event_id=one.event_id,
    )
    return one.time, event


def _of_bundle(bundle: Bundle, user_id: str, limit: int, erased_at: int | None) -> tuple[list[Any], int]:
    """The newest events of a bundle, and how many there are; none that an erasure hides."""
    row = bundle.user_ids.row_of(user_id)
    begin, end = bundle.histories["offsets"][row : row + 2].tolist()
    if row == UNKNOWN_ROW:
        return [], 0
    times = bundle.histories["times"][begin:end].tolist() if "times" in bundle.histories else [None] * (end - begin)
    if erased_at is not None:
        begin += sum(1 for time in times if time is None or time <= erased_at)  # oldest first
    shown = slice(max(begin, end - limit), end)
    rows = bundle.histories["item"][shown].tolist()
    names = bundle.item_ids.names_of([item if item < bundle.manifest.items else UNKNOWN_ROW for item in rows])
    happened = bundle.histories["events"][shown].tolist()
    events = []
    for name, time, indices in zip(names, times[len(times) - len(rows) :], happened, strict=True):
        features: Values = {
            encoder.name: encoder.decode(index) for encoder, index in zip(bundle.encoders.event, indices, strict=True)
        }
        event = StoredEvent(item_id=name, timestamp=rfc3339(time), source="bundle", features=features)
        events.append((-1 if time is None else time, event))
    return events, end - begin
