"""/v1/bundles and /v1/routing: publish, look, activate, roll back, compare, experiment and collect, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from serving import RunningService, copied, serving

from limerank.data.store.dataset import StoredDataset
from limerank.models import build_ranker
from limerank.serve.bundles.archive import save
from limerank.serve.bundles.bundle import Bundle
from limerank.serve.bundles.offline import export


@pytest.fixture(scope="module")
def other(dataset: StoredDataset, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A bundle of another ranker, in another store."""
    torch.manual_seed(5)
    options = {"name": "lime-mha"}
    ranker = build_ranker(options, dataset.encoders.space(), len(dataset.schema.tasks), "test").eval()
    return export(ranker, options, dataset, tmp_path_factory.mktemp("other") / "store", max_history=20)


@pytest.fixture(scope="module")
def running(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with serving(copied(store, tmp_path_factory.mktemp("own"))) as service:
        yield service


@pytest.fixture(scope="module")
def published(running: RunningService, other: Bundle, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The other bundle, sent as a tar file in pieces."""
    archive = tmp_path_factory.mktemp("archive") / "bundle.tar"
    size = save(other, archive)
    content = archive.read_bytes()
    pieces = (content[start : start + 10_000] for start in range(0, size, 10_000))
    response = running.http.post("/v1/bundles", content=pieces, headers={"Content-Type": "application/x-tar"})
    assert response.status_code == 200, response.text
    assert response.json()["is_new"]
    bundle_id: str = response.json()["id"]
    return bundle_id


def test_a_bundle_is_published_and_not_active(running: RunningService, published: str, other: Bundle) -> None:
    """It is listed, verified, shown, and compared with the active one."""
    listed = running.http.get("/v1/bundles").json()
    assert listed["current"] != published == other.manifest.id
    assert {one["id"]: one["state"] for one in listed["bundles"]} == {listed["current"]: "active", published: ""}
    verified = running.http.post(f"/v1/bundles/{published}/verify").json()
    assert verified["files"] == len(other.manifest.files)
    shown = running.http.get(f"/v1/bundles/{published}").json()
    assert (shown["tasks"], shown["items"]) == (other.manifest.tasks, 200)
    compared = running.http.get("/v1/bundles/diff", params={"new": published}).json()
    assert (compared["old"], compared["new"]) == (listed["current"], published)
    assert compared["rankings"]["score_difference"] > 0


def test_activate_and_roll_back(running: RunningService, published: str) -> None:
    """Only if the caller knows what is active; answers name the bundle that gave them."""
    first = running.host.current_id
    ask = {"user_id": "u1", "item_ids": ["i1"]}
    conflict = running.post(f"/v1/bundles/{published}/activate", {"expected_current": "another"})
    assert (conflict.status_code, conflict.json()["type"]) == (409, "/problems/conflict")
    done = running.post(f"/v1/bundles/{published}/activate", {"expected_current": first}).json()
    assert (done["previous"], done["current"]) == (first, published)
    assert done["verified_files"] > 0
    assert running.post("/v1/rank", ask).json()["bundle"] == published
    assert running.post("/v1/rank", {**ask, "bundle": first}).json()["bundle"] == first
    assert running.post("/v1/bundles/rollback", {"expected_current": published}).json()["current"] == first
    assert running.post("/v1/rank", ask).json()["bundle"] == first


def test_an_experiment_is_routed_logged_and_ended(running: RunningService, published: str) -> None:
    """Users of the arm have its bundle; a bundle that is not there, or percents beyond 100, change nothing."""
    arm = {"name": "new", "bundle": published, "percent": 100}
    routing = {"experiment": "e1", "arms": [arm], "shadows": [{"bundle": running.host.current_id, "sample": 1}]}
    told = running.http.put("/v1/routing", json=routing)
    assert told.status_code == 200, told.text
    assert told.json()["routing"]["arms"] == [{**arm, "percent": 100.0}]
    answer = running.post("/v1/rank", {"user_id": "u2", "item_ids": ["i1", "i2"]}, **{"X-Request-ID": "logged"}).json()
    assert (answer["bundle"], answer["arm"]) == (published, "new")
    assert running.service.shadows.flush()
    assert running.host.log.flush()
    assert running.http.get("/v1/routing").json()["counts"]["new"] == 1
    assert running.service.shadows.ranked == 1
    assert running.http.get("/v1/users/u2").json()["arm"] == "new"
    for wrong, status in (
        ({"experiment": "e1", "arms": [{**arm, "bundle": "ghost"}]}, 404),
        ({"experiment": "e1", "arms": [arm, {**arm, "name": "more"}]}, 422),
        ({"arms": [arm]}, 422),
    ):
        assert running.http.put("/v1/routing", json=wrong).status_code == status
    assert running.http.get("/v1/routing").json()["routing"]["experiment"] == "e1"
    assert running.http.delete("/v1/users/u2").json()["deleted"]["rankings"] >= 1
    ended = running.http.put("/v1/routing", json={}).json()
    assert ended["routing"] == {}
    assert running.post("/v1/rank", {"user_id": "u2"}).json()["arm"] == "control"


def test_bundles_that_are_not_there_or_damaged(running: RunningService, published: str) -> None:
    """404 where there is none, 422 with the file where it is damaged; what serves goes on."""
    for method, path in (
        ("GET", "/v1/bundles/ghost"),
        ("POST", "/v1/bundles/ghost/verify"),
        ("POST", "/v1/bundles/ghost/activate"),
        ("GET", "/v1/bundles/diff?new=ghost"),
        ("GET", "/v1/bundles/..%2f..%2fetc"),
    ):
        response = running.http.request(method, path, json={})
        assert response.status_code == 404, path
    assert running.post("/v1/rank", {"user_id": "u1", "bundle": "ghost"}).status_code == 404
    assert running.http.get("/v1/bundles/diff").status_code == 422
    rows = running.store / "bundles" / published / "rows.safetensors"
    content = rows.read_bytes()
    rows.write_bytes(content[:-1])
    refused = running.post(f"/v1/bundles/{published}/activate", {})
    assert (refused.status_code, refused.json()["type"]) == (422, "/problems/unfit-bundle")
    assert "rows.safetensors" in refused.json()["detail"]
    assert running.post("/v1/rank", {"user_id": "u1"}).status_code == 200
    rows.write_bytes(content)


def test_archives_that_are_none(running: RunningService) -> None:
    """Refused, and nothing of them stays."""
    before = sorted(path.name for path in (running.store / "bundles").iterdir())
    tar = {"Content-Type": "application/x-tar"}
    for content in (b"", b"not a tar", b"\0" * 10240):
        assert running.http.post("/v1/bundles", content=content, headers=tar).status_code == 422
    assert running.http.post("/v1/bundles", json={}).status_code == 415
    assert sorted(path.name for path in (running.store / "bundles").iterdir()) == before


def test_old_bundles_are_collected(running: RunningService, published: str) -> None:
    """None that is active or previous."""
    assert running.post("/v1/bundles/gc", {"keep": 1}).json() == {"removed": []}
    assert published in {one["id"] for one in running.http.get("/v1/bundles").json()["bundles"]}
