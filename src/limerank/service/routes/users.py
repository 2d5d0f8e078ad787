"""/v1/users: what is known of a user, and how to forget it."""

from __future__ import annotations

from dataclasses import asdict

from limerank.serve.inspection.finding import find_users as users_beginning_with
from limerank.serve.inspection.user_events import ShownEvent, user_events
from limerank.service.calls import Call, Reply, Service, handles
from limerank.service.routes.asking import leased, query_number, query_text
from limerank.wire.body import MOST_ID_CHARACTERS, rfc3339
from limerank.wire.events import ErasedAnswer, StoredEvent, UserAnswer
from limerank.wire.inspection import MOST_FOUND, FoundUser, UsersAnswer

SHOWN, MOST_SHOWN, MOST_OFFSET = 100, 10_000, 1_000_000
FOUND = 20
NOTE = (
    "bundles are immutable and still hold the hidden events, which nothing reads; they are gone when a bundle is "
    "exported from a log without this user and the old ones are collected; backups are not touched"
)


@handles("show_user")
def show_user(service: Service, call: Call) -> Reply:
    """The newest events first: those that were stored, and those that came with the bundle; a page of them.

    Each says whether a ranker reads it. Events that arrive between two pages move the others on.
    """
    user_id = call.parameters["user_id"]
    limit, offset = query_number(call, "limit", SHOWN, 1, MOST_SHOWN), query_number(call, "offset", 0, 0, MOST_OFFSET)
    with leased(service, call, user_id) as lease:
        found = user_events(lease.engine, service.host.histories, user_id, offset, limit)
        answer = UserAnswer(
            user_id=user_id,
            known=found.known,
            bundle=lease.bundle_id,
            arm=lease.arm,
            events_in_bundle=found.in_bundle,
            events_stored=found.stored,
            erased_at=rfc3339(found.erased_at),
            history=[_shown(one) for one in found.events],
            total=found.total,
            read=found.read,
        )
    return Reply.of(answer)


@handles("find_users")
def find_users(service: Service, call: Call) -> Reply:
    """Users whose ids begin with `prefix`, in the order of their bytes: as fast among millions as among few.

    Of the active bundle, and of those whose events were stored since; nobody who was erased. The first call after an
    activation makes an index, which takes about a second for a million users.
    """
    prefix = query_text(call, "prefix", MOST_ID_CHARACTERS)
    limit = query_number(call, "limit", FOUND, 1, MOST_FOUND)
    with leased(service, call) as lease:
        found, more = users_beginning_with(lease.engine, service.host.histories, service.indexes, prefix, limit)
        users = [FoundUser(**asdict(one)) for one in found]
        return Reply.of(UsersAnswer(prefix=prefix, users=users, more=more, bundle=lease.bundle_id))


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


def _shown(one: ShownEvent) -> StoredEvent:
    stored = one.stored
    return StoredEvent(
        item_id=one.item_id,
        timestamp=rfc3339(one.time),
        source="bundle" if stored is None else "events",
        features=one.features,
        type=None if stored is None else stored.type,
        event_id=None if stored is None else stored.event_id,
        display=one.display,
        read=one.position is not None,
        position=one.position,
        why=one.why,
    )
