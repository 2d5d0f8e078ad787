"""What a dataset says, request by request, in external ids: two datasets with equal snapshots train the same."""

from __future__ import annotations

from typing import Any

import numpy as np

from limerank.data.batches import RequestLoader
from limerank.data.store.dataset import StoredDataset
from limerank.splits import NO_PART, Part


def snapshot(dataset: StoredDataset, max_history: int = 1000) -> list[Any]:
    """Per request, sorted: user, time, part, context, user features, candidates with labels, and the history."""
    loader = RequestLoader(dataset, Part.TRAIN, batch_requests=1, max_history=max_history)
    start = dataset.column("requests/start").astype(np.int64)
    item, time = dataset.column("events/item"), dataset.column("events/time")
    parts = [*(part.value for part in Part), "none"]
    found = []
    for request in range(dataset.manifest.counts["requests"]):
        number = np.array([request])
        batch = loader.assemble(number)
        rows, _ = loader.history.rows(number, max_history)
        candidates = item[np.arange(start[request], start[request + 1])]
        labels = batch.labels.int().tolist()
        items = batch.candidates.items.take(batch.candidates.item_of_candidate)
        found.append(
            (
                dataset.user_ids[int(dataset.column("requests/user")[request])],
                int(time[start[request : request + 1]][0]),
                parts[min(int(dataset.column("requests/part")[request]), NO_PART)],
                batch.inputs.context.indices.tolist(),
                batch.inputs.users.indices.tolist(),
                sorted(
                    zip([dataset.item_ids[int(i)] for i in candidates], labels, items.indices.tolist(), strict=True)
                ),
                [dataset.item_ids[int(i)] for i in rows.take(loader.history.item)],
                batch.inputs.history.events.indices.tolist(),
                time[rows.rows].tolist(),
            )
        )
    return sorted(found)
