"""What is in a prepared dataset: facts, sizes and checks."""

from __future__ import annotations

from typing import Any

import numpy as np

from limerank.batch import Features
from limerank.data.checks import Level, run_checks
from limerank.data.eventlog import UNKNOWN_ROW, EventLog
from limerank.data.history import UNLIMITED, HistoryIndex
from limerank.data.splits import Part
from limerank.schema import Role

PADDED_HISTORY = 256


def describe(log: EventLog) -> dict[str, Any]:
    """Counts, label rates and history lengths per part, the features with their sizes, bytes, and the checks."""
    counts = log.manifest.counts
    reserved = UNKNOWN_ROW + 1
    checks = run_checks(log)
    return {
        "fingerprint": log.fingerprint,
        "origin": log.manifest.origin,
        "events": counts["events"],
        "requests": counts["requests"],
        "users": counts["users"] - reserved,
        "items": counts["items"] - reserved,
        "dropped": log.manifest.dropped,
        "segments": len(log.segments),
        "tasks": [task.name for task in log.schema.tasks],
        "split": log.schema.split.model_dump(mode="json"),
        "bytes": _bytes(log),
        "parts": {part.value: _describe_part(log, part) for part in Part},
        "features": [
            {"name": encoder.name, "role": role.value, "kind": encoder.kind.value, "indices": encoder.size}
            for role in Role
            for encoder in log.encoders.of(role)
        ],
        "checks": [{"level": c.level.value, "check": c.name, "text": c.text, "values": c.values} for c in checks],
        "worst": max((c.level for c in checks), key=list(Level).index).value,
    }


def _bytes(log: EventLog) -> dict[str, Any]:
    """On disk, in memory (tables that are loaded; columns are mapped), and what padded histories per row would take."""
    counts = log.manifest.counts
    events = sum(r.bytes for r in log.manifest.files if "/events/" in r.path or "/requests/" in r.path)
    history_features = len(log.encoders.item) + len(log.encoders.event)
    return {
        "disk": sum(record.bytes for record in log.manifest.files),
        "per_event": round(events / max(1, counts["events"]), 2),
        "memory": _table_bytes(log.item_table) + _table_bytes(log.user_table),
        "padded_per_event": PADDED_HISTORY * history_features * 8,
    }


def _table_bytes(table: Features) -> int:
    tensors = [table.indices, *table.vectors, *(t for jagged in table.lists for t in (jagged.values, jagged.offsets))]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _describe_part(log: EventLog, part: Part) -> dict[str, Any]:
    requests = log.requests_in(part)
    start = log.column("requests/start").astype(np.int64)
    inside = np.repeat(np.asarray(log.column("requests/part")) == part.code, np.diff(start))
    lengths = HistoryIndex(log).lengths(requests, UNLIMITED)
    return {
        "requests": len(requests),
        "candidates": int(inside.sum()),
        "history_median": int(np.median(lengths)) if len(lengths) else 0,
        "history_p95": int(np.percentile(lengths, 95)) if len(lengths) else 0,
        "rates": {
            task.name: float(np.asarray(log.column(f"events/label.{task.name}"))[inside].mean())
            if len(requests)
            else 0.0
            for task in log.schema.tasks
        },
    }
