"""The changes of a store as one bundle serves them: features encoded and item rows computed by the bundle itself.

Rows of the catalog are numbered as if the bundle had been exported anew: an item that the bundle knows keeps its row,
and new items stand behind all rows of the bundle, in the order in which they were first upserted. A view never changes;
the next one takes over what it has computed, so that only changed items are computed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast
from uuid import uuid4

import numpy as np
import torch
from numpy.typing import NDArray

from limerank.batch import Features
from limerank.data.store.manifest import UNKNOWN_ROW
from limerank.errors import LimerankError
from limerank.ops.candidate import RowStore
from limerank.serve.bundles.bundle import Bundle
from limerank.serve.bundles.earlier import same_features
from limerank.serve.bundles.item_stage import ItemStage, RowType
from limerank.serve.overlay.changes import Change
from limerank.serve.overlay.items import ItemReader

Rows = NDArray[np.int64]
ITEMS_PER_BLOCK = 64
"""Upserts are few. A block is always filled up, so that equal items have equal rows whichever they come with."""
NOWHERE = -1


@dataclass(frozen=True)
class Entry:
    """One changed item: its row in the catalog, and where its own features and item row stand."""

    row: int
    slot: int
    """In the overlay's tables; NOWHERE if nothing else is known of it than the bundle knows, or it is unfit."""
    change: Change
    unfit: str | None = None
    """Why this bundle cannot serve it, such as a vector of another width."""


