"""The integer path of serving: every ranker that folds, from real rows to an engine's answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from limerank.api.run import Run
from limerank.data.batches import RequestLoader
from limerank.data.store.dataset import StoredDataset
from limerank.models import RANKERS, Ranker, UserState, build_ranker
from limerank.ops.candidate import RowStore, best_candidates, candidate_probabilities
from limerank.ops.candidate.integer import IntegerRows, best_by_integers, fast, reference
from limerank.serve import scorer as scorer_module
from limerank.serve.bundles.offline import RowType, compute_rows
from limerank.serve.engine import Engine
from limerank.serve.scorer import Scorer, request_head
from limerank.splits import Part

FOLD_WITH: dict[str, dict[str, object]] = {
    "linear-attention": {"normalizer": "events", "feature_map": "silu"},  # rows of both signs
    "mamba": {"readout": "last"},
    "sasrec": {"readout": "last"},
    "ttsn": {"interaction": "dot"},  # it folds anyway, but to rows without numbers
}
"""Options with which a ranker folds that does not by default."""


def built(name: str, dataset: StoredDataset, **options: object) -> Ranker:
    torch.manual_seed(0)
    return build_ranker({"name": name, **options}, dataset.encoders.space(), len(dataset.schema.tasks), "test").eval()


def users_of(ranker: Ranker, dataset: StoredDataset, count: int = 2) -> list[UserState]:
    loader = RequestLoader(dataset, Part.TEST, batch_requests=1, max_history=20)
    return [ranker.encode_user(loader.user_inputs(requests)) for requests in list(loader.plan())[:count]]


@pytest.mark.parametrize("row_type", ["fp32", "fp16"])
@pytest.mark.parametrize("name", sorted(RANKERS))
def test_every_ranker_that_folds(name: str, row_type: RowType, dataset: StoredDataset) -> None:
    """The top of each task by integers is that of fp32, up to what a BLAS rounds differently in other blocks."""
    ranker = built(name, dataset, **FOLD_WITH.get(name, {}))
    if not ranker.foldable:
        assert not Scorer(ranker, made_up(5000, ranker)).worth_preparing
        return
    with torch.inference_mode():
        store = compute_rows(ranker, dataset.item_table, row_type)
        rows = IntegerRows.of(store)
        product = fast(rows.rows.shape[1], rows.hidden) or reference
        for user in users_of(ranker, dataset):
            head = request_head(ranker, user, "integer")
            probabilities = candidate_probabilities(store, head)
            for task, k in ((0, 10), (1, 1), (0, len(store))):
                found = best_by_integers(store, rows, head, k, task, product=product)
                expected = best_candidates(store, head, k, task)
                torch.testing.assert_close(found.top.scores, expected.scores, rtol=1e-5, atol=1e-6)
                torch.testing.assert_close(found.top.values, probabilities[found.top.positions], rtol=1e-5, atol=1e-6)
                assert len(found.top.positions.unique()) == k


@pytest.mark.parametrize("options", [{"head": (24, 12)}, {"head": (24,), "task_head": (8,)}])
def test_deeper_heads(options: dict[str, object], dataset: StoredDataset) -> None:
    """Layers behind the first, common or of each task: the bound goes through them."""
    ranker = built("lime-mha", dataset, **options)
    with torch.inference_mode():
        store = compute_rows(ranker, dataset.item_table, "fp16")
        (user,) = users_of(ranker, dataset, 1)
        head = request_head(ranker, user, "integer")
        found = best_by_integers(store, IntegerRows.of(store), head, 5, 1)
        torch.testing.assert_close(found.top.scores, best_candidates(store, head, 5, 1).scores, rtol=1e-5, atol=1e-6)


@pytest.fixture
def prepared(runs: dict[str, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """An engine that takes the integer path on any CPU and for the smallest catalog, by the reference product."""
    monkeypatch.setattr(scorer_module, "FEWEST_ITEMS", 1)
    monkeypatch.setattr(scorer_module, "pays_from", lambda shape: 1)
    monkeypatch.setattr(scorer_module, "fast", lambda width, hidden: fast(width, hidden) or reference)
    return Engine(runs["lime-mha"].publish(tmp_path / "store", rows="fp32", quiet=True))


def test_the_engine_answers_the_same(prepared: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole catalog and named items, any task, seen items left out; and the answer says how it came about."""
    named = prepared.answer("u1").item_ids
    asked: list[dict[str, Any]] = [
        {"limit": 3},
        {"limit": 2, "task": "long_view"},
        {"limit": 2, "item_ids": named[::-1] + named[:40]},
        {"limit": 1, "exclude_seen": True},
        {"limit": 150},
        {},
    ]
    answers = [prepared.answer("u3", **one) for one in asked]
    assert [one.path for one in answers[:3]] == ["integer"] * 3
    assert all(one.path != "integer" for one in answers[4:])
    assert all(one.fell_back or 0 < one.rescored <= 200 // 8 for one in answers[:3])
    prepared.stages.scorer.pays_from = None
    for one, question in zip(answers, asked, strict=True):
        other = prepared.answer("u3", **question)
        assert other.path in ("folded", "plain")
        assert (other.rescored, other.fell_back) == (0, False)
        np.testing.assert_allclose(one.probabilities, other.probabilities, rtol=1e-4, atol=1e-6)


def test_small_catalogs_are_not_prepared(engine: Engine) -> None:
    assert engine.stages.scorer.pays_from is None
    assert engine.stages.scorer.integer_rows is None
    assert engine.answer("u3", limit=3).path in ("folded", "plain")


def made_up(items: int, ranker: Ranker, near_ties: bool = False) -> RowStore:
    """Rows of random items; or of items that hardly differ."""
    torch.manual_seed(1)
    items_t = torch.randn(items, ranker.options.width)
    items_t = items_t[:1] + 1e-6 * items_t if near_ties else items_t
    with torch.inference_mode():
        return RowStore.store(ranker.item_rows(items_t), ranker.head.from_item(items_t), "fp32")


def test_which_candidates_go_in_integers(dataset: StoredDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Own rows and views of them, many candidates for few wanted; everything else in fp32."""
    monkeypatch.setattr(scorer_module, "fast", lambda width, hidden: reference)
    monkeypatch.setattr(scorer_module, "pays_from", lambda shape: 2000)
    ranker = built("lime-mha", dataset)
    store = made_up(5000, ranker)
    scorer = Scorer(ranker, store)
    assert scorer.worth_preparing
    (user,) = users_of(ranker, dataset, 1)
    with torch.inference_mode():
        assert scorer.best(user, 5).path != "integer"  # nothing is prepared yet
        scorer.prepare()
        own = scorer.best(user, 5)
        assert (own.path, own.fell_back) == ("integer", False)
        for view in (store.behind(1), store.between(0, 4000), store.between(1234, 3456)):
            seen, copy = scorer.best(user, 5, store=view), RowStore(view.rows.clone(), view.head_part.clone())
            assert seen.path == "integer"
            torch.testing.assert_close(
                scorer.best(user, 5, store=copy).top.scores, seen.top.scores, rtol=1e-4, atol=1e-6
            )
        assert scorer.best(user, 5, index=torch.arange(3000)).path == "integer"
        others = [
            scorer.best(user, 5, index=torch.arange(1999)),
            scorer.best(user, 1000),
            scorer.best(user, 0),
            scorer.best(user, 5, store=RowStore(store.rows.clone(), store.head_part.clone())),
            scorer.best(user, 5, store=store.between(0, 1000)),
        ]
        assert all(one.path in ("folded", "plain") for one in others)
        torch.testing.assert_close(others[3].top.scores, own.top.scores, rtol=1e-4, atol=1e-6)


def test_a_catalog_that_always_falls_back_is_left_alone(
    dataset: StoredDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Items that hardly differ: after a few requests integers are not tried, later once again."""
    monkeypatch.setattr(scorer_module, "fast", lambda width, hidden: reference)
    monkeypatch.setattr(scorer_module, "pays_from", lambda shape: 1)
    ranker = built("lime-mha", dataset)
    scorer = Scorer(ranker, made_up(4100, ranker, near_ties=True))
    scorer.prepare()
    (user,) = users_of(ranker, dataset, 1)
    with torch.inference_mode():
        found = [scorer.best(user, 5) for _ in range(scorer_module.DISAPPOINTMENTS + scorer_module.REST + 2)]
    tried = [number for number, one in enumerate(found) if one.path == "integer"]
    assert all(found[number].fell_back for number in tried)
    assert tried == [0, 1, 2, scorer_module.DISAPPOINTMENTS + scorer_module.REST - 1]


def test_the_probe_measures_or_says_no(dataset: StoredDataset) -> None:
    """On any CPU: without a fast product never, with one a number of candidates or never."""
    ranker = built("lime-mha", dataset)
    scorer = Scorer(ranker, made_up(5000, ranker))
    scorer.prepare()
    if scorer.integer_rows is None:
        assert scorer.pays_from is None
    else:
        assert fast(scorer.integer_rows.rows.shape[1], scorer.integer_rows.hidden) is not None
        assert scorer.pays_from is not None
        assert 0 < scorer.pays_from <= 5000
