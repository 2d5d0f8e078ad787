"""POST /v1/rank, /v1/rank/batch, /v1/recommend and /v1/explain over a real socket."""

from __future__ import annotations

import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import until
from serving import RunningService, serving

from limerank.models import ItemState
from limerank.serve.engine import Engine
from limerank.serve.explanation.explain import explain
from limerank.serve.requests import Event

ITEMS = [f"i{number}" for number in range(0, 200, 3)]


@pytest.fixture(scope="module")
def fresh(service: RunningService) -> Engine:
    """An engine on the same store that keeps nothing."""
    return Engine.open(service.store, threads=1, states=0)


def ids(answer: dict[str, Any]) -> list[Any]:
    return [one["id"] for one in answer["items"]]


def scores(answer: dict[str, Any]) -> list[float]:
    return [one["score"] for one in answer["items"]]


def test_scores_are_those_of_an_uncached_ranker(service: RunningService, fresh: Engine) -> None:
    """C1: HTTP says, first computed and then from a kept state, what the ranker itself says from the stored rows."""
    bundle, catalog = fresh.bundle, fresh.catalog
    for user in ("u1", "u2", "u59", "nobody"):
        inputs, _ = fresh.user_inputs(user, {"device": "tv"})
        items = ItemState(*catalog.widened(catalog.rows_of(ITEMS)))
        ranker = bundle.ranker
        with torch.inference_mode():
            state, offsets = ranker.encode_user(inputs), torch.tensor([0, len(ITEMS)])
            logits = ranker.score(ranker.interact(state, items, offsets), items, state, offsets)
            told = logits.sigmoid()[:, 0].tolist()
        uncached = dict(zip(ITEMS, told, strict=True))
        for _ in range(2):
            body = {"user_id": user, "item_ids": ITEMS, "limit": 1000, "context": {"device": "tv"}}
            answer = service.post("/v1/rank", body).json()
            assert sorted(ids(answer)) == sorted(ITEMS)
            assert scores(answer) == sorted(scores(answer), reverse=True)
            assert scores(answer) == pytest.approx([uncached[item] for item in ids(answer)], abs=1e-5)


def test_an_answer_says_how_it_came_about(service: RunningService) -> None:
    """The user, counts, bundle, arm, and stages that add up and are the same in the header."""
    response = service.post("/v1/rank", {"user_id": "u3", "item_ids": ["i1", "ghost", "i1"]}, **{"X-Request-ID": "r-1"})
    answer = response.json()
    assert answer["request_id"] == response.headers["x-request-id"] == "r-1"
    assert (answer["bundle"], answer["arm"]) == (service.host.current_id, "control")
    assert answer["user"]["known"]
    assert answer["user"]["history_used"] > 0
    assert answer["user"]["history_as_of"].endswith("Z")
    counts = {"requested": 3, "scored": 3, "unknown": 1, "excluded": 0, "unscored": 0, "overlay": 0}
    assert answer["counts"] == counts
    assert answer["unknown_items"] == ["ghost"]
    assert answer["degraded"] == []
    timing = dict(part.split(";dur=") for part in response.headers["server-timing"].split(", "))
    assert {stage: float(spent) for stage, spent in timing.items()} == answer["timing_ms"]
    assert {"parse", "queue", "user", "lookup", "interact", "select", "encode", "total"} <= set(timing)
    parts = sum(spent for stage, spent in answer["timing_ms"].items() if stage != "total")
    assert parts <= answer["timing_ms"]["total"] + 0.1


def test_whole_numbers_come_back_as_whole_numbers(service: RunningService) -> None:
    """An id that was given as a number is echoed as one, also among the unknown."""
    answer = service.post("/v1/rank", {"user_id": 17, "item_ids": ["i1", 7, "8"]}).json()
    assert set(map(repr, ids(answer))) == {"'i1'", "7", "'8'"}
    assert answer["unknown_items"] == [7, "8"]


