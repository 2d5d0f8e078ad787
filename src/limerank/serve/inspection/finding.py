"""Users and items by the beginning of an id, as somebody types it; items also by the beginning of what they are called.

An index of a bundle's ids is made when it is first asked for, about a second for a million, and goes with the bundle.
A look into it costs microseconds, whatever there is; upserted items and stored users are looked up where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from threading import Lock
from typing import Literal
from weakref import WeakKeyDictionary

import numpy as np

from limerank.data.store.manifest import UNKNOWN_ROW
from limerank.serve.bundles.ids import IdMap, Texts
from limerank.serve.catalog import Catalog
from limerank.serve.engine import Engine
from limerank.serve.histories.past import StoredHistories
from limerank.serve.inspection.prefixes import PrefixIndex

FIRST_ROW = UNKNOWN_ROW + 1
DISPLAY_CHARACTERS = 64
"""Of what an item is called, which may be long: nobody types more to find it."""
MOST_LOOKED_AT = 2_000
"""Ids that one call looks at: erased users and deleted items are passed over, but not without end."""


@dataclass(frozen=True)
class FoundUser:
    """A user, and how many events there are."""

    id: str
    events_in_bundle: int
    events_stored: int


@dataclass(frozen=True)
class FoundItem:
    """An item, what it is called, and which of the two was found."""

    id: str
    display: str | None
    matched: Literal["id", "display"]


class Indexes:
    """The indexes of ids that were asked for, each for as long as its bundle is open."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._ids: WeakKeyDictionary[IdMap, PrefixIndex] = WeakKeyDictionary()
        self._displays: WeakKeyDictionary[IdMap, PrefixIndex] = WeakKeyDictionary()

    def ids(self, ids: IdMap) -> PrefixIndex:
        """Of ids, as they are written."""
        return self._made(self._ids, ids, lambda: PrefixIndex(ids.texts, np.arange(FIRST_ROW, len(ids))))

    def displays(self, ids: IdMap) -> PrefixIndex | None:
        """Of what rows are called, whatever the case; None where nothing has a name."""
        displays = ids.displays
        return None if displays is None else self._made(self._displays, ids, lambda: _folded(displays))

    def _made(
        self, known: WeakKeyDictionary[IdMap, PrefixIndex], ids: IdMap, make: Callable[[], PrefixIndex]
    ) -> PrefixIndex:
        with self._lock:
            found = known.get(ids)
            if found is None:
                found = known[ids] = make()
            return found


def _folded(displays: Texts) -> PrefixIndex:
    """The beginnings of names in lower case, of the rows that have one."""
    view, most = displays.text.data, 4 * DISPLAY_CHARACTERS
    bounds = zip(displays.offsets[:-1].tolist(), displays.offsets[1:].tolist(), strict=True)
    texts = Texts.of([folded(str(view[begin : min(end, begin + most)], "utf-8", "ignore")) for begin, end in bounds])
    return PrefixIndex(texts, np.flatnonzero(np.diff(texts.offsets) > 0))


def folded(text: str) -> str:
    """A text as it is looked for: its beginning, whatever the case."""
    return text[:DISPLAY_CHARACTERS].casefold()


def find_users(
    engine: Engine, histories: StoredHistories, indexes: Indexes, prefix: str, limit: int
) -> tuple[list[FoundUser], bool]:
    """Users whose ids begin with a prefix, by the bytes of their ids, and whether there are more; no erased ones."""
    bundle = engine.bundle
    index = indexes.ids(bundle.user_ids)
    within = index.found(prefix)[:MOST_LOOKED_AT]
    stored = {one.user_id: one for one in histories.beginning_with(prefix, limit + 1)}
    offsets, merger = bundle.histories["offsets"], engine.requests.merger
    found: dict[str, FoundUser] = {}
    block = limit + 1
    for first in range(0, len(within), block):
        rows = index.order[within[first] : within[first] + min(block, len(within) - first)]
        names = bundle.user_ids.names_of(rows)
        known = histories.stored_users(names)
        for row, name in zip(rows.tolist(), names, strict=True):
            of_store = known.get(name)
            erased_at = None if of_store is None else of_store.erased_at
            in_bundle = int(offsets[row + 1] - offsets[row])
            if erased_at is not None:
                visible = merger.visible(row, erased_at)
                in_bundle = visible.stop - visible.start
                if not in_bundle and name not in stored:
                    continue
            found[name] = FoundUser(name, in_bundle, 0 if of_store is None else of_store.events)
        if len(found) > limit:
            break
    for name, one in stored.items():
        found.setdefault(name, FoundUser(name, 0, one.events))
    listed = sorted(found.values(), key=lambda one: one.id.encode(errors="surrogatepass"))
    return listed[:limit], len(listed) > limit or len(index.found(prefix)) > MOST_LOOKED_AT


def find_items(catalog: Catalog, indexes: Indexes, prefix: str, limit: int) -> tuple[list[FoundItem], bool]:
    """Items whose ids begin with a prefix, then those that are called so, and whether there are more."""
    found: dict[str, Literal["id", "display"]] = {}
    for name in islice(_items_by_id(catalog, indexes, prefix), limit + 1):
        found[name] = "id"
    if len(found) <= limit and prefix:
        for name in _items_by_display(catalog, indexes, folded(prefix)):
            found.setdefault(name, "display")
            if len(found) > limit:
                break
    names = list(found)[:limit]
    displays = catalog.displays_of(names)
    listed = [FoundItem(name, display, found[name]) for name, display in zip(names, displays, strict=True)]
    return listed, len(found) > limit


def _items_by_id(catalog: Catalog, indexes: Indexes, prefix: str) -> Iterator[str]:
    """Ids of the bundle and new ones, each in the order of its bytes; new ones are few, and come first."""
    entries = catalog.overlay.entries
    upserted = sorted(name for name in catalog.overlay.new_items if name.startswith(prefix))
    yield from (name for name in upserted if not entries[name].change.deleted)
    yield from _of_bundle(catalog, indexes.ids(catalog.bundle.item_ids), prefix)


def _items_by_display(catalog: Catalog, indexes: Indexes, prefix: str) -> Iterator[str]:
    for name, entry in catalog.overlay.entries.items():
        display = entry.change.display
        if display is not None and not entry.change.deleted and folded(display).startswith(prefix):
            yield name
    index = indexes.displays(catalog.bundle.item_ids)
    if index is not None:
        yield from _of_bundle(catalog, index, prefix)


def _of_bundle(catalog: Catalog, index: PrefixIndex, prefix: str) -> Iterator[str]:
    entries = catalog.overlay.entries
    for position in index.found(prefix)[:MOST_LOOKED_AT]:
        (name,) = catalog.bundle.item_ids.names_of(index.order[position : position + 1])
        if name not in entries or not entries[name].change.deleted:
            yield name
