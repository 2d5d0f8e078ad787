"""POST /v1/events: what can be is kept, what cannot is listed."""

from __future__ import annotations

from typing import Any

from serving import RunningService


def test_valid_events_are_kept_and_the_others_listed(service: RunningService) -> None:
    """One wrong event costs nobody else anything, and its path says what is wrong."""
    events = [
        {"user_id": "kept", "item_id": "i1", "features": {"clicked": 1}},
        {"user_id": "kept", "item_id": 7},
        {"user_id": "kept"},
        {"user_id": "kept", "item_id": "i1", "features": {"cliked": 1}},
        {"user_id": "kept", "item_id": "i1", "features": {"watched_fraction": "much"}},
        {"user_id": "kept", "item_id": "i1", "timestamp": 1_769_860_740},
        {"user_id": "kept", "item_id": "i1", "timestamp": "2026-01-31T12:00:00Z", "event_id": "kept-1"},
        {"user_id": "kept", "item_id": "i1", "timestamp": "2026-01-31T12:00:00Z", "event_id": "kept-1"},
        17,
        {"user_id": "kept", "item_id": "i1", "features": {"clicked": "1" * 65_536}},
    ]
    answer = service.post("/v1/events", {"events": events}).json()
    assert (answer["accepted"], answer["duplicates"], answer["durable"]) == (3, 1, True)
    assert {one["index"]: one["path"] for one in answer["rejected"]} == {
        2: "events[2].item_id",
        3: "events[3].features.cliked",
        4: "events[4].features.watched_fraction",
        5: "events[5].timestamp",
        8: "events[8]",
        9: "events[9]",
    }
    assert "did you mean 'clicked'" in answer["rejected"][1]["detail"]


def test_a_body_that_is_no_list_of_events_is_refused_whole(service: RunningService) -> None:
    """No event can be told from another there."""
    bodies: list[Any] = [{"events": []}, {"events": {}}, {}, {"events": [{}], "more": 1}, []]
    for body in bodies:
        assert service.post("/v1/events", body).status_code == 422
    assert service.post("/v1/events", {"events": [{}] * 1001}).json()["errors"][0] == {
        "path": "events",
        "code": "max_length",
        "message": "at most 1,000 entries",
        "limit": 1000,
    }
