"""A bundle and its upserts as the next bundle: same weights and encoders, rows appended, no dataset needed.

Deletes stay in the overlay: histories and what users have seen name rows, so a deleted item keeps its row in the bundle
and the store's record of the delete keeps hiding it, until an export from a dataset that does not have the item.
"""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from functools import partial
from typing import cast

import numpy as np
import torch
from safetensors.torch import save_file

from limerank import __version__, files
from limerank.batch import Features
from limerank.errors import ConflictError
from limerank.ops.candidate import RowStore
from limerank.serve.bundles import bundle as bundles
from limerank.serve.bundles import item_stage
from limerank.serve.bundles.bundle import Bundle
from limerank.serve.bundles.ids import write_id_map
from limerank.serve.bundles.item_stage import ItemStage, RowType
from limerank.serve.bundles.store import BUNDLES, BundleStore
from limerank.serve.catalog import Catalog
from limerank.serve.overlay.live import LiveCatalog
from limerank.serve.overlay.view import NOWHERE
from limerank.serve.threads.workers import Workers

KEPT = (bundles.WEIGHTS, bundles.ENCODERS, bundles.USERS, bundles.SEEN, bundles.USER_IDS)


def fold(store: BundleStore) -> Bundle:
    """Publish the active bundle with the upserts of now in it; it is verified but not yet active."""
    catalog = LiveCatalog(store.open_bundle()).current()
    bundle, overlay = catalog.bundle, catalog.overlay
    if overlay.table is None or not len(overlay.served[0]):
        raise ConflictError(f"{store.path}: bundle {bundle.manifest.id} holds every upsert already; nothing to fold")
    manifest, created = bundle.manifest, datetime.now(UTC)
    items, rows = _items_and_rows(catalog, overlay.table)
    fingerprint = bundles.row_fingerprint(bundle.ranker, items.first(len(rows)))
    identity = files.digest_of(fingerprint, manifest.id)
    bundle_id = f"{created:%Y%m%d-%H%M%S}{created.microsecond // 1000:03}-{identity[:8]}"
    final = store.path / BUNDLES / bundle_id
    with files.full_disk_named(store.path), files.staged_directory(final, marker=bundles.MANIFEST) as staging:
        for name in (*KEPT, *([bundles.REPORT] if manifest.has_report else [])):
            shutil.copy(bundle.path / name, staging / name)
        save_file(rows.tensors(), staging / bundles.ROWS, {"fingerprint": fingerprint})
        save_file(bundles.tensors_of(items), staging / bundles.ITEMS)
        save_file(_histories(catalog), staging / bundles.HISTORIES)
        names = ["", *catalog.names_of_rows(_order(catalog)[1:])]
        shown = None if manifest.display is None else ["", *catalog.displays_of(names[1:])]
        write_id_map(staging / bundles.ITEM_IDS, names, shown)
        folded = manifest.model_copy(
            update={
                "format": bundles.FORMAT,
                "id": bundle_id,
                "created_at": created.isoformat(timespec="seconds"),
                "limerank": __version__,
                "items": len(rows),
                "row_fingerprint": fingerprint,
                "files": files.record_files(staging),
            }
        )
        files.write_json(staging / bundles.MANIFEST, folded.model_dump(mode="json"))
    return store.open_bundle(bundle_id)


def _order(catalog: Catalog) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The row of the catalog that each row of the new bundle is: the bundle's own, then new items that are there."""
    own, first_new = catalog.bundle.manifest.items, catalog.overlay.first_new_row
    new = np.arange(first_new, first_new + len(catalog.overlay.new_items))
    return np.concatenate([np.arange(own), np.setdiff1d(new, catalog.overlay.absent)])


def _items_and_rows(catalog: Catalog, table: Features) -> tuple[Features, RowStore]:
    """Encoded features and item rows in the new order, replaced ones replaced; behind the features stays what
    ready-made histories know of other items.

    Rows of upserts are computed as an export does, to the last bit, for the next one copies them.
    """
    bundle, order = catalog.bundle, _order(catalog)
    stage = ItemStage(bundle.ranker, table, cast(RowType, bundle.manifest.row_type))
    numbers, size = np.arange(len(table)), item_stage.ITEMS_PER_BLOCK
    with Workers() as workers:
        rows = workers.deal([partial(stage.block, numbers[i : i + size]) for i in range(0, len(numbers), size)])
    slots, others = catalog.overlay.slots_of(order), np.arange(bundle.manifest.items, len(bundle.item_table))
    in_table = np.where(slots == NOWHERE, order, len(bundle.item_table) + slots)
    in_rows = np.where(slots == NOWHERE, order, len(bundle.rows) + slots)
    joined = bundle.item_table.followed_by(table).take(torch.from_numpy(np.concatenate([in_table, others])))
    return joined, RowStore.joined([bundle.rows, *rows]).chosen(torch.from_numpy(in_rows))


def _histories(catalog: Catalog) -> dict[str, torch.Tensor]:
    """The bundle's histories; items that are not in the catalog stand behind it, so they move back."""
    histories, own = catalog.bundle.histories, catalog.bundle.manifest.items
    added = len(_order(catalog)) - own
    item = histories["item"]
    return {**histories, "item": torch.where(item >= own, item + added, item)}
