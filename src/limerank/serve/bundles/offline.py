"""The offline item stage: item rows for the whole catalog, published as a bundle.

Paper, "Offline Item-Side Pre-computation". A row is what the interaction needs of an item (for LIME the H * l attention
weights) and the item's head part, what it adds to the head's first layer.

Memory is needed for the weights, for some numbers per item and user, and for one shard of rows per thread.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from limerank import __version__, files
from limerank.data.store.dataset import StoredDataset
from limerank.models import Ranker, complete_model
from limerank.ops.dealing import Deal
from limerank.progress import Progress
from limerank.schema import Role
from limerank.serve.bundles import bundle as bundles
from limerank.serve.bundles import item_stage
from limerank.serve.bundles.bundle import Bundle, BundleManifest
from limerank.serve.bundles.earlier import earlier_rows
from limerank.serve.bundles.ids import write_id_map
from limerank.serve.bundles.item_stage import ItemStage, RowType, RowWriter, compute_rows, working_threads
from limerank.serve.bundles.store import BUNDLES, BundleStore
from limerank.serve.bundles.tables import write_features, write_histories, write_seen
from limerank.serve.bundles.tensor_file import TensorFile
from limerank.serve.bundles.unfinished import unfinished_export

__all__ = ["Exported", "RowType", "compute_rows", "export", "export_bundle"]


@dataclass(frozen=True)
class Exported:
    """A bundle that was published, and what it took."""

    bundle: Bundle
    copied: int
    """Item rows from an earlier bundle: of items that have the features they had, made by the same weights."""
    kept: int
    """Item rows from an export that was interrupted."""
    seconds: float

    @property
    def bytes(self) -> int:
        """The size of the bundle."""
        return sum(record.bytes for record in self.bundle.manifest.files)

    @property
    def items_per_second(self) -> float:
        """Items of the bundle by the time it took."""
        return (self.bundle.manifest.items - 1) / self.seconds


def export(
    ranker: Ranker,
    model: dict[str, Any],
    dataset: StoredDataset,
    store: Path,
    *,
    max_history: int,
    row_type: RowType = "fp16",
    metrics: dict[str, Any] | None = None,
    progress: Progress | None = None,
) -> Bundle:
    """Compute item rows and publish a bundle; it is verified but not yet active."""
    told = export_bundle(
        ranker,
        model,
        dataset,
        store,
        max_history=max_history,
        row_type=row_type,
        metrics=metrics,
        progress=progress,
    )
    return told.bundle


def export_bundle(
    ranker: Ranker,
    model: dict[str, Any],
    dataset: StoredDataset,
    store: Path,
    *,
    max_history: int,
    row_type: RowType = "fp16",
    metrics: dict[str, Any] | None = None,
    progress: Progress | None = None,
    deal: Deal | None = None,
    threads: int | None = None,
) -> Exported:
    """The same, and tells what it took.

    An export that was interrupted is gone on with where the same is exported again. Rows are computed by `threads`, as
    many as there are cores unless told otherwise, or by whom works are dealt to; they do not depend on that.
    """
    started, progress = time.perf_counter(), progress or Progress(quiet=True)
    model = complete_model(model, "model")
    weights = {name: value.contiguous() for name, value in ranker.state_dict().items()}
    identity = files.digest_of(
        *(bundles.FORMAT, __version__, torch.__version__, dataset.fingerprint, json.dumps(model), row_type),
        *map(str, (max_history, item_stage.ITEMS_PER_BLOCK, item_stage.ITEMS_PER_SHARD)),
        *(part for name in sorted(weights) for part in (name, bundles.bytes_of(weights[name]))),
    )
    with unfinished_export(store, identity) as unfinished:
        folder = unfinished.files
        save_file(weights, folder / bundles.WEIGHTS)
        _write_tables(folder, dataset, max_history)
        items = bundles.features_of(bundles.load_tensors(folder / bundles.ITEMS))
        count, history_items = dataset.manifest.table_rows["items"], len(items) - dataset.manifest.table_rows["items"]
        items = items.first(count)
        stage = ItemStage(ranker, items, row_type)
        fingerprint = bundles.row_fingerprint(ranker, items)
        layouts = stage.layouts()
        earlier = earlier_rows(
            BundleStore(store),
            ranker,
            dataset.encoders,
            row_type,
            bundles.load_id_map(folder / bundles.ITEM_IDS),
            items,
        )
        with (
            working_threads(threads) as own_deal,
            TensorFile.opened(folder / bundles.ROWS, layouts, {"fingerprint": fingerprint}) as file,
            progress.bar("item rows", count) as bar,
        ):
            if earlier is not None and not stage.makes(earlier):
                earlier = None
            written = RowWriter(file, stage, unfinished, earlier, bar).write(deal or own_deal)
        created = datetime.now(UTC)
        bundle_id = f"{created:%Y%m%d-%H%M%S}{created.microsecond // 1000:03}-{identity[:8]}"
        manifest = BundleManifest(
            format=bundles.FORMAT,
            id=bundle_id,
            created_at=created.isoformat(timespec="seconds"),
            limerank=__version__,
            model=model,
            tasks=[task.name for task in dataset.schema.tasks],
            items=count,
            users=dataset.manifest.table_rows["users"],
            history_items=history_items,
            row_type=row_type,
            row_bytes=sum(layout.row_bytes for layout in layouts.values()),
            row_fingerprint=fingerprint,
            data_fingerprint=dataset.fingerprint,
            watermark=dataset.manifest.last_time,
            max_history=min(max_history, dataset.schema.max_history or max_history),
            metrics=metrics or {},
            display=dataset.schema.display,
            files=files.record_files(folder),
        )
        files.write_json(folder / bundles.MANIFEST, manifest.model_dump(mode="json"))
        unfinished.publish(store / BUNDLES / bundle_id)
    bundle = BundleStore(store).open_bundle(bundle_id)
    return Exported(bundle, written.copied, written.kept, time.perf_counter() - started)


def _write_tables(folder: Path, dataset: StoredDataset, max_history: int) -> None:
    """All that the bundle holds of the dataset."""
    tables = ("items", "history_items") if dataset.has_history_items else ("items",)
    write_features(folder / bundles.ITEMS, dataset, Role.ITEM, *tables)
    write_features(folder / bundles.USERS, dataset, Role.USER, "users")
    write_histories(folder / bundles.HISTORIES, dataset, max_history)
    write_seen(folder / bundles.SEEN, dataset)
    write_id_map(folder / bundles.ITEM_IDS, dataset.item_ids, dataset.item_displays)
    write_id_map(folder / bundles.USER_IDS, dataset.user_ids)
    files.write_text(folder / bundles.ENCODERS, dataset.encoders.model_dump_json(indent=2) + "\n")
