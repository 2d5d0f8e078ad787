"""Rows that need not be computed again: those of an earlier bundle with the same item-side weights.

A row depends on the weights of the item side and on the item's encoded features, so an item that has the features it
had keeps its row. That the bytes are those of a computed row, on this machine, is tried with some items first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from limerank.batch import Features, Jagged
from limerank.data.store.encoders import Encoders
from limerank.data.store.manifest import UNKNOWN_ROW
from limerank.errors import BundleError
from limerank.models import Ranker
from limerank.ops.candidate import RowStore
from limerank.serve.bundles.bundle import FORMAT, WEIGHTS, Bundle, BundleManifest
from limerank.serve.bundles.ids import IdMap
from limerank.serve.bundles.store import BundleStore

Ints = NDArray[np.int64]
NONE = -1


@dataclass(frozen=True)
class EarlierRows:
    """The rows of a bundle, for items of a new catalog."""

    bundle: Bundle
    item_ids: IdMap
    """Of the new catalog."""
    items: Features
    """Of the new catalog."""

    def rows_of(self, first: int, last: int) -> Ints:
        """For each item from `first` up to `last` the row it had, or -1 if it is new or its features changed."""
        known, wanted = self.bundle.item_ids, self.item_ids.texts.part(first, last)
        features = self.items.part(first, last)
        count = self.bundle.manifest.items
        if last <= count and wanted.equals(known.texts.part(first, last)):
            rows, before = np.arange(first, last), self.bundle.item_table.part(first, last)
        else:
            rows = known.find(wanted)
            rows[(rows == UNKNOWN_ROW) & (np.arange(first, last) != UNKNOWN_ROW)] = NONE
            before = self.bundle.item_table.take(torch.from_numpy(rows.clip(min=0)))
        rows[~same_features(features, before)] = NONE
        return rows

    def chosen(self, rows: Ints) -> RowStore:
        """Rows as stored."""
        return self.bundle.rows.chosen(torch.from_numpy(rows))


def earlier_rows(
    store: BundleStore, ranker: Ranker, encoders: Encoders, row_type: str, item_ids: IdMap, items: Features
) -> EarlierRows | None:
    """The newest bundle that is whole and has the weights of this ranker's item side, if there is one."""
    manifests = [one for one in store.manifests().values() if isinstance(one, BundleManifest)]
    for one in reversed(manifests):
        if (one.format, one.row_type, one.model["name"]) != (FORMAT, row_type, ranker.name):
            continue
        if not _same_stored_weights(store, one, ranker):
            continue
        try:
            bundle = store.open_bundle(one.id)
        except BundleError:
            continue
        if same_item_side(bundle, ranker, encoders):
            return EarlierRows(bundle, item_ids, items)
    return None


def same_item_side(bundle: Bundle, ranker: Ranker, encoders: Encoders) -> bool:
    """Whether this ranker would make the bundle's rows of the bundle's items."""
    mine, theirs = ranker.item_side_parameters(), bundle.ranker.item_side_parameters()
    return (
        ranker.name == bundle.ranker.name
        and ranker.options == bundle.ranker.options
        and encoders.space().item == bundle.encoders.space().item
        and mine.keys() == theirs.keys()
        and all(torch.equal(tensor, theirs[name]) for name, tensor in mine.items())
    )


def same_features(these: Features, those: Features) -> NDArray[np.bool_]:
    """Whether the features of each row are those of the row beside it."""
    same = (these.indices == those.indices).all(1).numpy()
    for mine, theirs in zip(these.lists, those.lists, strict=True):
        same &= _same_lists(mine, theirs)
    for left, right in zip(these.vectors, those.vectors, strict=True):
        same &= (left == right).all(1).numpy()
    return same


def _same_lists(mine: Jagged, theirs: Jagged) -> NDArray[np.bool_]:
    """Whether each list is the one beside it."""
    same: NDArray[np.bool_] = (mine.offsets.diff() == theirs.offsets.diff()).numpy().copy()
    if not same.all():
        rows = torch.from_numpy(np.flatnonzero(same))
        mine, theirs = mine.take(rows), theirs.take(rows)
    differing = np.concatenate([[0], np.cumsum((mine.values != theirs.values).numpy())])
    offsets = mine.offsets.numpy()
    same[same] = differing[offsets[1:]] == differing[offsets[:-1]]
    return same


def _same_stored_weights(store: BundleStore, manifest: BundleManifest, ranker: Ranker) -> bool:
    """Whether the weights that a bundle's file holds for the item side are this ranker's; nothing is verified yet."""
    try:
        with safe_open(store.bundle_path(manifest.id) / WEIGHTS, framework="pt") as handle:
            held = set(handle.keys())
            mine = ranker.item_side_parameters()
            return all(torch.equal(tensor, handle.get_tensor(name)) for name, tensor in mine.items() if name in held)
    except (OSError, SafetensorError, BundleError):
        return False
