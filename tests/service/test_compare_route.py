"""Two bundles on the same users, and the report of a bundle's run, over a real socket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from bundled import chance_bundle
from serving import RunningService, serving

from limerank.api.run import Run
from limerank.data.store.dataset import StoredDataset


@pytest.fixture(scope="module")
def two(
    runs: dict[str, Run], dataset: StoredDataset, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RunningService, str, str]]:
    """A service, the bundle that it serves, and one that it does not, which no run made."""
    path = tmp_path_factory.mktemp("two") / "store"
    other = chance_bundle("lime-xor", dataset, path).manifest.id
    active = runs["lime-mha"].publish(path, quiet=True).manifest.id
    with serving(path) as running:
        yield running, active, other


def test_a_sample_is_compared(two: tuple[RunningService, str, str]) -> None:
    """By the active bundle and one that is not served; the same seed gives the same answer."""
    running, active, other = two
    asked = {"new": other, "sample": 10, "seed": 5, "limit": 50, "deadline_ms": 60_000}
    told = running.post("/v1/bundles/compare", asked).json()
    assert (told["old"], told["new"], told["asked"], told["compared"]) == (active, other, 10, 10)
    assert told["all"]["users"] == 10
    assert 0 <= told["all"]["overlap_10"] < 1
    assert sum(one["users"] for one in told["segments"] if one["feature"] == "history") == 10
    assert told["user"] is None
    assert len(told["most_changed"]) == 10
    again = running.post("/v1/bundles/compare", asked).json()
    assert again["most_changed"] == told["most_changed"]
    assert running.host.served_ids == [active]
    same = running.post("/v1/bundles/compare", {**asked, "new": active}).json()["all"]
    assert (same["overlap_10"], same["tau"], same["score_difference"], same["same_first"]) == (1.0, 1.0, 0.0, 1.0)


def test_one_user_is_compared_item_by_item(two: tuple[RunningService, str, str]) -> None:
    """The old positions and scores are those of /v1/rank."""
    running, _, other = two
    told = running.post("/v1/bundles/compare", {"new": other, "user_ids": ["u5"], "limit": 20}).json()
    assert told["user"]["user_id"] == "u5"
    ranked = running.post("/v1/rank", {"user_id": "u5", "limit": 20}).json()["items"]
    before = {one["old_position"]: one for one in told["user"]["items"]}
    for position, item in enumerate(ranked, 1):
        assert before[position]["id"] == item["id"]
        assert before[position]["old_score"] == pytest.approx(item["score"], abs=1e-5)
    new = [one["new_position"] for one in told["user"]["items"] if one["new_position"] is not None]
    assert new == list(range(1, 21))


def test_what_cannot_be_compared_says_why(two: tuple[RunningService, str, str]) -> None:
    running, _, other = two
    for asked, status, named in (
        ({"new": "nothing"}, 404, "nothing"),
        ({"new": other, "old": "../x"}, 404, "x"),
        ({"new": other, "by": "shoe"}, 422, "shoe"),
        ({"new": other, "sample": 0}, 422, "sample"),
        ({"new": other, "limit": 100_000}, 422, "limit"),
        ({"new": other, "context": {"devise": 1}}, 422, "device"),
        ({}, 422, "new"),
    ):
        answer = running.post("/v1/bundles/compare", asked)
        assert answer.status_code == status
        assert named in answer.text


def test_a_report_is_shown_and_can_do_nothing(two: tuple[RunningService, str, str], runs: dict[str, Run]) -> None:
    """To the byte the page that the run wrote, in a sandbox; a bundle without one says what to do."""
    running, active, other = two
    answer = running.http.get(f"/v1/bundles/{active}/report")
    assert answer.content == (runs["lime-mha"].path / "report.html").read_bytes()
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("sandbox; default-src 'none'")
    assert "script" not in policy
    assert answer.headers["content-type"].startswith("text/html")
    assert answer.headers["x-content-type-options"] == "nosniff"
    listed = {one["id"]: one["has_report"] for one in running.http.get("/v1/bundles").json()["bundles"]}
    assert listed == {active: True, other: False}
    missing = running.http.get(f"/v1/bundles/{other}/report")
    assert (missing.status_code, missing.json()["type"]) == (404, "/problems/no-report")
    assert "limerank export" in missing.json()["detail"]
    assert running.http.get("/v1/bundles/nothing/report").json()["type"] == "/problems/unknown-bundle"


def test_a_report_that_was_changed_is_refused(runs: dict[str, Run], tmp_path: Path) -> None:
    """It is verified as all files of a bundle are."""
    bundle = runs["lime-mha"].publish(tmp_path / "store", quiet=True)
    with serving(tmp_path / "store") as running:
        page = bundle.path / "report.html"
        page.write_bytes(page.read_bytes().replace(b"<", b"?", 1))
        answer = running.http.get(f"/v1/bundles/{bundle.manifest.id}/report")
        assert (answer.status_code, answer.json()["type"]) == (422, "/problems/unfit-bundle")
        assert "report.html" in answer.json()["detail"]
