"""What is in a prepared dataset: facts, sizes and checks."""

from __future__ import annotations

from typing import Any

import numpy as np

from limerank.batch import Features
from limerank.data.describe.checks import Level, run_checks
from limerank.data.describe.labels import TaskLabels, count_labels
from limerank.data.store.dataset import StoredDataset
from limerank.data.store.history import UNLIMITED, HistoryIndex
from limerank.schema import Role
from limerank.splits import Part

PADDED_HISTORY = 256


def describe(dataset: StoredDataset) -> dict[str, Any]:
    """Counts, label rates and history lengths per part, the features with their sizes, bytes, and the checks."""
    counts = dataset.manifest.counts
    checks = run_checks(dataset)
    labels = count_labels(dataset)
    return {
        "fingerprint": dataset.fingerprint,
        "origin": dataset.manifest.origin,
        "events": counts["events"],
        "requests": counts["requests"],
        "users": counts["users"],
        "items": counts["items"],
        "dropped": dataset.manifest.dropped,
        "segments": len(dataset.segments),
        "tasks": [task.name for task in dataset.schema.tasks],
        "split": dataset.schema.split.model_dump(mode="json"),
        "bytes": _bytes(dataset),
        "parts": {part.value: _describe_part(dataset, part, labels) for part in Part},
        "features": [
            {"name": encoder.name, "role": role.value, "kind": encoder.kind.value, "indices": encoder.size}
            for role in Role
            for encoder in dataset.encoders.of(role)
        ],
        "checks": [{"level": c.level.value, "check": c.name, "text": c.text, "values": c.values} for c in checks],
        "worst": max((c.level for c in checks), key=list(Level).index).value,
    }


def _bytes(dataset: StoredDataset) -> dict[str, Any]:
    """On disk, in memory (tables that are loaded; columns are mapped), and what padded histories per row would take."""
    counts = dataset.manifest.counts
    events = sum(r.bytes for r in dataset.manifest.files if "/events/" in r.path or "/requests/" in r.path)
    history_features = len(dataset.encoders.item) + len(dataset.encoders.event)
    return {
        "disk": sum(record.bytes for record in dataset.manifest.files),
        "per_event": round(events / max(1, counts["events"]), 2),
        "memory": _table_bytes(dataset.item_table) + _table_bytes(dataset.user_table),
        "padded_per_event": PADDED_HISTORY * history_features * 8,
    }


def _table_bytes(table: Features) -> int:
    tensors = [table.indices, *table.vectors, *(t for jagged in table.lists for t in (jagged.values, jagged.offsets))]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _describe_part(dataset: StoredDataset, part: Part, labels: list[TaskLabels]) -> dict[str, Any]:
    requests = dataset.requests_in(part)
    start = dataset.column("requests/start").astype(np.int64)
    inside = np.repeat(np.asarray(dataset.column("requests/part")) == part.code, np.diff(start))
    lengths = HistoryIndex(dataset).lengths(requests, UNLIMITED)
    return {
        "requests": len(requests),
        "candidates": int(inside.sum()),
        "history_median": int(np.median(lengths)) if len(lengths) else 0,
        "history_p95": int(np.percentile(lengths, 95)) if len(lengths) else 0,
        "rates": {task.task: task.parts[part].rate if part in task.parts else 0.0 for task in labels},
        "missing_labels": {task.task: task.parts[part].missing if part in task.parts else 0 for task in labels},
    }
