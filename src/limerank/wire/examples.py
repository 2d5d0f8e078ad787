"""Bodies that people can begin with; the tests send each of them."""

from __future__ import annotations

from typing import Any

BODIES: dict[str, dict[str, Any]] = {
    "rank": {
        "user_id": "u42",
        "item_ids": ["i1", "i5", "i17"],
        "limit": 100,
        "context": {"device": "phone", "hour": 20},
        "options": {"exclude_seen": False, "missing": "prior", "deadline_ms": 80},
    },
    "rank_batch": {"requests": [{"user_id": "u42", "item_ids": ["i1", "i5"]}, {"user_id": "u7", "limit": 10}]},
    "recommend": {"user_id": "u42", "limit": 10, "diversify": {"feature": "topic", "at_most": 3}},
    "explain": {"user_id": "u42", "item_ids": ["i17"], "top_events": 3},
    "add_events": {
        "events": [
            {
                "event_id": "e1",
                "type": "click",
                "user_id": "u42",
                "item_id": "i17",
                "timestamp": "2026-01-31T12:00:00Z",
                "features": {"clicked": 1, "watched_fraction": 0.95},
            }
        ]
    },
    "upsert_items": {
        "items": [{"id": "i900", "features": {"topic": "t1", "creator": "c3", "duration_s": 41.5, "tags": ["a", "b"]}}]
    },
    "delete_items": {"item_ids": ["i900"]},
    "compare_bundles": {"new": "20261117-145319874-c39fbc5b", "sample": 10, "seed": 0},
    "activate_bundle": {"expected_current": None},
    "roll_back": {},
    "collect_bundles": {"keep": 3},
    "set_routing": {"experiment": None, "arms": [], "shadows": []},
}
