"""`recommend` and `bundle index` as people use them."""

from __future__ import annotations

import shutil
from pathlib import Path

from calling import answer, limerank, refusal
from engines import need


def test_recommend_is_rank_without_what_was_seen(store: Path) -> None:
    facts = answer("recommend", store, "--user", "u2", "--limit", "5")
    ranked = answer("rank", store, "--user", "u2", "--limit", "5", "--exclude-seen")
    assert facts["items"] == ranked["items"]
    assert facts["retrieved_by"] == ["exact"]
    assert facts["seen_items"] == ranked["seen_items"] > 0
    assert facts["degraded"] == ranked["degraded"] == []
    assert [span["stage"] for span in facts["timeline"]] == ["queue", "history", "user", "lookup", "interact", "select"]
    assert answer("recommend", store, "--user", "u2", "--seen-too")["seen_items"] == 0


def test_recommend_shows_where_candidates_came_from_and_when(store: Path) -> None:
    done = limerank("recommend", store, "--user", "u2", "--retriever", "popular", "--candidates", "20", "--limit", "3")
    assert done.returncode == 0, done.stderr
    assert "candidates from: popular" in done.stdout
    assert "limerank-retrieve-popular" in done.stdout
    assert {"user", "retrieve", "wait"} <= {line.split(" ")[0] for line in done.stdout.splitlines()}


def test_lists_can_be_diversified(store: Path) -> None:
    plain = answer("recommend", store, "--user", "u2")["items"]
    for options in (("--diversify", "1"), ("--at-most", "topic=1")):
        other = answer("recommend", store, "--user", "u2", *options)
        assert len(other["items"]) == len(plain)
        assert other["items"] != plain
    assert "choose one" in refusal(2, "recommend", store, "--user", "u2", "--diversify", "1", "--at-most", "topic=1")
    said = refusal(2, "recommend", store, "--user", "u2", "--at-most", "topic")
    assert "'topic' must look like name=value" in said
    assert "feature=number" in refusal(2, "recommend", store, "--user", "u2", "--at-most", "topic=x")
    assert "did you mean 'topic'?" in refusal(2, "recommend", store, "--user", "u2", "--at-most", "topik=1")
    assert "no retriever 'fais'" in refusal(2, "recommend", store, "--user", "u2", "--retriever", "fais")


def test_a_deadline_that_is_over_has_an_exit_code(store: Path) -> None:
    for command in ("rank", "recommend"):
        assert "before any work began" in refusal(6, command, store, "--user", "u2", "--deadline-ms", "0")


def test_an_index_is_made_and_used(store: Path, tmp_path: Path) -> None:
    need("faiss", "faiss")
    shutil.copytree(store, tmp_path / "store")
    small = ("--k", "10", "--candidates", "60", "--users", "8")
    made = answer("bundle", "index", tmp_path / "store", *small)
    assert made["items"] == 200
    assert made["recall"]["candidates"] == 60
    done = limerank("bundle", "index", tmp_path / "store", *small)
    assert f"of the exact top 10, 60 candidates found there hold {made['recall']['mean']:.1%}" in done.stdout
    facts = answer("recommend", tmp_path / "store", "--user", "u2", "--retriever", "faiss", "--candidates", "50")
    assert facts["retrieved_by"] == ["faiss"]
    assert "recall must be above 0" in refusal(2, "bundle", "index", tmp_path / "store", "--recall", "0")
