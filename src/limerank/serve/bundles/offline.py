"""The offline item stage: item rows for the whole catalog, published as a bundle.

Paper, "Offline Item-Side Pre-computation". A row is what the interaction needs of an item (for LIME the H * l attention
weights) and the item's head part, what it adds to the head's first layer.

Memory is needed for the weights, for some numbers per item and user, and for one shard of rows per thread; where a
fleet computes (`limerank.serve.bundles.on_ray`), for the shards that are under way.
"""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Required, TypedDict, Unpack

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
from limerank.serve.bundles.earlier import EarlierRows, earlier_rows
from limerank.serve.bundles.ids import IdMap, write_id_map
from limerank.serve.bundles.item_stage import ItemStage, RowType, compute_rows
from limerank.serve.bundles.row_writer import Fleet, RowWriter
from limerank.serve.bundles.store import BUNDLES, BundleStore
from limerank.serve.bundles.tables import write_features, write_histories, write_seen
from limerank.serve.bundles.tensor_file import TensorFile
from limerank.serve.bundles.unfinished import unfinished_export
from limerank.serve.threads.workers import Workers

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


class ExportOptions(TypedDict, total=False):
    """How to export: the same for all who do."""

    max_history: Required[int]
    """Events of each user that the bundle holds at most, the newest."""
    row_type: RowType
    metrics: dict[str, Any] | None
    """What the run scored, for the manifest."""
    progress: Progress | None
    threads: int | None
    """Threads that compute rows; as many as there are cores unless told otherwise."""
    deal: Deal | None
    """Who computes rows instead, on one thread each; their bytes depend on neither."""
    fleet: Fleet | None
    """Other processes that compute rows instead, each on one thread; their bytes are those of this machine."""
    report: Path | None
    """The page of the run, which the bundle brings along for people."""


def export(
    ranker: Ranker, model: dict[str, Any], dataset: StoredDataset, store: Path, **options: Unpack[ExportOptions]
) -> Bundle:
    """Compute item rows and publish a bundle; it is verified but not yet active."""
    return export_bundle(ranker, model, dataset, store, **options).bundle


def export_bundle(
    ranker: Ranker, model: dict[str, Any], dataset: StoredDataset, store: Path, **options: Unpack[ExportOptions]
) -> Exported:
    """The same, and tells what it took. An export that was interrupted is gone on with by the same one."""
    max_history, row_type = options["max_history"], options.get("row_type", "fp16")
    started, progress = time.perf_counter(), options.get("progress") or Progress(quiet=True)
    model = complete_model(model, "model")
    weights = {name: value.contiguous() for name, value in ranker.state_dict().items()}
    identity = files.digest_of(
        *(bundles.FORMAT, __version__, torch.__version__, dataset.fingerprint, json.dumps(model), row_type),
        *map(str, (max_history, item_stage.ITEMS_PER_BLOCK, item_stage.ITEMS_PER_SHARD)),
        *(part for name in sorted(weights) for part in (name, bundles.bytes_of(weights[name]))),
    )
    again = ("free some, then export again", "no bundle was made, but whole shards of item rows were kept")
    with files.full_disk_named(store, *again), unfinished_export(store, identity) as unfinished:
        folder, count = unfinished.files, dataset.manifest.table_rows["items"]
        save_file(weights, folder / bundles.WEIGHTS)
        _write_tables(folder, dataset, max_history)
        all_items = bundles.features_of(bundles.load_tensors(folder / bundles.ITEMS))  # mapped, not in memory
        stage = ItemStage(ranker, all_items.first(count), row_type)
        fingerprint = bundles.row_fingerprint(ranker, stage.items)
        with (
            Workers(options.get("threads")) as workers,
            TensorFile.opened(folder / bundles.ROWS, stage.layouts(), {"fingerprint": fingerprint}) as file,
            progress.bar("item rows", count) as bar,
        ):
            deal = options.get("deal") or workers.deal
            earlier = _earlier_rows(store, stage, dataset, IdMap(bundles.load_tensors(folder / bundles.ITEM_IDS)), deal)
            writer, fleet = RowWriter(file, stage, unfinished, earlier, bar), options.get("fleet")
            if fleet is None:
                written = writer.write(deal)
            else:
                (made,) = deal([stage.sample_hash])
                written = writer.write_from(fleet, made)
        report = options.get("report")
        if report is not None:
            shutil.copyfile(report, folder / bundles.REPORT)
        created = datetime.now(UTC)
        manifest = BundleManifest(
            format=bundles.FORMAT,
            id=f"{created:%Y%m%d-%H%M%S}{created.microsecond // 1000:03}-{identity[:8]}",
            created_at=created.isoformat(timespec="seconds"),
            limerank=__version__,
            model=model,
            tasks=[task.name for task in dataset.schema.tasks],
            items=count,
            users=dataset.manifest.table_rows["users"],
            history_items=len(all_items) - count,
            row_type=row_type,
            row_bytes=sum(layout.row_bytes for layout in file.tensors.values()),
            row_fingerprint=fingerprint,
            data_fingerprint=dataset.fingerprint,
            watermark=dataset.manifest.last_time,
            max_history=min(max_history, dataset.schema.max_history or max_history),
            metrics=options.get("metrics") or {},
            display=dataset.schema.display,
            files=files.record_files(folder),
        )
        files.write_json(folder / bundles.MANIFEST, manifest.model_dump(mode="json"))
        unfinished.publish(store / BUNDLES / manifest.id)
    bundle = Bundle.open(store / BUNDLES / manifest.id, hashes=False)  # they were taken from these files just now
    return Exported(bundle, written.copied, written.kept, time.perf_counter() - started)


def _earlier_rows(
    store: Path, stage: ItemStage, dataset: StoredDataset, item_ids: IdMap, deal: Deal
) -> EarlierRows | None:
    """Rows that can be copied, if those who compute would make the same."""
    found = earlier_rows(BundleStore(store), stage.ranker, dataset.encoders, stage.row_type, item_ids, stage.items)
    return found if found is not None and all(deal([partial(stage.makes, found)])) else None


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
