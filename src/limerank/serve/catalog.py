"""The catalog as requests see it: item ids to rows and back, rows to score, and what a user has seen.

Row 0 stands for every item that is not in the catalog. A catalog is a bundle and what changed since
(`serve/overlay`), at one time: a request takes one catalog and keeps it, whatever is upserted meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from limerank.batch import Features
from limerank.data.store.manifest import UNKNOWN_ROW
from limerank.ops.candidate import RowStore
from limerank.serve.bundles.bundle import Bundle
from limerank.serve.overlay.changes import Change
from limerank.serve.overlay.items import ItemReader
from limerank.serve.overlay.view import NOWHERE, OverlayView
from limerank.serve.scorer import Scored, ScoringPath
from limerank.times import iso_time

FIRST_ITEM_ROW = UNKNOWN_ROW + 1
Rows = NDArray[np.int64]
NONE = np.zeros(0, dtype=np.int64)
FEW = 8  # ids that are found faster one by one


@dataclass(frozen=True)
class CandidatePart:
    """Candidates that stand in one store of rows: those that `index` names, or all of it."""

    store: RowStore
    index: torch.Tensor | None
    keys: Rows | None
    """What each candidate is called in the answer, ascending; None: its position in the store, from FIRST_ITEM_ROW."""
    hidden: Rows = field(default_factory=lambda: NONE)
    """Keys that are scored with the others and then left out."""
    of_bundle: bool = True
    """Whether the store is the bundle's, for which more may have been prepared than for a handful of new rows."""

    def __len__(self) -> int:
        return len(self.store) if self.index is None else len(self.index)

    def shown_behind(self, position: int) -> int:
        """How many candidates from a position on are not left out in any case."""
        behind = len(self) - position
        if not behind or not len(self.hidden):
            return behind
        return behind - int(np.isin(self.keys_of(np.arange(position, len(self))), self.hidden).sum())

    def keys_of(self, positions: Rows) -> Rows:
        """The keys of candidates by their position in this part."""
        return positions + FIRST_ITEM_ROW if self.keys is None else self.keys[positions]


@dataclass(frozen=True)
class ItemStatus:
    """Where an item's row comes from, and how old it is."""

    item_id: str
    source: Literal["bundle", "overlay", "deleted", "unfit", "unknown"]
    """`unfit`: upserted, but this bundle cannot serve that; it serves its own row of the item, if it has one."""
    changed_at: str | None
    """When the item was last upserted or deleted, UTC; None if it never was since the store was made."""
    computed_at: str | None
    """As of when the features are that its row was computed from: its upsert, or the export of the bundle."""
    bundle: str
    """The bundle whose item stage computed the row."""
    row_fingerprint: str
    note: str = ""


