"""/v1/items: upsert, delete, and where an item's row comes from."""

from __future__ import annotations

import time
from datetime import datetime

from limerank.serve.inspection.finding import find_items as items_beginning_with
from limerank.serve.overlay.items import Item
from limerank.service.calls import Call, Reply, Service, handles
from limerank.service.routes.asking import leased, query_number, query_text, text_of, texts_of
from limerank.wire.body import MOST_ID_CHARACTERS
from limerank.wire.inspection import MOST_FOUND, FoundItem, FoundItemsAnswer
from limerank.wire.items import ItemAnswer, ItemsAnswer, ItemsDeleteRequest, ItemsRequest

FOUND, MOST_DISPLAY = 20, 200


@handles("upsert_items")
def upsert_items(service: Service, call: Call) -> Reply:
    """Add items, or replace what is known of them: all or none, durable, and part of the next request.

    Every feature of the log is named; null is 'unknown'. /v1/info lists them.
    """
    body: ItemsRequest = call.body
    began = time.perf_counter()
    items = [Item(text_of(one.id), dict(one.features), one.display) for one in body.items]
    with leased(service, call) as lease:
        change = lease.engine.upsert(items)
    return Reply.of(
        ItemsAnswer(added=len(change.added), replaced=len(change.replaced), deleted=0, absent=[], took_ms=_since(began))
    )


@handles("delete_items")
def delete_items(service: Service, call: Call) -> Reply:
    """Take items out of the catalog; histories keep their events. An item that is not there is listed, no error."""
    body: ItemsDeleteRequest = call.body
    began = time.perf_counter()
    with leased(service, call) as lease:
        change = lease.engine.delete(texts_of(body.item_ids))
    return Reply.of(
        ItemsAnswer(added=0, replaced=0, deleted=len(change.deleted), absent=change.absent, took_ms=_since(began))
    )


@handles("find_items")
def find_items(service: Service, call: Call) -> Reply:
    """Items whose ids begin with `prefix`, then those that are called so, in any case; deleted ones are not found.

    The first call after an activation makes an index, which takes seconds for a million items.
    """
    prefix = query_text(call, "prefix", MOST_ID_CHARACTERS)
    limit = query_number(call, "limit", FOUND, 1, MOST_FOUND)
    with leased(service, call) as lease:
        found, more = items_beginning_with(lease.engine.catalog, service.indexes, prefix, limit)
        items = [FoundItem(id=one.id, display=_cut(one.display), matched=one.matched) for one in found]
        return Reply.of(FoundItemsAnswer(prefix=prefix, items=items, more=more, bundle=lease.bundle_id))


def _cut(display: str | None) -> str | None:
    return None if display is None else display[:MOST_DISPLAY]


@handles("show_item")
def show_item(service: Service, call: Call) -> Reply:
    """`source` is `bundle`, `overlay` (upserted since), `deleted`, `unfit` or `unknown`, which is no error."""
    item_id = call.parameters["item_id"]
    with leased(service, call) as lease:
        catalog = lease.engine.catalog
        (status,) = catalog.status([item_id])
        (display,) = catalog.displays_of([item_id])
    return Reply.of(
        ItemAnswer(
            id=item_id,
            source=status.source,
            display=display,
            changed_at=_time(status.changed_at),
            computed_at=_time(status.computed_at),
            bundle=status.bundle,
            note=status.note,
        )
    )


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _since(began: float) -> float:
    return round((time.perf_counter() - began) * 1000, 3)