def test_unknown_candidates_are_scored_dropped_or_refused(service: RunningService) -> None:
    """`missing` says which."""

    def ask(missing: str) -> tuple[int, dict[str, Any]]:
        items = ["i1", *(f"ghost{number}" for number in range(12))]
        response = service.post("/v1/rank", {"user_id": "u1", "item_ids": items, "options": {"missing": missing}})
        return response.status_code, response.json()

    _, prior = ask("prior")
    assert prior["counts"]["scored"] == 13
    _, dropped = ask("drop")
    assert ids(dropped) == ["i1"]
    assert dropped["counts"] == {**prior["counts"], "scored": 1, "excluded": 12}
    status, problem = ask("error")
    assert (status, problem["type"]) == (422, "/problems/unknown-items")
    assert "12 of item_ids" in problem["detail"]
    assert "'ghost9', ..." in problem["detail"]
    assert problem["errors"][0]["path"] == "item_ids"


def test_a_history_in_the_body_is_read_instead_of_the_stored_one(service: RunningService, fresh: Engine) -> None:
    """And `events` follow whichever it is; the engine says the same."""
    past = [{"item_id": "i5", "features": {"clicked": 1}, "timestamp": 1_769_000_000_000}, {"item_id": "i6"}]
    events = [Event("i5", {"clicked": 1}, 1_769_000_000_000), Event("i6")]
    given = service.post("/v1/rank", {"user_id": "u4", "item_ids": ITEMS, "history": past}).json()
    assert given["user"]["history_used"] == 2
    assert scores(given) == pytest.approx(
        fresh.answer("u4", ITEMS, history=events, limit=100).probabilities[:, 0].tolist(), abs=1e-5
    )
    followed = service.post("/v1/rank", {"user_id": "u4", "item_ids": ITEMS, "events": past}).json()
    assert scores(followed) == pytest.approx(
        fresh.answer("u4", ITEMS, events=events, limit=100).probabilities[:, 0].tolist(), abs=1e-5
    )
    assert scores(followed) != scores(given)


def test_an_event_is_part_of_the_next_ranking(service: RunningService) -> None:
    """Rank, store an event, rank: the ranking changed, the history is one longer, and the item counts as seen."""
    body = {"user_id": "reader", "item_ids": ITEMS}
    before = service.post("/v1/rank", body).json()
    assert (before["user"]["known"], before["user"]["history_used"]) == (False, 0)
    event = {"user_id": "reader", "item_id": "i3", "features": {"clicked": 1, "watched_fraction": 1.0}}
    assert service.post("/v1/events", {"events": [event]}).json()["accepted"] == 1
    after = service.post("/v1/rank", body).json()
    assert (after["user"]["known"], after["user"]["history_used"]) == (True, 1)
    assert scores(after) != scores(before)
    unseen = service.post("/v1/rank", {**body, "options": {"exclude_seen": True}}).json()
    assert unseen["counts"]["excluded"] == 1
    assert "i3" not in ids(unseen)


def test_a_batch_answers_each_request_by_itself(service: RunningService) -> None:
    """The same rankings as one by one, and one that is refused has its problem in its part."""
    requests = [{"user_id": "u1", "item_ids": ITEMS}, {"user_id": "u1", "task": "nonsense"}, {"user_id": "u2"}]
    parts = service.post("/v1/rank/batch", {"requests": requests}).json()["parts"]
    assert [sorted(part) for part in parts] == [["answer"], ["problem"], ["answer"]]
    assert parts[1]["problem"]["instance"] == "requests[1]"
    assert parts[1]["problem"]["status"] == 422
    for part, request in ((parts[0], requests[0]), (parts[2], requests[2])):
        assert part["answer"]["items"] == service.post("/v1/rank", request).json()["items"]