@dataclass(frozen=True)
class OverlayView:
    """All changes at one time, for one bundle."""

    bundle: Bundle
    reader: ItemReader
    entries: dict[str, Entry] = field(default_factory=dict)
    new_items: tuple[str, ...] = ()
    """Ids that the bundle does not know, by row behind the bundle's."""
    table: Features | None = None
    """Encoded features by slot; slots of earlier versions stay until the overlay is read anew."""
    rows: RowStore | None = None
    """Item rows by slot, of the bundle's row type."""
    generation: int = 0
    """How often features of a new item were replaced, or new items numbered anew."""
    token: str = field(default_factory=lambda: uuid4().hex)
    """Of the first of a line of views, whose rows of new items mean the same in one generation."""

    @property
    def first_new_row(self) -> int:
        """New items stand behind everything that histories of the bundle can name."""
        return len(self.bundle.item_table)

    def updated(self, changes: Sequence[Change]) -> OverlayView:
        """The next view, with later changes."""
        entries = dict(self.entries)
        bundle_rows = self.bundle.item_ids.rows_of([change.item_id for change in changes]).tolist()
        new_items, generation = list(self.new_items), self.generation
        for change, bundle_row in zip(changes, bundle_rows, strict=True):
            before = entries.get(change.item_id)
            row = before.row if before is not None else bundle_row
            if row == UNKNOWN_ROW:
                row = self.first_new_row + len(new_items)
                new_items.append(change.item_id)
            elif row >= self.first_new_row and before is not None and before.change.features != change.features:
                generation += 1
            entries[change.item_id] = Entry(row, NOWHERE, change)
        view = replace(self, entries=entries, new_items=tuple(new_items), generation=generation)
        told = [entries[change.item_id] for change in changes if change.features is not None]
        return view._with_rows(told) if told else view

    def _with_rows(self, upserts: list[Entry]) -> OverlayView:
        """This view, whose entries are its own, with the features and item rows of some upserts."""
        fit = self._fit(upserts)
        upserts = [upsert for upsert in upserts if self.entries[upsert.change.item_id].unfit is None]
        if fit is None:
            return self
        table, rows = fit
        first = 0 if self.table is None else len(self.table)
        held = self._held(np.array([upsert.row for upsert in upserts]), table)
        for slot, upsert in enumerate(upserts, first):
            self.entries[upsert.change.item_id] = replace(upsert, slot=NOWHERE if held[slot - first] else slot)
        if self.table is None or self.rows is None:
            return replace(self, table=table, rows=rows)
        return replace(self, table=self.table.followed_by(table), rows=RowStore.joined([self.rows, rows]))

    def _held(self, rows: Rows, table: Features) -> NDArray[np.bool_]:
        """Whether the bundle has each row with the very features that a table has of it."""
        known = rows < self.bundle.manifest.items
        theirs = self.bundle.item_table.take(torch.from_numpy(np.where(known, rows, UNKNOWN_ROW)))
        return known & same_features(table, theirs)

    def _fit(self, upserts: list[Entry]) -> tuple[Features, RowStore] | None:
        """Features and rows of all upserts that this bundle can serve; the entries of others say why it cannot."""
        if not upserts:
            return None
        try:
            items = [(upsert.change.item_id, upsert.change.features or {}) for upsert in upserts]
            return computed(self.bundle, self.reader, items)
        except LimerankError as unfit:
            if len(upserts) > 1:
                parts = [part for upsert in upserts if (part := self._fit([upsert])) is not None]
                if not parts:
                    return None
                table = parts[0][0]
                for one, _ in parts[1:]:
                    table = table.followed_by(one)
                return table, RowStore.joined([rows for _, rows in parts])
            (upsert,) = upserts
            item = upsert.change.item_id
            self.entries[item] = replace(upsert, unfit=str(unfit))
            logging.getLogger("limerank").warning(
                "item '%s': its upsert does not fit bundle %s (%s); upsert it again",
                item,
                self.bundle.manifest.id,
                unfit,
            )
            return None

    @cached_property
    def _arrays(self) -> tuple[Rows, Rows, NDArray[np.bool_]]:
        """Rows of all entries, ascending, their slots, and whether they are deleted, or new and unfit."""
        new = self.first_new_row
        listed = [
            (e.row, e.slot, e.change.deleted or (e.unfit is not None and e.row >= new)) for e in self.entries.values()
        ]
        rows, slots, gone = np.array(listed, dtype=np.int64).reshape(-1, 3).T
        order = rows.argsort()
        return rows[order], slots[order], gone[order].astype(bool)

    @cached_property
    def slot_of_row(self) -> tuple[Rows, Rows]:
        """Rows whose features are here, ascending, and their slots; deleted items are among them, for histories."""
        rows, slots, _ = self._arrays
        return rows[slots != NOWHERE], slots[slots != NOWHERE]

    @cached_property
    def replaces(self) -> bool:
        """Whether any row of the bundle has other features here."""
        told = self.slot_of_row[0]
        return bool(len(told)) and int(told[0]) < self.first_new_row

    @cached_property
    def served(self) -> tuple[Rows, Rows]:
        """Rows of items that are served from here, ascending, and their slots."""
        rows, slots, gone = self._arrays
        kept = (slots != NOWHERE) & ~gone
        return rows[kept], slots[kept]

    @cached_property
    def absent(self) -> Rows:
        """Rows of items that are not in the catalog, ascending: deleted, or new and unfit."""
        rows, _, gone = self._arrays
        return rows[gone]

    @cached_property
    def hidden(self) -> Rows:
        """Rows of the bundle that must not be served from it, ascending: deleted and replaced ones."""
        found = np.union1d(self.absent, self.slot_of_row[0])
        return found[found < self.bundle.manifest.items]

    @cached_property
    def items(self) -> int:
        """How many items the catalog has."""
        return self.bundle.manifest.items - 1 + len(self.new_items) - len(self.absent)

    def slots_of(self, rows: Rows) -> Rows:
        """The slot of each row, NOWHERE for those that are as the bundle has them."""
        told, slots = self.slot_of_row
        if not len(told):
            return np.full(len(rows), NOWHERE, dtype=np.int64)
        position = np.searchsorted(told, rows).clip(max=len(told) - 1)
        return np.where(told[position] == rows, slots[position], NOWHERE)

    def features_of(self, rows: Rows) -> tuple[Features, Rows]:
        """A table and the position in it of each row: the bundle's own, unless a row is one that was changed."""
        slots = self.slots_of(rows)
        changed = slots != NOWHERE
        rows = np.where(changed | (rows < self.first_new_row), rows, UNKNOWN_ROW)  # new, and unfit
        if self.table is None or not changed.any():
            return self.bundle.item_table, rows
        own, position = np.unique(rows[~changed], return_inverse=True)
        taken, own_position = np.unique(slots[changed], return_inverse=True)
        found = np.empty(len(rows), dtype=np.int64)
        found[~changed], found[changed] = position, len(own) + own_position
        table = self.bundle.item_table.take(torch.from_numpy(own))
        return table.followed_by(self.table.take(torch.from_numpy(taken))), found


def computed(
    bundle: Bundle, reader: ItemReader, items: Sequence[tuple[str, dict[str, Any]]]
) -> tuple[Features, RowStore]:
    """What the offline item stage of a bundle makes of ids and raw features: encoded ones, and rows of its type."""
    table = reader.encoded(items)
    stage = ItemStage(bundle.ranker, table, cast(RowType, bundle.manifest.row_type))
    blocks = np.split(np.arange(len(items)), range(ITEMS_PER_BLOCK, len(items), ITEMS_PER_BLOCK))
    return table, RowStore.joined([stage.block(block, ITEMS_PER_BLOCK) for block in blocks])
