"""The offline item stage: item rows for the whole catalog, published as a bundle.

Paper, "Offline Item-Side Pre-computation". A row is what the interaction needs of an item (for LIME the H * l attention
weights) and the item's head part, what it adds to the head's first layer.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors.torch import save_file

from limerank import __version__, files
from limerank.batch import Features
from limerank.data.store.dataset import StoredDataset
from limerank.data.store.history import UNLIMITED, HistoryIndex
from limerank.models import Ranker, complete_model
from limerank.ops.candidate import RowStore
from limerank.progress import Progress
from limerank.serve.bundles import bundle as bundles
from limerank.serve.bundles.bundle import Bundle, BundleManifest
from limerank.serve.bundles.ids import write_id_map
from limerank.serve.bundles.store import BUNDLES, BundleStore

ITEMS_PER_BLOCK = 8192

RowType = Literal["fp16", "fp32", "u8"]
"""The precision of stored item rows."""


def compute_rows(
    ranker: Ranker, items: Features, row_type: RowType = "fp16", progress: Progress | None = None
) -> RowStore:
    """The rows of every item of a table, in blocks."""
    ranker.eval()
    blocks = []
    with torch.inference_mode(), (progress or Progress(quiet=True)).bar("item rows", len(items)) as bar:
        for start in range(0, len(items), ITEMS_PER_BLOCK):
            part = items.take(torch.arange(start, min(start + ITEMS_PER_BLOCK, len(items))))
            state = ranker.encode_items(part)
            blocks.append(RowStore.store(state.rows, state.head_part, row_type))
            bar.advance(len(part))
    return RowStore.joined(blocks)


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
    rows = compute_rows(ranker, dataset.item_table, row_type, progress)
    fingerprint = bundles.row_fingerprint(ranker, dataset.item_table)
    history_items = dataset.history_items
    all_items = dataset.item_table if history_items is None else dataset.item_table.followed_by(history_items)
    created = datetime.now(UTC)
    weights = {name: value.contiguous() for name, value in ranker.state_dict().items()}
    identity = files.digest_of(
        fingerprint, dataset.fingerprint, row_type, *(_bytes(weights[n]) for n in sorted(weights))
    )
    bundle_id = f"{created:%Y%m%d-%H%M%S}{created.microsecond // 1000:03}-{identity[:8]}"
    final = store / BUNDLES / bundle_id
    with files.staged_directory(final, marker=bundles.MANIFEST) as staging:
        save_file(weights, staging / bundles.WEIGHTS)
        save_file(rows.tensors(), staging / bundles.ROWS, {"fingerprint": fingerprint})
        save_file(bundles.tensors_of(all_items), staging / bundles.ITEMS)
        save_file(bundles.tensors_of(dataset.user_table), staging / bundles.USERS)
        save_file(_histories(dataset, max_history), staging / bundles.HISTORIES)
        save_file(_seen(dataset), staging / bundles.SEEN)
        displays = dataset.item_displays
        shown = None if displays is None else displays.to_list()
        write_id_map(staging / bundles.ITEM_IDS, dataset.item_ids.to_list(), shown)
        write_id_map(staging / bundles.USER_IDS, dataset.user_ids.to_list())
        files.write_json(staging / bundles.ENCODERS, dataset.encoders.model_dump(mode="json"))
        manifest = BundleManifest(
            format=bundles.FORMAT,
            id=bundle_id,
            created_at=created.isoformat(timespec="seconds"),
            limerank=__version__,
            model=complete_model(model, "model"),
            tasks=[task.name for task in dataset.schema.tasks],
            items=len(rows),
            users=len(dataset.user_table),
            history_items=len(all_items) - len(rows),
            row_type=row_type,
            row_bytes=rows.row_bytes,
            row_fingerprint=fingerprint,
            data_fingerprint=dataset.fingerprint,
            watermark=dataset.manifest.last_time,
            max_history=min(max_history, dataset.schema.max_history or max_history),
            metrics=metrics or {},
            display=dataset.schema.display,
            files=files.record_files(staging),
        )
        files.write_json(staging / bundles.MANIFEST, manifest.model_dump(mode="json"))
    return BundleStore(store).open_bundle(bundle_id)


def _histories(dataset: StoredDataset, max_history: int) -> dict[str, torch.Tensor]:
    """The last events of every user, flat, oldest first; items that are not in the catalog stand behind it.

    Ready-made histories have no `times`.
    """
    history = HistoryIndex(dataset)
    rows, offsets = history.rows_of_users(max_history)
    events = [rows.take(column).astype(np.int32) for column in history.events]
    stacked = np.stack(events, axis=1) if events else np.zeros((len(rows), 0), dtype=np.int32)
    behind = 0 if dataset.history_items is None else len(dataset.item_table)
    times = {} if history.time is None else {"times": torch.from_numpy(rows.take(history.time))}
    return {
        "offsets": torch.from_numpy(offsets.copy()),
        "item": torch.from_numpy(rows.take(history.item).astype(np.int32) + behind),
        "events": torch.from_numpy(stacked),
        **times,
    }


def _seen(dataset: StoredDataset) -> dict[str, torch.Tensor]:
    """The distinct catalog items that each user ever had an event with; of ready-made histories, in the latest one."""
    users, items = (dataset.manifest.table_rows[table] for table in ("users", "items"))
    if dataset.schema.histories is None:
        user = np.repeat(dataset.column("requests/user").astype(np.int64), np.diff(dataset.column("requests/start")))
        item = np.asarray(dataset.column("events/item")).astype(np.int64)
    elif dataset.history_items is None:
        history = HistoryIndex(dataset)
        rows, offsets = history.rows_of_users(UNLIMITED)
        user, item = np.repeat(np.arange(users), np.diff(offsets)), rows.take(history.item).astype(np.int64)
    else:
        user, item = np.zeros((2, 0), dtype=np.int64)
    pairs = np.unique(user * items + item)
    return {
        "offsets": torch.from_numpy(np.searchsorted(pairs, np.arange(users + 1) * items)),
        "item": torch.from_numpy((pairs % items).astype(np.int32)),
    }


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.numpy().tobytes()
