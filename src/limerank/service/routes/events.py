"""/v1/events: what happened, checked against the active bundle and stored; what cannot be is listed by its number."""

from __future__ import annotations

import time
from collections import Counter

import msgspec

from limerank.schema import Role
from limerank.serve.bundles.bundle import Bundle
from limerank.serve.histories.past import Happened
from limerank.service.calls import Call, Reply, Service, handles
from limerank.service.metrics import OTHER
from limerank.service.problems import RefusalError, invalid, invalid_body, too_long
from limerank.service.routes.asking import checked_features, checked_time, leased, text_of
from limerank.wire.body import milliseconds
from limerank.wire.events import EventsAnswer, NewEvent, RawEvents, RejectedEvent

EVENT = msgspec.json.Decoder(NewEvent)
MOST_EVENT_BYTES = 64 * 1024
"""Every ranking of a user reads the user's events again: a few huge ones would make all of them slow."""


@handles("add_events")
def add_events(service: Service, call: Call) -> Reply:
    """Store events; on disk when this answers, and part of the next ranking.

    Those that cannot be are listed by their number, and the others are kept. An event that comes again, by its
    `event_id` or, without one, its content, changes nothing: so a call whose answer was lost may be sent again.
    """
    body: RawEvents = call.body
    if len(body.events) > service.options.events_per_call:
        raise too_long(
            "too-many-events", "events", len(body.events), service.options.events_per_call, "events_per_call"
        )
    began = time.perf_counter()
    happened: list[Happened] = []
    rejected: list[RejectedEvent] = []
    types: Counter[str] = Counter()
    with leased(service, call) as lease:
        for number, raw in enumerate(body.events):
            path = f"events[{number}]"
            try:
                event = _read(raw, path)
                happened.append(_checked(lease.engine.bundle, event, path, call.arrived_at))
                types[event.type] += 1
            except RefusalError as refusal:
                if refusal.kind != "invalid-value":
                    raise
                (part,) = refusal.errors
                rejected.append(RejectedEvent(index=number, path=part.path, detail=refusal.detail))
    added = service.host.histories.add(happened)
    for kind, count in types.items():
        service.metrics.happened(kind, "taken", count)
    service.metrics.happened(OTHER, "rejected", len(rejected))
    service.metrics.duplicates.inc(added.duplicates)
    answer = EventsAnswer(
        accepted=added.accepted,
        duplicates=added.duplicates,
        forgotten=added.forgotten,
        rejected=rejected,
        durable=True,
        took_ms=round((time.perf_counter() - began) * 1000, 3),
    )
    return Reply.of(answer)


def _read(raw: msgspec.Raw, path: str) -> NewEvent:
    """One event as its type has it."""
    size = len(memoryview(raw))
    if size > MOST_EVENT_BYTES:
        raise invalid(
            path, f"{path}: has {size:,} bytes of JSON; an event has at most {MOST_EVENT_BYTES:,}", "max_length"
        )
    try:
        return EVENT.decode(raw)
    except msgspec.ValidationError as unfit:
        raise invalid_body(unfit, path) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as malformed:
        raise RefusalError("malformed-json", f"{path}: is not JSON: {malformed}") from None


def _checked(bundle: Bundle, event: NewEvent, path: str, arrived_at: int) -> Happened:
    """An event that rankers can read."""
    given = milliseconds(event.timestamp)
    return Happened(
        user_id=text_of(event.user_id),
        item_id=text_of(event.item_id),
        time=arrived_at if given is None else checked_time(bundle, given, f"{path}.timestamp"),
        features=checked_features(bundle, Role.EVENT, event.features, f"{path}.features"),
        type=event.type,
        event_id=event.event_id,
        request_id=event.request_id,
        position=event.position,
        value=event.value,
        in_history=event.in_history,
    )
