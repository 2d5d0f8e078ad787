"""/v1/users: what is known, and that it is gone when it is erased."""

from __future__ import annotations

from pathlib import Path

from serving import RunningService, serving

ITEMS = ["i1", "i2", "i3"]


def test_a_user_is_shown_newest_events_first(service: RunningService) -> None:
    """Stored events and those of the bundle in one list, with where each comes from."""
    event = {"user_id": "u7", "item_id": "i9", "type": "click", "event_id": "mine", "features": {"clicked": 1}}
    assert service.post("/v1/events", {"events": [event]}).status_code == 200
    told = service.http.get("/v1/users/u7", params={"limit": 3}).json()
    assert (told["known"], told["arm"], told["erased_at"]) == (True, "control", None)
    assert told["events_stored"] == 1
    assert told["events_in_bundle"] > 3
    newest, *others = told["history"]
    assert (newest["item_id"], newest["source"], newest["type"]) == ("i9", "events", "click")
    assert {one["source"] for one in others} == {"bundle"}
    times = [one["timestamp"] for one in told["history"]]
    assert times == sorted(times, reverse=True)
    assert "clicked" in others[0]["features"]
    unknown = service.http.get("/v1/users/stranger").json()
    assert (unknown["known"], unknown["history"]) == (False, [])
    for limit in ("0", "x", "10001", "-1", "1.5", "٣", "00000000199999999", "000000001" + "9" * 5000):
        assert service.http.get("/v1/users/u7", params={"limit": limit}).status_code == 422


def test_an_erased_user_is_a_stranger(own_store: Path) -> None:
    """Stored events, the bundle's events and kept states are not read any more; the answer proves what was done."""
    with serving(own_store) as running:
        stranger = running.post("/v1/rank", {"user_id": "stranger", "item_ids": ITEMS}).json()
        event = {"user_id": "u8", "item_id": "i9", "features": {"clicked": 1}}
        running.post("/v1/events", {"events": [event]})
        before = running.post("/v1/rank", {"user_id": "u8", "item_ids": ITEMS}).json()
        assert before["user"]["history_used"] > 1
        proof = running.http.delete("/v1/users/u8").json()
        assert proof["deleted"]["events"] == 1
        assert proof["deleted"]["states"] >= 1
        assert proof["hidden"][running.host.current_id] >= 1
        told = running.http.get("/v1/users/u8").json()
        assert (told["events_stored"], told["events_in_bundle"], told["history"]) == (0, 0, [])
        assert told["erased_at"] == proof["erased_at"]
        after = running.post("/v1/rank", {"user_id": "u8", "item_ids": ITEMS}).json()
        assert after["user"]["history_used"] == 0
        assert {one["id"]: round(one["score"], 5) for one in after["items"]} != {
            one["id"]: round(one["score"], 5) for one in before["items"]
        }
        assert stranger["user"]["history_used"] == 0
        assert running.http.delete("/v1/users/u8").status_code == 200  # again: nothing is left to delete
