"""The catalog as of now: what any process committed before is in it; and the ways to change it."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from limerank.data.store.manifest import UNKNOWN_ROW
from limerank.errors import UsageError
from limerank.frames import Frame
from limerank.serve.bundles.bundle import Bundle
from limerank.serve.bundles.store import BUNDLES
from limerank.serve.catalog import Catalog, ItemStatus
from limerank.serve.checks import checked_ids
from limerank.serve.overlay.changes import ChangeFile
from limerank.serve.overlay.items import Item, ItemReader
from limerank.serve.overlay.view import OverlayView, computed

LEAST_WASTE = 1024
"""Slots of earlier versions that are kept whatever else there is."""


@dataclass(frozen=True)
class CatalogChange:
    """What one call changed: ids by what happened to them."""

    added: list[str]
    replaced: list[str]
    deleted: list[str]
    absent: list[str]
    """Asked to be deleted, but not in the catalog."""


class LiveCatalog:
    """One bundle's catalog with its store's changes, as up to date as it is asked."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self.reader = ItemReader(bundle)
        store = store_of(bundle)
        self.changes = None if store is None else ChangeFile(store)
        self._lock = threading.Lock()
        self._catalog = Catalog(bundle, OverlayView(bundle, self.reader))

    def current(self) -> Catalog:
        """The catalog with all that was committed before this call; one that does not change any more."""
        if self.changes is None:
            return self._catalog
        with self._lock:  # whoever learns of changes first computes them, and nobody answers without them meanwhile
            news = self.changes.news()
            if news is not None:
                view = OverlayView(self.bundle, self.reader) if news.anew else self._catalog.overlay
                view = view.updated(news.changes)
                if view.table is not None and len(view.table) > 2 * len(view.slot_of_row[0]) + LEAST_WASTE:
                    kept = sorted((entry.change for entry in view.entries.values()), key=lambda one: one.position)
                    view = OverlayView(self.bundle, self.reader).updated(kept)
                self._catalog = Catalog(self.bundle, view)
            return self._catalog

    def upsert(self, items: Iterable[Item] | Frame | pl.DataFrame, *, separator: str | None = None) -> CatalogChange:
        """Add items, or replace what is known of them; durable when this returns, all of them or none.

        `items` may be a frame with a column `item_id`, one per item feature and, if wanted, one of displays.
        """
        changes = self._writable()
        given = self.reader.items_of(items, "items", separator=separator) if isinstance(items, Frame) else items
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise UsageError(f"items: {type(given).__name__} is no list of items and no frame")
        checked = self.reader.checked(given)
        self._rehearse(list(checked.values()))
        ids = list(checked)
        known = self.current().rows_of(ids) != UNKNOWN_ROW
        changes.write({item.item_id: (item.features, item.display) for item in checked.values()})
        return CatalogChange(
            added=[item for item, one in zip(ids, known, strict=True) if not one],
            replaced=[item for item, one in zip(ids, known, strict=True) if one],
            deleted=[],
            absent=[],
        )

    def delete(self, item_ids: Iterable[object]) -> CatalogChange:
        """Take items out of the catalog; durable when this returns. Events with them stay in histories."""
        changes = self._writable()
        ids = list(dict.fromkeys(checked_ids(item_ids, "item_ids")))
        known = self.current().rows_of(ids) != UNKNOWN_ROW
        deleted = [item for item, one in zip(ids, known, strict=True) if one]
        changes.write({}, deleted)
        return CatalogChange([], [], deleted, [item for item, one in zip(ids, known, strict=True) if not one])

    def forget(self, item_ids: Iterable[object] | None = None) -> list[str]:
        """Drop changes, so that bundles' own items are served again; None: upserts that this bundle holds alike.

        Returns the ids whose change was dropped. Engines on other bundles of the store forget them, too.
        """
        changes = self._writable()
        if item_ids is None:
            return changes.forget({one.item_id: one.version for one in self.current().held_changes()})
        return changes.forget(dict.fromkeys(checked_ids(item_ids, "item_ids")))

    def changed(self) -> list[ItemStatus]:
        """Every item that has a change, in the order of first mention."""
        catalog = self.current()
        entries = sorted(catalog.overlay.entries.values(), key=lambda entry: entry.change.position)
        return catalog.status([entry.change.item_id for entry in entries])

    def _rehearse(self, items: list[Item]) -> None:
        """Compute what will be served before it is written: rows that do not fit their type are refused here."""
        if items:
            computed(self.bundle, self.reader, [(item.item_id, item.features) for item in items])

    def _writable(self) -> ChangeFile:
        if self.changes is None:
            raise UsageError(f"{self.bundle.path}: is not in a store, so nothing can be changed; open a store")
        return self.changes


def store_of(bundle: Bundle) -> Path | None:
    """The store that a bundle lies in, if it does."""
    folder = bundle.path.parent
    return folder.parent if folder.name == BUNDLES else None
