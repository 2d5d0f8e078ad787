"""Bodies of /v1/items."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Meta

from limerank.wire.body import Asked, GivenId, Said, Values

MOST_ITEMS = 10_000


class NewItem(Asked):
    """An item to add, or to replace: all of its features by name."""

    id: GivenId
    features: Values = {}
    display: str | None = None


class ItemsRequest(Asked):
    """Items to upsert: all or none."""

    items: Annotated[list[NewItem], Meta(min_length=1, max_length=MOST_ITEMS)]


class ItemsDeleteRequest(Asked):
    """Items to delete."""

    item_ids: Annotated[list[GivenId], Meta(min_length=1, max_length=MOST_ITEMS)]


class ItemsAnswer(Said):
    """How many items were changed; durable, and part of the next request."""

    added: int
    replaced: int
    deleted: int
    absent: list[str]
    """Asked to be deleted, but not there."""
    took_ms: float


class ItemAnswer(Said):
    """Where an item's row comes from, and how old it is."""

    id: str
    source: str
    display: str | None
    changed_at: datetime | None
    computed_at: datetime | None
    bundle: str
    note: str
