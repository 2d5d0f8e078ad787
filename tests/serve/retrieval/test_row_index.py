"""The FAISS index: what it finds, that it belongs to its rows, damage, and the linear head it is searched with."""

from __future__ import annotations

import importlib.util
import logging
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from engines import need

from limerank.api.dataset import Dataset
from limerank.bench.made_up import random_request
from limerank.errors import BundleError, UnavailableError, UsageError
from limerank.models import Ranker
from limerank.serve.bundles.offline import compute_rows
from limerank.serve.bundles.store import BundleStore
from limerank.serve.engine import Engine
from limerank.serve.retrieval import index as indexes
from limerank.serve.retrieval import recommending
from limerank.serve.retrieval.index import LOSS, MANIFEST, build_index, index_path, open_index, read_index_manifest
from limerank.serve.retrieval.linear import LinearHead, item_vectors
from limerank.serve.retrieval.recall import measure_recall, recall_of
from limerank.serve.scorer import score_candidates


@pytest.fixture
def faiss_engine(store: Path, tmp_path: Path) -> Engine:
    """An engine on a store of its own; without FAISS a skip, on CI a failure."""
    need("faiss", "faiss")
    shutil.copytree(store, tmp_path / "store")
    return Engine.open(tmp_path / "store")


def test_an_index_finds_what_the_scan_finds(faiss_engine: Engine) -> None:
    made = build_index(faiss_engine.bundle, k=10, candidates=60, users=20, recall=0.9)
    assert made == read_index_manifest(faiss_engine.bundle)
    assert made.recall.mean >= min(0.9, made.linear_recall.mean - LOSS)
    assert made.probes <= made.lists
    opened = open_index(faiss_engine.bundle)
    again = measure_recall(faiss_engine.bundle, opened, k=10, candidates=60, users=20)
    assert again == made.recall
    exact, found = (faiss_engine.recommend("u2", 5, retriever=name, candidates=150) for name in ("exact", "faiss"))
    assert found.retrieved_by == ["faiss"]
    assert found.candidates < exact.candidates
    scores = dict(zip(exact.item_ids, exact.probabilities[:, 0].tolist(), strict=True))
    both = [item for item in found.item_ids if item in scores]
    assert len(both) >= 3
    np.testing.assert_allclose(
        [found.probabilities[found.item_ids.index(item), 0] for item in both],
        [scores[item] for item in both],
        atol=1e-6,
    )


def test_all_lists_and_all_items_is_the_whole_catalog(faiss_engine: Engine) -> None:
    build_index(faiss_engine.bundle, k=10, candidates=60, users=3, recall=1.0)
    opened = open_index(faiss_engine.bundle)
    opened.probes = read_index_manifest(faiss_engine.bundle).lists
    rows = opened.retrieve(faiss_engine.encode_user("u2").state, 10**6)
    assert sorted(rows.tolist()) == list(range(1, faiss_engine.bundle.manifest.items))
    assert len(opened.retrieve(faiss_engine.encode_user("u2").state, 0)) == 0


def test_an_index_is_made_when_it_is_asked_for_and_kept(faiss_engine: Engine) -> None:
    assert not index_path(faiss_engine.bundle).exists()
    first = faiss_engine.recommend("u2", retriever="faiss").item_ids
    written = (index_path(faiss_engine.bundle) / MANIFEST).stat().st_mtime_ns
    assert Engine.open(faiss_engine.bundle.path.parent.parent).recommend("u2", retriever="faiss").item_ids == first
    assert (index_path(faiss_engine.bundle) / MANIFEST).stat().st_mtime_ns == written