class Catalog:
    """The items of one bundle with the changes of one time."""

    def __init__(self, bundle: Bundle, overlay: OverlayView | None = None) -> None:
        self.bundle = bundle
        self.overlay = overlay if overlay is not None else OverlayView(bundle, ItemReader(bundle))

    def __len__(self) -> int:
        """How many items there are."""
        return self.overlay.items

    def rows_of(self, item_ids: Sequence[str], *, deleted: bool = False) -> Rows:
        """The row of each item, 0 for those that are not in the catalog; with `deleted`, of those that were, too."""
        ids, overlay = self.bundle.item_ids, self.overlay
        few = len(item_ids) <= FEW
        rows = np.array([ids.row_of(item) for item in item_ids], dtype=np.int64) if few else ids.rows_of(item_ids)
        if not overlay.entries:
            return rows
        if overlay.new_items:
            for position in np.flatnonzero(rows == UNKNOWN_ROW).tolist():
                entry = overlay.entries.get(item_ids[position])
                rows[position] = UNKNOWN_ROW if entry is None else entry.row
        if not deleted and len(overlay.absent):
            rows[np.isin(rows, overlay.absent)] = UNKNOWN_ROW
        return rows

    def parts(self, rows: Rows | None, without: Rows = NONE) -> list[CandidatePart]:
        """The candidates by store: rows by their position in the list, or every item, by row, without some.

        Where two candidates score alike, the one of the smaller key stands first, as if there were one store.
        """
        bundle, overlay = self.bundle.rows, self.overlay
        if rows is None:
            hidden = np.union1d(overlay.hidden, without) if len(overlay.hidden) else without
            everything = CandidatePart(
                bundle.behind(FIRST_ITEM_ROW), None, None, hidden[hidden < self.bundle.manifest.items]
            )
            served, their_slots = overlay.served
            wanted = ~np.isin(served, without)
            return [everything, *self._changed(their_slots[wanted], served[wanted])]
        slots = overlay.slots_of(rows) if overlay.entries else None
        if slots is None or (slots == NOWHERE).all():
            return [CandidatePart(bundle, torch.from_numpy(rows), np.arange(len(rows)))]
        own_keys, changed_keys = np.flatnonzero(slots == NOWHERE), np.flatnonzero(slots != NOWHERE)
        own = CandidatePart(bundle, torch.from_numpy(rows[own_keys]), own_keys)
        return [own, *self._changed(slots[changed_keys], changed_keys)]

    def _changed(self, slots: Rows, keys: Rows) -> list[CandidatePart]:
        if self.overlay.rows is None or not len(slots):
            return []
        return [CandidatePart(self.overlay.rows, torch.from_numpy(slots), keys, of_bundle=False)]

    def without_deleted(self, item_ids: Sequence[str]) -> list[str]:
        """Items that were not deleted; those that were never known stay."""
        entries = self.overlay.entries
        return [item for item in item_ids if item not in entries or not entries[item].change.deleted]

    def widened(self, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows and head parts in fp32, in the order asked for."""
        parts = self.parts(rows)
        wide = [part.store.widened(part.index) for part in parts]
        back = torch.from_numpy(np.concatenate([part.keys_of(np.arange(len(part))) for part in parts]).argsort())
        return torch.cat([rows for rows, _ in wide])[back], torch.cat([heads for _, heads in wide])[back]

    def names_of_rows(self, rows: Rows) -> list[str]:
        """The ids of items by row."""
        first_new = self.overlay.first_new_row
        if not self.overlay.new_items:
            return self.bundle.item_ids.names_of(rows)
        names = self.bundle.item_ids.names_of(np.where(rows < first_new, rows, UNKNOWN_ROW))
        for position in np.flatnonzero(rows >= first_new).tolist():
            names[position] = self.overlay.new_items[int(rows[position]) - first_new]
        return names

    def displays_of(self, item_ids: Sequence[str]) -> list[str | None]:
        """What people call items; None where neither the log nor an upsert says."""
        displays = self.bundle.item_ids.displays_of(self.bundle.item_ids.rows_of(item_ids))
        if self.overlay.entries:
            for position, item in enumerate(item_ids):
                entry = self.overlay.entries.get(item)
                if entry is not None and entry.change.display is not None:
                    displays[position] = entry.change.display
        return displays

    def held_changes(self) -> list[Change]:
        """Upserts that change nothing: the bundle has the item with these features, and is told no other display."""
        upserts = [
            entry.change
            for entry in self.overlay.entries.values()
            if entry.slot == NOWHERE and entry.unfit is None and not entry.change.deleted
        ]
        own = self.bundle.item_ids.displays_of(self.bundle.item_ids.rows_of([one.item_id for one in upserts]))
        shown = self.bundle.manifest.display is not None
        return [
            one
            for one, display in zip(upserts, own, strict=True)
            if not shown or one.display is None or one.display == display
        ]

    def history_features(self, rows: Rows) -> tuple[Features, Rows]:
        """A table of item features, and where in it the items of a history stand; deleted ones keep theirs."""
        return (self.bundle.item_table, rows) if not self.overlay.entries else self.overlay.features_of(rows)

    def reading_version(self, rows: Rows) -> str | None:
        """What the features of a history's items depend on; None where a row is not as the bundle has it.

        The bundle's id, unless the history names new items: then also which versions of those there are.
        """
        overlay, own = self.overlay, self.bundle.manifest.id
        first_new = overlay.first_new_row
        if overlay.replaces and (overlay.slots_of(rows[rows < first_new]) != NOWHERE).any():
            return None
        return f"{own}/{overlay.token}/{overlay.generation}" if len(rows) and rows.max() >= first_new else own

    def seen_rows(self, user_id: str | None, item_ids: Sequence[str], more: Rows = NONE) -> Rows:
        """The distinct rows of the catalog's items that a user has events with, ascending.

        Those are what the bundle knows of the user (None: nothing), items by name, and more by row.
        """
        exported = NONE
        if user_id is not None:
            user, offsets = self.bundle.user_ids.row_of(user_id), self.bundle.seen["offsets"]
            exported = self.bundle.seen["item"][int(offsets[user]) : int(offsets[user + 1])].numpy()
        new = np.concatenate([self.rows_of(item_ids), more])
        seen = np.union1d(exported, new[new != UNKNOWN_ROW]).astype(np.int64)
        return seen if not len(self.overlay.absent) else np.setdiff1d(seen, self.overlay.absent)

    def status(self, item_ids: Sequence[str]) -> list[ItemStatus]:
        """Where each item's row comes from, and how old it is."""
        known = self.bundle.item_ids.rows_of(item_ids) != UNKNOWN_ROW
        return [self._status(item, bool(one)) for item, one in zip(item_ids, known, strict=True)]

    def _status(self, item: str, in_bundle: bool) -> ItemStatus:
        manifest, entry = self.bundle.manifest, self.overlay.entries.get(item)
        changed_at = None if entry is None else iso_time(entry.change.time)
        source: Literal["bundle", "overlay", "deleted", "unfit", "unknown"] = "bundle" if in_bundle else "unknown"
        computed_at = manifest.created_at if in_bundle else None
        if entry is not None and entry.change.deleted:
            source, computed_at = "deleted", None
        elif entry is not None and entry.unfit is not None:
            source = "unfit"
        elif entry is not None and entry.slot != NOWHERE:
            source, computed_at = "overlay", changed_at
        note = (entry.unfit or "") if entry is not None else ""
        return ItemStatus(item, source, changed_at, computed_at, manifest.id, manifest.row_fingerprint, note)


@dataclass(frozen=True)
class Best:
    """The best candidates of all parts, best first: keys, probabilities of all tasks, and how they were found."""

    keys: Rows
    values: NDArray[np.float32]
    path: ScoringPath
    rescored: int
    fell_back: bool


def best_of(parts: Sequence[CandidatePart], k: int, search: Callable[[CandidatePart, int], Scored]) -> Best:
    """The `k` best of several parts; `search` gives those of one, and of equal ones the smaller key comes first."""
    keys, scores, values = [], [], []
    found_by = [search(part, k + len(part.hidden)) for part in parts]
    main = found_by[0]  # the bundle's part
    for part, scored in zip(parts, found_by, strict=True):
        top = scored.top
        found = part.keys_of(top.positions.numpy())
        kept = np.flatnonzero(~np.isin(found, part.hidden))[:k] if len(part.hidden) else np.arange(len(found))
        keys.append(found[kept])
        scores.append(top.scores.numpy()[kept])
        values.append(top.values.numpy()[kept])
    if len(parts) == 1:
        return Best(keys[0], values[0], main.path, main.rescored, main.fell_back)
    merged = np.concatenate(keys)
    order = np.lexsort((merged, -np.concatenate(scores)))[:k]
    return Best(merged[order], np.concatenate(values)[order], main.path, main.rescored, main.fell_back)


def scattered(parts: Sequence[CandidatePart], score: Callable[[CandidatePart], torch.Tensor]) -> NDArray[np.float32]:
    """The scores [candidates, tasks] of several parts, by ascending key."""
    keys, scores = [], []
    for part in parts:
        found, values = part.keys_of(np.arange(len(part))), score(part).numpy()
        kept = ~np.isin(found, part.hidden)
        keys.append(found[kept])
        scores.append(values[kept])
    if len(parts) == 1:
        return scores[0]
    ordered: NDArray[np.float32] = np.concatenate(scores)[np.concatenate(keys).argsort(kind="stable")]
    return ordered
