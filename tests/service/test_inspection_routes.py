"""What the inspector asks for: finding, what if, why, links; over a real socket, with data that means harm."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bundled import chance_bundle
from serving import RunningService, serving

from limerank.api.run import Run
from limerank.data.store.dataset import StoredDataset
from limerank.service.options import ServiceOptions

CONTEXT = {"device": "phone", "hour": 20}
CLICK = {"clicked": 1, "watched_fraction": 0.9}
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "\u202eevil\u202c שלום",
    "a/b?c#d&e=%41",
    "{{7*7}}${x}`y`",
    "\x00\x01 line\nbreak",
]
LONG = "ß" * 100_000


def rank(running: RunningService, user: str, **asked: Any) -> dict[str, Any]:
    """A ranking that nobody counts."""
    body = {"user_id": user, "context": CONTEXT, "limit": 30, "options": {"record": False}, **asked}
    answer = running.post("/v1/rank", body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def scores(answer: dict[str, Any]) -> dict[str, float]:
    return {one["id"]: one["score"] for one in answer["items"]}


@pytest.fixture(scope="module")
def looked_at(runs: dict[str, Run], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """A service on a store that these tests may change."""
    path = tmp_path_factory.mktemp("looked_at") / "store"
    runs["lime-mha"].publish(path, quiet=True)
    with serving(path) as running:
        yield running


def test_users_are_found_as_they_are_typed(looked_at: RunningService) -> None:
    """Each letter is a call; what was stored a moment ago is found, what was erased is not."""
    looked_at.post("/v1/events", {"events": [{"user_id": "u1-new", "item_id": "i1", "features": CLICK}]})
    for prefix in ("u", "u1", "u1-", "u1-new"):
        told = looked_at.http.get("/v1/users", params={"prefix": prefix, "limit": 100}).json()
        assert "u1-new" in [one["id"] for one in told["users"]]
        assert all(one["id"].startswith(prefix) for one in told["users"])
        assert (told["prefix"], told["more"]) == (prefix, False)
    assert looked_at.http.get("/v1/users", params={"limit": 2}).json()["more"]
    assert looked_at.http.get("/v1/users", params={"prefix": "zzz"}).json()["users"] == []
    looked_at.http.delete("/v1/users/u1-new")
    assert looked_at.http.get("/v1/users", params={"prefix": "u1-new"}).json()["users"] == []
    for wrong in ({"limit": "0"}, {"limit": "101"}, {"limit": "x"}, {"prefix": "x" * 257}):
        assert looked_at.http.get("/v1/users", params=wrong).status_code == 422


def test_names_that_mean_harm_come_back_as_they_are(looked_at: RunningService) -> None:
    """As ids of users and items, as what items are called and as features: JSON that no browser takes for a page."""
    events = [{"user_id": name, "item_id": name, "features": CLICK} for name in HOSTILE]
    assert looked_at.post("/v1/events", {"events": events}).json()["accepted"] == len(HOSTILE)
    features = {"topic": LONG, "creator": HOSTILE[0], "duration_s": 1.5, "tags": [LONG, HOSTILE[1]]}
    items = [{"id": name, "features": features, "display": name + LONG} for name in HOSTILE]
    assert looked_at.http.put("/v1/items", json={"items": items}).status_code == 200
    for name in HOSTILE:
        found = looked_at.http.get("/v1/users", params={"prefix": name})
        assert [one["id"] for one in found.json()["users"]] == [name]
        listed = looked_at.http.get("/v1/items", params={"prefix": name})
        (item,) = listed.json()["items"]
        assert (item["id"], item["display"]) == (name, (name + LONG)[:200])
        ranking = looked_at.post(
            "/v1/rank",
            {"user_id": name, "item_ids": HOSTILE, "options": {"record": False}, "without": [{"item_id": name}]},
        )
        assert {one["id"] for one in ranking.json()["items"]} == set(HOSTILE)
        assert ranking.json()["user"]["left_out"] == 1
        why = looked_at.post("/v1/explain", {"user_id": name, "item_ids": [name]})
        assert why.json()["links"][0]["events"][0]["item"] == name
        for answer in (found, listed, ranking, why):
            assert answer.headers["content-type"] == "application/json"
            assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_look_is_no_traffic_and_changes_nothing(looked_at: RunningService) -> None:
    """Context, events left out, events added, the clock moved, a visitor without a name: then all is as it was."""
    user = "u21"
    before = rank(looked_at, user)
    told = looked_at.http.get(f"/v1/users/{user}").json()
    counted = looked_at.service.metrics.rankings_by_arm()
    offered = looked_at.service.links.offered
    newest, *_, oldest = told["history"]
    asked: list[dict[str, Any]] = [
        {"context": {**CONTEXT, "device": "tv"}},
        {"without": [{"item_id": newest["item_id"], "timestamp": newest["timestamp"]}]},
        {"events": [{"item_id": "i3", "features": CLICK}]},
        {"until": oldest["timestamp"], "now": oldest["timestamp"]},
        {"history": [{"item_id": "i3", "features": CLICK}], "user_id": "visitor"},
    ]
    for one in asked:
        other = rank(looked_at, **{"user": user, **one} if "user_id" not in one else {"user": "visitor", **one})
        assert scores(other) != scores(before)
        recommended = looked_at.post("/v1/recommend", {"user_id": user, "options": {"record": False}, **one})
        assert recommended.status_code == 200, recommended.text
        explained = looked_at.post("/v1/explain", {"user_id": user, "item_ids": ["i1"], **one})
        assert explained.status_code == 200, explained.text
    as_of = rank(looked_at, user, until=oldest["timestamp"])
    assert (as_of["user"]["history_used"], as_of["user"]["left_out"]) == (0, told["total"])
    assert scores(as_of) == pytest.approx(scores(rank(looked_at, user, history=[])), abs=1e-6)
    after = rank(looked_at, user)
    assert scores(after) == pytest.approx(scores(before), abs=1e-6)
    assert looked_at.http.get(f"/v1/users/{user}").json() == told
    assert looked_at.service.metrics.rankings_by_arm() == counted
    assert looked_at.service.links.offered == offered
    rank(looked_at, user, options={})
    assert looked_at.service.links.offered == offered + 1


def test_looks_that_cannot_be_say_why(looked_at: RunningService) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"history": [], "without": [{"item_id": "i1"}]}, "without"),
        ({"history": [], "until": 1_700_000_000_000}, "until"),
        ({"until": 17}, "until"),
        ({"without": [{"item_id": "i1", "timestamp": 3}]}, "without[0].timestamp"),
        ({"without": [{"item_id": "i1"}] * 1001}, "without"),
    ]
    for asked, path in refused:
        answer = looked_at.post("/v1/rank", {"user_id": "u1", **asked})
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["path"] == path


def test_why_adds_up_to_the_score_for_candidates_side_by_side(looked_at: RunningService) -> None:
    """The sum of the terms is the logit, and its probability what the ranking says, with and without changes."""
    changes: list[dict[str, Any]] = [
        {},
        {"events": [{"item_id": "i3", "features": CLICK}]},
        {"without": [{"item_id": "i1"}]},
    ]
    for change in changes:
        ranking = rank(looked_at, "u22", **change)
        best = [one["id"] for one in ranking["items"][:2]]
        told = looked_at.post("/v1/explain", {"user_id": "u22", "item_ids": best, "context": CONTEXT, **change}).json()
        for one in told["candidates"]:
            assert one["from_links"] == pytest.approx(sum(link["contribution"] for link in one["links"]), abs=1e-5)
            total = one["from_links"] + one["from_item"] + one["from_user"] + one["constant"]
            assert one["logit"] == pytest.approx(total, abs=1e-5)
            assert 1 / (1 + math.exp(-total)) == pytest.approx(one["score"], abs=1e-5)
            assert one["score"] == pytest.approx(scores(ranking)[one["id"]], abs=1e-5)
        assert len(told["links"]) == looked_at.http.get("/v1/info").json()["served"]["links"]


def test_links_are_used_as_much_as_they_add(looked_at: RunningService) -> None:
    """The usage after one ranking is what /v1/explain says of its ten best items."""
    usage = looked_at.service.links
    assert usage.flush()
    before = usage.of(looked_at.host.current_id)
    rankings, sums = (0, None) if before is None else (before.rankings, before.sums)
    answer = looked_at.post("/v1/rank", {"user_id": "u23", "context": CONTEXT, "limit": 10}).json()
    assert usage.flush()
    told = looked_at.http.get("/v1/links").json()
    assert told["usage"]["rankings"] == rankings + 1
    best = [one["id"] for one in answer["items"]]
    explained = looked_at.post("/v1/explain", {"user_id": "u23", "context": CONTEXT, "item_ids": best}).json()
    added = [0.0] * len(told["links"])
    for candidate in explained["candidates"]:
        for link in candidate["links"]:
            added[link["link"]] += abs(link["contribution"])
    for number, one in enumerate(told["links"]):
        earlier = 0.0 if sums is None else float(sums[number])
        assert one["usage"] * (rankings + 1) == pytest.approx(earlier + added[number] / sum(added), abs=1e-5)
    assert sum(one["usage"] for one in told["links"]) == pytest.approx(1.0, abs=1e-6)


def test_a_map_of_links_says_what_they_stand_for(looked_at: RunningService) -> None:
    told = looked_at.http.get("/v1/links").json()
    assert told["items"] == told["items_read"] == 200
    assert set(told["thresholds"]) == {"dead", "duplicate"}
    assert [one["link"] for one in told["links"]] == list(range(len(told["links"])))
    assert any(one["attributes"] for one in told["links"])
    assert all(one["items"] for one in told["links"])
    for values in (told["spectrum"]["weights"], told["spectrum"]["links"]):
        assert len(values) == len(told["links"])
        assert values == sorted(values, reverse=True)
        assert values[0] == 1.0
    named = looked_at.http.get("/v1/links", params={"bundle": told["bundle"]}).json()
    assert named["links"][0]["items"] == told["links"][0]["items"]
    missing = looked_at.http.get("/v1/links", params={"bundle": "nothing"})
    assert (missing.status_code, missing.json()["type"]) == (404, "/problems/unknown-bundle")


def test_a_ranker_without_links_says_so(dataset: StoredDataset, tmp_path: Path) -> None:
    """Not as if the request were wrong: with a problem of its own, that names rankers that have links."""
    chance_bundle("ttsn", dataset, tmp_path / "store")
    with serving(tmp_path / "store") as running:
        assert running.http.get("/v1/info").json()["served"]["links"] == 0
        for answer in (
            running.post("/v1/explain", {"user_id": "u1", "item_ids": ["i1"]}),
            running.http.get("/v1/links"),
        ):
            assert (answer.status_code, answer.json()["type"]) == (422, "/problems/no-links")
            assert "lime-mha" in answer.json()["detail"]
        running.post("/v1/rank", {"user_id": "u1"})
        assert running.service.links.offered == 0


def test_what_forms_need_is_in_info(looked_at: RunningService) -> None:
    told = looked_at.http.get("/v1/info").json()
    assert told["scopes"] == ["rank", "write", "admin"]
    served = told["served"]
    context = {one["name"]: one for one in served["context"]}
    assert list(context) == served["context_features"]
    assert "phone" in context["device"]["values"]
    assert [one["name"] for one in served["event"]] == served["event_features"]
    assert served["has_times"]
    example = served["example_user"]
    assert looked_at.http.get(f"/v1/users/{example}").json()["total"] > 0
    looked_at.http.delete(f"/v1/users/{example}")
    assert looked_at.http.get("/v1/info").json()["served"]["example_user"] not in (example, None)


def test_a_user_with_16384_events(dataset: StoredDataset, tmp_path: Path) -> None:
    """By pages, ranked, explained, with an event left out: all of it is read, none of it is slow to ask for."""
    count, path = 16_384, tmp_path / "store"
    chance_bundle("lime-mha", dataset, path, max_history=count)
    options = ServiceOptions(deadline_ms=60_000, history_cap=2 * count, events_per_call=count)
    with serving(path, options) as running:
        with running.host.lease() as lease:
            first = (lease.engine.bundle.manifest.watermark or 0) + 1
        events = [
            {"user_id": "busy", "item_id": f"i{n % 200}", "timestamp": first + n, "features": CLICK}
            for n in range(count)
        ]
        assert running.post("/v1/events", {"events": events}).json()["accepted"] == count
        told = running.http.get("/v1/users/busy", params={"limit": 3, "offset": count - 2}).json()
        assert (told["total"], told["read"]) == (count, count)
        assert [one["position"] for one in told["history"]] == [count - 1, count]
        newest = running.http.get("/v1/users/busy", params={"limit": 1}).json()["history"][0]
        assert (newest["position"], newest["read"]) == (1, True)
        assert rank(running, "busy")["user"]["history_used"] == count
        changed = rank(running, "busy", without=[{"item_id": newest["item_id"], "timestamp": newest["timestamp"]}])
        assert (changed["user"]["history_used"], changed["user"]["left_out"]) == (count - 1, 1)
        why = running.post("/v1/explain", {"user_id": "busy", "item_ids": ["i1"], "top_events": 5}).json()
        assert why["history_used"] == count
        assert all(len(link["events"]) <= 5 for link in why["links"])
