"""Calls about events, users and items."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from limerank.client.call import Call, GivenId, GivenTime, checked_id, checked_ids, path_to, structs
from limerank.wire.events import ErasedAnswer, EventsAnswer, EventsRequest, NewEvent, UserAnswer
from limerank.wire.inspection import FoundItemsAnswer, UsersAnswer
from limerank.wire.items import ItemAnswer, ItemsAnswer, ItemsDeleteRequest, ItemsRequest, NewItem


def add_events(events: Iterable[NewEvent | Mapping[str, Any]]) -> Call[EventsAnswer]:
    """Store what happened; durable when this returns, and part of the next ranking.

    Events without an `event_id` get one here, so that a repeated attempt stores nothing twice. Those that cannot be are
    in the answer's `rejected`, and the others are stored.
    """
    named = [
        event if event.event_id else replace(event, event_id=uuid.uuid4().hex)
        for event in structs(events, NewEvent, "events")
    ]
    return Call("add_events", "POST", "/v1/events", EventsAnswer, EventsRequest(events=named))


def add_event(
    user_id: GivenId,
    item_id: GivenId,
    *,
    type: str = "event",
    features: Mapping[str, Any] | None = None,
    timestamp: GivenTime | None = None,
    event_id: str | None = None,
    request_id: str | None = None,
    position: int | None = None,
    value: float | None = None,
    in_history: bool = True,
) -> Call[EventsAnswer]:
    """Store one event; `request_id` and `position` are those of the ranking that showed the item."""
    event = NewEvent(
        user_id=checked_id(user_id, "user_id"),
        item_id=checked_id(item_id, "item_id"),
        type=type,
        features=dict(features or {}),
        timestamp=timestamp,
        event_id=event_id,
        request_id=request_id,
        position=position,
        value=value,
        in_history=in_history,
    )
    return add_events([event])


def find_users(prefix: str = "", limit: int | None = None) -> Call[UsersAnswer]:
    """Users whose ids begin with `prefix`, in the order of their bytes."""
    return Call("find_users", "GET", "/v1/users", UsersAnswer, query=_asked(prefix=prefix or None, limit=limit))


def find_items(prefix: str = "", limit: int | None = None) -> Call[FoundItemsAnswer]:
    """Items whose ids begin with `prefix`, then those that are called so, in any case."""
    return Call("find_items", "GET", "/v1/items", FoundItemsAnswer, query=_asked(prefix=prefix or None, limit=limit))


def _asked(**given: str | int | None) -> dict[str, str]:
    return {name: str(value) for name, value in given.items() if value is not None}


def show_user(user_id: GivenId, limit: int | None = None, *, offset: int | None = None) -> Call[UserAnswer]:
    """What is known of a user, with the `limit` newest events; None: as many as the service shows by itself.

    `offset` leaves out so many of the newest: for the next page.
    """
    path = path_to("/v1/users/{user_id}", user_id=user_id)
    return Call("show_user", "GET", path, UserAnswer, query=_asked(limit=limit, offset=offset))


def erase_user(user_id: GivenId) -> Call[ErasedAnswer]:
    """Forget a user, everywhere. If an attempt was repeated, the answer counts what the last one found."""
    return Call("erase_user", "DELETE", path_to("/v1/users/{user_id}", user_id=user_id), ErasedAnswer)


def upsert_items(items: Iterable[NewItem | Mapping[str, Any]]) -> Call[ItemsAnswer]:
    """Add or replace items, all or none: `{"id": ..., "features": {...}}` with every item feature."""
    body = ItemsRequest(items=structs(items, NewItem, "items"))
    return Call("upsert_items", "PUT", "/v1/items", ItemsAnswer, body)


def delete_items(item_ids: Iterable[GivenId]) -> Call[ItemsAnswer]:
    """Delete items; those that were not there are in the answer's `absent`."""
    body = ItemsDeleteRequest(item_ids=checked_ids(item_ids, "item_ids"))
    return Call("delete_items", "POST", "/v1/items/delete", ItemsAnswer, body)


def show_item(item_id: GivenId) -> Call[ItemAnswer]:
    """Where an item's row comes from."""
    return Call("show_item", "GET", path_to("/v1/items/{item_id}", item_id=item_id), ItemAnswer)