@pytest.mark.parametrize("damage", ["flip", "cut", "manifest", "no manifest", "other rows"])
def test_a_damaged_index_is_made_anew(faiss_engine: Engine, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    bundle = faiss_engine.bundle
    build_index(bundle, users=3)
    path = index_path(bundle) / indexes.INDEX
    whole = path.read_bytes()
    manifest = index_path(bundle) / MANIFEST
    if damage == "flip":
        path.write_bytes(whole[:500] + bytes([whole[500] ^ 1]) + whole[501:])
    elif damage == "cut":
        path.write_bytes(whole[:-1])
    elif damage == "manifest":
        manifest.write_text("{")
    elif damage == "no manifest":
        manifest.unlink()
    else:
        manifest.write_text(manifest.read_text().replace(bundle.manifest.row_fingerprint, "0" * 64))
    with pytest.raises(FileNotFoundError if damage == "no manifest" else BundleError):
        open_index(bundle)
    with caplog.at_level(logging.WARNING, "limerank"):
        faiss_engine.recommend("u2", retriever="faiss")
    assert ("making the index" in caplog.text) == (damage != "no manifest")
    assert path.read_bytes() == whole
    open_index(bundle)


def test_a_large_catalog_with_an_index_uses_it_by_default(
    faiss_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recommending, "EXACT_UP_TO", 100)
    assert faiss_engine.recommend("u2").retrieved_by == ["exact"]  # there is none yet
    build_index(faiss_engine.bundle, users=3)
    assert faiss_engine.recommend("u2").retrieved_by == ["faiss"]


def test_an_index_goes_with_its_bundle(faiss_engine: Engine) -> None:
    store = BundleStore.open(faiss_engine.bundle.path.parent.parent)
    build_index(faiss_engine.bundle, users=3)
    old = faiss_engine.bundle.path
    newer = old.with_name(f"{old.name}-copy")
    shutil.copytree(old, newer)
    (store.path / "ACTIVE.json").write_text(f'{{"current": "{newer.name}", "previous": null}}')
    assert store.collect(1) == [old.name]
    assert not index_path(faiss_engine.bundle).exists()
    assert faiss_engine.recommend("u2", retriever="faiss").item_ids  # the engine keeps its bundle, and makes it anew
    kept = store.path / "indexes" / newer.name
    kept.mkdir()
    assert store.collect(1) == []
    assert list(kept.parent.iterdir()) == [kept]


def test_what_an_index_cannot_be_is_refused(faiss_engine: Engine) -> None:
    for bad in ({"recall": 0.0}, {"recall": 1.5}, {"k": 0}, {"candidates": 10}, {"users": 0}):
        with pytest.raises(UsageError, match="recall must be above 0 and at most 1"):
            build_index(faiss_engine.bundle, **bad)


def test_without_faiss_the_fix_is_named(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "faiss" else found(name))
    fresh = Engine(engine.bundle)
    with pytest.raises(UnavailableError, match=r"this needs faiss, .* pip install 'limerank\[faiss\]'"):
        fresh.recommend("u2", retriever="faiss")
    with pytest.raises(UnavailableError, match=r"limerank\[faiss\]"):
        build_index(engine.bundle)


def test_the_linear_head_orders_items_as_the_ranker_does(ranker: Ranker, dataset: Dataset) -> None:
    """Of the exact best tenth, most are in the best fifth by inner product; where the ranker folds, nearly all."""
    rows = compute_rows(ranker, dataset.item_table, "fp32")
    with torch.inference_mode():
        user = ranker.encode_user(random_request(dataset.encoders.space(), 12))
        logits = score_candidates(ranker, user, rows)
    head = LinearHead(ranker, rows)
    for task in range(logits.shape[1]):
        best = logits[:, task].topk(len(rows) // 10).indices.numpy()
        near = (item_vectors(*rows.widened()) @ head.query(user, task)).topk(len(rows) // 5).indices.numpy()
        assert recall_of([best], [near], k=len(best), candidates=len(near)).mean >= (0.9 if ranker.foldable else 0.6)


def test_a_head_without_a_bend_is_found_exactly(engine: Engine) -> None:
    """Where every hidden unit is on, logits are linear in the row, and the fit is the head itself."""
    ranker, catalog = engine.ranker, engine.bundle.rows.behind(1)
    state = engine.encode_user("u2").state
    raised = replace(state, head_part=state.head_part + 1000.0)
    with torch.inference_mode():
        logits = score_candidates(ranker, raised, catalog)[:, 0].double()
    near = item_vectors(*catalog.widened()).double() @ LinearHead(ranker, catalog).query(raised).double()
    assert float(((near - near.mean()) - (logits - logits.mean())).abs().max()) < 0.02 * float(logits.std())


def test_recall_is_the_fraction_found() -> None:
    best = [np.array([1, 2, 3, 4]), np.array([5, 6, 7, 8])]
    found = [np.array([4, 9, 1]), np.array([8, 7, 6, 5])]
    recall = recall_of(best, found, k=4, candidates=4)
    assert (recall.mean, recall.least, recall.users) == (0.75, 0.5, 2)


@pytest.mark.parametrize("rows", [[1], [1, 2] * 150, list(range(1, 9)) * 40])
def test_few_or_equal_items_have_a_linear_head_too(engine: Engine, rows: list[int]) -> None:
    """There are more numbers in a row than different rows: the best fit is not the only one, but there is one."""
    catalog = engine.bundle.rows.chosen(torch.tensor(rows))
    for user in range(8):
        state = engine.encode_user(f"u{user}").state
        query = LinearHead(engine.ranker, catalog).query(state).double()
        logits = score_candidates(engine.ranker, state, catalog)[:, 0].double()
        found = item_vectors(*catalog.widened()).double() @ query
        torch.testing.assert_close(found - found.mean(), logits - logits.mean(), atol=0.02, rtol=0)