def test_recommendations_leave_out_what_was_seen(service: RunningService, fresh: Engine) -> None:
    """The engine's own list, also by popularity and diversified."""
    answer = service.post("/v1/recommend", {"user_id": "u5", "limit": 10}).json()
    assert ids(answer) == fresh.recommend("u5", 10).item_ids
    assert answer["retrieved_by"] == ["exact"]
    patient = service.post("/v1/recommend", {"user_id": "u5", "limit": 10, "options": {"deadline_ms": 60_000}}).json()
    assert ids(patient) == ids(answer)
    whole = {"user_id": "u5", "limit": 1000}
    everything = service.post("/v1/recommend", {**whole, "options": {"exclude_seen": False}}).json()
    assert len(ids(everything)) == len(fresh.catalog) > len(ids(service.post("/v1/recommend", whole).json()))
    popular = service.post("/v1/recommend", {"user_id": "u5", "retrievers": ["popular"], "candidates": 20}).json()
    assert popular["retrieved_by"] == ["popular"]
    spread = service.post("/v1/recommend", {"user_id": "u5", "diversify": {"feature": "topic", "at_most": 1}})
    assert ids(spread.json()) != ids(answer)
    wrong = service.post("/v1/recommend", {"user_id": "u5", "diversify": {"feature": "topic"}})
    assert wrong.json()["errors"][0]["path"] == "diversify"


def test_explanations_are_the_engines(service: RunningService, fresh: Engine) -> None:
    """Logits and links as in Python, names of items as the caller wrote them."""
    answer = service.post("/v1/explain", {"user_id": "u6", "item_ids": ["i1", 5], "top_events": 2}).json()
    told = explain(fresh, "u6", ["i1", "5"], top_events=2)
    assert [one["id"] for one in answer["candidates"]] == ["i1", 5]
    assert [one["logit"] for one in answer["candidates"]] == pytest.approx([one.logit for one in told.candidates])
    assert len(answer["links"]) == len(told.events)
    assert all(len(link["events"]) <= 2 for link in answer["links"])


def test_a_deadline_runs_from_the_arrival(service: RunningService) -> None:
    """A millisecond is over when it arrives, or in the queue, or it is answered: never an error of another kind."""
    body = {"user_id": "u1", "options": {"deadline_ms": 1}}
    statuses = {service.post("/v1/rank", body).status_code for _ in range(20)}
    assert statuses <= {200, 504}


def test_time_of_the_request(service: RunningService) -> None:
    """A time in seconds is refused; RFC 3339 and milliseconds are the same."""
    ask = {"user_id": "u1", "item_ids": ["i1"]}
    assert service.post("/v1/rank", {**ask, "now": 1_769_860_800}).status_code == 422
    told = [
        service.post("/v1/rank", {**ask, "now": now}).json()["items"]
        for now in (1_769_860_800_000, "2026-01-31T12:00:00Z", "2026-01-31T13:00:00+01:00")
    ]
    assert told[0] == told[1] == told[2]


def test_large_bodies_are_read_too(service: RunningService) -> None:
    """50,000 candidates, some hundred kilobytes, which are decoded beside the event loop."""
    items = [f"i{number % 200}" for number in range(50_000)]
    body = json.dumps({"user_id": "u1", "item_ids": items, "limit": 1}).encode()
    assert len(body) > 256 * 1024
    response = service.http.post("/v1/rank", content=body, headers={"Content-Type": "application/json"})
    assert response.json()["counts"]["scored"] == 50_000


def test_who_goes_away_in_the_queue_is_not_worked_for(own_store: Path) -> None:
    """The one slot is taken and four wait: they leave, the queue is empty before the slot is free, and all goes on."""
    body = json.dumps({"user_id": "u1"}).encode()
    head = f"POST /v1/rank HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    go = threading.Event()
    with serving(own_store, slots=1) as running, ThreadPoolExecutor(1) as asking:
        admission, of = running.service.admission, running.host.histories.of
        running.host.histories.of = lambda user: go.wait() and of(user)  # type: ignore[method-assign,assignment,return-value]
        try:
            first = asking.submit(running.post, "/v1/rank", {"user_id": "u1"})
            until(lambda: admission.running == 1)
            clients = [socket.create_connection(running.address, timeout=30) for _ in range(4)]
            for client in clients:
                client.sendall(head.encode() + body)
            until(lambda: admission.waiting == 4)
            for client in clients:
                client.close()
            until(lambda: admission.waiting == 0)
            assert admission.running == 1
        finally:
            go.set()
            del running.host.histories.of
        assert first.result().status_code == 200
        assert running.post("/v1/rank", {"user_id": "u1"}).status_code == 200
        assert 'code="499",method="POST",route="/v1/rank"} 4.0' in running.http.get("/metrics").text
