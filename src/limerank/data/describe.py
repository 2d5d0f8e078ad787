"""What is in a prepared dataset, as plain facts."""

from __future__ import annotations

from typing import Any

import numpy as np

from limerank.data.batches import RequestLoader
from limerank.data.eventlog import UNKNOWN_ROW, EventLog
from limerank.data.splits import Part
from limerank.schema import Role

WHOLE_HISTORY = 2**62


def describe(log: EventLog) -> dict[str, Any]:
    """Counts, label rates and history lengths per part, and the features with their sizes."""
    counts = log.manifest.counts
    reserved = UNKNOWN_ROW + 1
    return {
        "fingerprint": log.fingerprint,
        "origin": log.manifest.origin,
        "events": counts["events"],
        "requests": counts["requests"],
        "users": counts["users"] - reserved,
        "items": counts["items"] - reserved,
        "tasks": [task.name for task in log.schema.tasks],
        "bytes": sum(record.bytes for record in log.manifest.files),
        "parts": {part.value: _describe_part(log, part) for part in Part},
        "features": [
            {"name": encoder.name, "role": role.value, "kind": encoder.kind.value, "indices": encoder.size}
            for role in Role
            for encoder in log.encoders.of(role)
        ],
    }


def _describe_part(log: EventLog, part: Part) -> dict[str, Any]:
    loader = RequestLoader(log, part, batch_requests=1, max_history=WHOLE_HISTORY)
    rows = loader.candidate_rows(loader.requests)
    lengths = loader.history_lengths(loader.requests)
    return {
        "requests": len(loader.requests),
        "candidates": len(rows),
        "history_median": int(np.median(lengths)) if len(lengths) else 0,
        "history_p95": int(np.percentile(lengths, 95)) if len(lengths) else 0,
        "rates": {
            task.name: float(log.column(f"events/label.{task.name}")[rows].mean()) if len(rows) else 0.0
            for task in log.schema.tasks
        },
    }
