"""/v1/items: upserted, ranked, deleted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from serving import serving


def test_items_come_and_go_while_the_service_runs(own_store: Path) -> None:
    """An upsert is part of the next ranking; a call with a mistake changes nothing, and names item and feature."""
    with serving(own_store) as running:
        features: dict[str, Any] = dict.fromkeys(running.http.get("/v1/info").json()["served"]["item_features"])
        features |= {"topic": "t1", "duration_s": 41.5}
        new = {"id": "brand/new", "features": features}
        assert running.http.get("/v1/items/brand%2Fnew").json()["source"] == "unknown"
        put = running.http.put("/v1/items", json={"items": [new, {"id": "i1", "features": features}]}).json()
        assert (put["added"], put["replaced"]) == (1, 1)
        told = running.http.get("/v1/items/brand%2Fnew").json()
        assert (told["id"], told["source"], told["bundle"]) == ("brand/new", "overlay", running.host.current_id)
        assert told["changed_at"].endswith("Z")
        ranked = running.post("/v1/rank", {"user_id": "u1", "item_ids": ["brand/new", "i2"]}).json()
        assert (ranked["unknown_items"], ranked["counts"]["overlay"]) == ([], 1)
        wrong = {"id": "other", "features": {**features, "duration_s": "long"}}
        refused = running.http.put("/v1/items", json={"items": [{"id": "fine", "features": features}, wrong]})
        assert refused.status_code == 422
        assert "item 'other'" in refused.json()["detail"]
        assert "duration_s" in refused.json()["detail"]
        assert running.http.get("/v1/items/fine").json()["source"] == "unknown"
        gone = running.post("/v1/items/delete", {"item_ids": ["brand/new", "never"]}).json()
        assert (gone["deleted"], gone["absent"]) == (1, ["never"])
        assert running.http.get("/v1/items/brand%2Fnew").json()["source"] == "deleted"
        assert running.http.get("/v1/info").json()["overlay_items"] == 2
