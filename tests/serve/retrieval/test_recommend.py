"""Recommend: retrieval beside the user stage, exact ranking of what was found, what was seen, diversity."""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clocks import Clock
from engines import need
from hypothesis import given
from hypothesis import strategies as st

from limerank.errors import UsageError
from limerank.serve.deadline import Deadline
from limerank.serve.engine import Engine
from limerank.serve.overlay.items import Item
from limerank.serve.requests import Event
from limerank.serve.retrieval.diversity import AtMost, Mmr
from limerank.serve.retrieval.recommending import Retrieval

PATIENCE = 60.0


def known(user_id: str, count: int) -> list[str]:
    """Somebody else's retriever."""
    return [f"i{n}" for n in range(min(count, 30))]


def test_by_default_the_whole_catalog_is_ranked_without_what_was_seen(engine: Engine) -> None:
    recommended = engine.recommend("u2", 7)
    ranking = engine.answer("u2", limit=7, exclude_seen=True)
    assert recommended.item_ids == ranking.item_ids
    np.testing.assert_array_equal(recommended.probabilities, ranking.probabilities)
    assert recommended.retrieved_by == ["exact"]
    assert engine.recommend("u2", 7, filter_seen=False).item_ids == engine.answer("u2", limit=7).item_ids
    by_view = engine.recommend("u2", 7, task="long_view", events=[Event("i7", {"clicked": 1})])
    assert (np.diff(by_view.probabilities[:, 1]) <= 0).all()
    assert "i7" not in by_view.item_ids


def test_what_a_callable_finds_is_ranked_exactly(engine: Engine) -> None:
    asked: list[tuple[str, int]] = []

    def found(user_id: str, count: int) -> list[str]:
        asked.append((user_id, count))
        return ["i5", "i9", "i5", "i100"]

    ranking = engine.recommend("u2", 10, retriever=found, candidates=50, filter_seen=False)
    assert ranking.item_ids == engine.answer("u2", ["i5", "i9", "i100"]).item_ids
    assert ranking.retrieved_by == ["found"]
    assert asked == [("u2", 50)]
    engine.recommend("u2", 10, retriever=found, candidates=50)
    assert asked[-1][1] == 50 + engine.answer("u2", exclude_seen=True).seen_items  # what was seen must not use it up


@pytest.mark.parametrize("name", ["exact", "popular", "faiss"])
def test_a_callable_may_be_called_like_a_retriever_of_ours(engine: Engine, name: str) -> None:
    def found(user_id: str, count: int) -> list[str]:
        return ["i5", "i9"]

    found.__name__ = name
    ranking = engine.recommend("u2", 10, retriever=found, filter_seen=False)
    assert sorted(ranking.item_ids) == ["i5", "i9"]
    both = engine.recommend("u2", 500, retriever=[found, "popular"], filter_seen=False)
    assert {"i5", "i9"} < set(both.item_ids)
    assert both.retrieved_by == [name, "popular"]


def test_a_deadline_may_be_centuries_away(engine: Engine) -> None:
    """Longer than a lock can wait: retrieval is still waited for, and it is slower than the user stage."""
    begun = threading.Event()

    class Told(dict[str, Any]):
        """A context that is read in the user stage."""

        def __iter__(self) -> Iterator[str]:
            begun.set()
            return super().__iter__()

    def slow(user_id: str, count: int) -> list[str]:
        begun.wait(PATIENCE)
        time.sleep(0.2)
        return ["i5"]

    ranking = engine.recommend("u2", 3, retriever=slow, filter_seen=False, context=Told(hour=3), deadline_ms=1e15)
    assert (ranking.item_ids, ranking.degraded) == (["i5"], [])


def test_retrieval_and_the_user_stage_run_at_the_same_time(engine: Engine) -> None:
    """Each waits in the middle of its work for the other to be in the middle of its own: in a row neither could end."""
    together = threading.Barrier(2, timeout=PATIENCE)

    class Meeting(dict[str, Any]):
        """A context that is read in the user stage, by its first reader not before retrieval is under way."""

        met = False

        def __iter__(self) -> Iterator[str]:
            if not self.met:
                self.met = True
                together.wait()
            return super().__iter__()

    def found(user_id: str, count: int) -> list[str]:
        together.wait()
        return known(user_id, count)

    ranking = engine.recommend("u2", 3, retriever=found, context=Meeting(device="phone"))
    spans = {span.stage: span for span in ranking.timeline}
    assert spans["user"].overlaps(spans["retrieve"])
    assert spans["user"].thread != spans["retrieve"].thread == "limerank-retrieve-found"
    assert not spans["retrieve"].overlaps(spans["lookup"])
    assert list(ranking.milliseconds)[-1] == "total"
    stages = {"queue", "history", "user", "retrieve", "wait", "lookup", "interact", "select", "total"}
    assert set(ranking.milliseconds) == stages
    assert ranking.milliseconds["total"] <= sum(list(ranking.milliseconds.values())[:-1])


def test_no_worker_waits_for_what_is_retrieved_outside(engine: Engine) -> None:
    """The retriever asks the same engine, which has one worker; only a worker that nobody holds can answer it."""
    with Engine(engine.bundle, threads=1) as alone:

        def neighbours(user_id: str, count: int) -> list[str]:
            return alone.answer("u3", limit=20).item_ids

        ranking = alone.recommend("u2", 5, retriever=neighbours, deadline_ms=1000 * PATIENCE)
        assert ranking.degraded == []
        assert ranking.candidates + ranking.seen_items == 20


def test_stages_of_one_thread_do_not_overlap(engine: Engine) -> None:
    spans = engine.recommend("u2", 3, diversify=Mmr(0.5)).timeline
    assert [span.stage for span in spans] == ["queue", "history", "user", "lookup", "interact", "select", "diversify"]
    assert not any(one.overlaps(other) for one, other in pairwise(spans))
    assert all(0 <= span.started_ms <= span.ended_ms for span in spans)


def test_a_retriever_that_does_not_come_back_is_not_waited_for(engine: Engine) -> None:
    """Popular items stand in for it, and the answer says so; a clock that stands still always has 4 ms left."""
    released = threading.Event()

    def hangs(user_id: str, count: int) -> list[str]:
        assert released.wait(PATIENCE)
        return []

    try:
        fresh = Engine(engine.bundle)
        ranking = fresh.recommend("u2", 5, retriever=hangs, candidates=20, deadline_ms=Deadline(4, Clock()))
    finally:
        released.set()
    assert ranking.degraded == ["retrieve: hangs was not waited for, popular items stand in for it"]
    assert ranking.item_ids == engine.recommend("u2", 5, retriever="popular", candidates=20).item_ids
    assert [span.thread for span in ranking.timeline if span.stage == "retrieve"] == ["limerank-retrieve-hangs"]


def test_popular_items_are_those_of_most_users(engine: Engine) -> None:
    counts = Counter(engine.bundle.seen["item"].tolist())
    (most,) = engine.retrievers.popular()("u1", 1)
    assert counts[int(engine.catalog.rows_of([most])[0])] == max(counts.values())
    ranking = engine.recommend("nobody", 5, retriever="popular", candidates=5)
    assert sorted(ranking.item_ids) == sorted(engine.retrievers.popular()("nobody", 5))
    both = engine.recommend("nobody", 50, retriever=["popular", known], candidates=5)
    assert set(both.item_ids) == {*ranking.item_ids, *known("nobody", 5)}
    assert both.retrieved_by == ["popular", "known"]


def test_what_a_retriever_raises_is_raised(engine: Engine) -> None:
    def broken(user_id: str, count: int) -> list[str]:
        raise ConnectionError("the service is down")

    with pytest.raises(ConnectionError, match="the service is down"):
        engine.recommend("u2", retriever=broken)
    with pytest.raises(UsageError, match="the retriever <lambda> returned: str is no list of ids"):
        engine.recommend("u2", retriever=lambda user, count: "i1")


@pytest.mark.parametrize(
    ("retriever", "said"),
    [
        ("fais", "no retriever 'fais'; did you mean 'faiss'?"),
        ([], "name at least one"),
        (["exact", known], "'exact' alone"),
    ],
)
def test_retrievers_that_make_no_sense_are_refused(engine: Engine, retriever: Retrieval, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        engine.recommend("u2", retriever=retriever)


def test_other_bad_requests_are_refused(engine: Engine) -> None:
    for bad, said in (
        ({"k": 0}, "k and candidates must be at least 1, but are 0 and 1000"),
        ({"candidates": 0}, "k and candidates must be at least 1"),
        ({"task": "clik"}, "no task 'clik'; did you mean 'click'?"),
        ({"diversify": AtMost("topik", 1)}, "no item feature 'topik' with values to count; did you mean 'topic'?"),
    ):
        with pytest.raises(UsageError, match=said.replace("?", "[?]")):
            engine.recommend("u2", **bad)
    with pytest.raises(UsageError, match="must be at least 1"):
        AtMost("topic", 0)
    with pytest.raises(UsageError, match="between 0 and 1"):
        Mmr(1.5)


def values_of(engine: Engine, feature: str, items: list[str]) -> list[list[int]]:
    """From the table as it is stored, by hand."""
    table, rows = engine.bundle.item_table, engine.catalog.rows_of(items).tolist()
    if feature == "tags":
        (tags,) = table.lists
        return [sorted(set(tags.values[tags.offsets[row] : tags.offsets[row + 1]].tolist())) for row in rows]
    names = [encoder.name for encoder in engine.bundle.encoders.item if encoder.name != "tags"]
    return [[int(table.indices[row, names.index(feature)])] for row in rows]


@pytest.mark.parametrize("feature", ["topic", "tags", "duration_s"])
@given(most=st.integers(1, 4), k=st.integers(1, 30), user=st.integers(0, 59))
def test_at_most_so_many_of_a_value(engine: Engine, feature: str, most: int, k: int, user: int) -> None:
    """The first items keep the limit and the order of the ranking; what follows them are the best of those beyond."""
    everything = engine.answer(f"u{user}", exclude_seen=True)
    listed = engine.recommend(f"u{user}", k, diversify=AtMost(feature, most))
    assert len(listed.item_ids) == k
    taken: Counter[int] = Counter()
    kept: list[str] = []
    beyond: list[str] = []
    for item, values in zip(everything.item_ids, values_of(engine, feature, everything.item_ids), strict=True):
        fits = all(taken[value] < most for value in values if value > 1) and len(kept) < k
        (kept if fits else beyond).append(item)
        taken.update(values if fits else [])
    assert listed.item_ids == (kept + beyond)[:k]
    scores = dict(zip(everything.item_ids, everything.probabilities[:, 0].tolist(), strict=True))
    np.testing.assert_allclose(listed.probabilities[:, 0], [scores[item] for item in listed.item_ids], atol=1e-6)


def test_mmr_weighs_relevance_against_likeness(engine: Engine) -> None:
    """Against the formula, written out pair by pair; weight 0 changes nothing, weight 1 spreads rows most."""
    everything = engine.answer("u2", exclude_seen=True)
    rows = engine.bundle.rows.widened()[0].double().numpy()[engine.catalog.rows_of(everything.item_ids)]
    p = everything.probabilities[:, 0].astype(np.float64)
    logits = np.log(p) - np.log1p(-p)
    relevance = (logits - logits.min()) / (logits.max() - logits.min())

    def cosine(a: int, b: int) -> float:
        return float(rows[a] @ rows[b] / np.linalg.norm(rows[a]) / np.linalg.norm(rows[b]))

    likeness = []
    for weight in (0.0, 0.3, 0.7, 1.0):
        chosen: list[int] = []
        for _ in range(6):
            gains = {
                c: (1 - weight) * relevance[c] - weight * max((cosine(c, s) for s in chosen), default=0.0)
                for c in range(len(rows))
                if c not in chosen
            }
            best = max(gains.values())
            chosen.append(next(c for c, gain in gains.items() if gain >= best - 1e-12))
        listed = engine.recommend("u2", 6, diversify=Mmr(weight))
        assert listed.item_ids == [everything.item_ids[c] for c in chosen]
        likeness.append(np.mean([cosine(a, b) for a in chosen for b in chosen if a < b]))
    assert engine.recommend("u2", 6, diversify=Mmr(0.0)).item_ids == everything.item_ids[:6]
    assert likeness[0] > likeness[-1]


def test_a_list_is_not_diversified_when_time_is_up(engine: Engine) -> None:
    """Time ends in the last stage: every look at the clock takes a millisecond, the budget ends where a stage does."""
    plain, diverse = engine.recommend("u2", 6), engine.recommend("u2", 6, diversify=Mmr(1.0))
    assert plain.item_ids != diverse.item_ids
    kept = []  # how many items of the diverse order each budget was enough for
    for budget in range(6, 40):  # before, the history is shortened as well
        fresh, deadline = Engine(engine.bundle), Deadline(budget, Clock(tick=1))
        ranking = fresh.recommend("u2", 6, diversify=Mmr(1.0), deadline_ms=deadline)
        said = [line for line in ranking.degraded if line.startswith("diversify: ")]
        told = [int(line.split()[2]) if " after " in line else 0 for line in said]
        kept.append(told[0] if told else 6)
        first = diverse.item_ids[: kept[-1]]
        assert ranking.item_ids == first + [item for item in plain.item_ids if item not in first][: 6 - len(first)]
    assert kept == sorted(kept)
    assert {0, 3, 6} <= set(kept)


@pytest.mark.parametrize("retriever", ["exact", "popular", "faiss"])
def test_the_catalog_is_that_of_today(store: Path, tmp_path: Path, retriever: str) -> None:
    """What was deleted since the export is not recommended, what was upserted can be, whoever retrieves."""
    if retriever == "faiss":
        need("faiss", "faiss")
    shutil.copytree(store, tmp_path / "store")
    with Engine.open(tmp_path / "store") as changed:
        before = changed.recommend("nobody", 3, retriever=retriever, candidates=50, diversify=Mmr(0.2))
        gone = before.item_ids[0]
        changed.delete([gone])
        features = {encoder.name: None for encoder in changed.bundle.encoders.item if encoder.name != "item_id"}
        changed.upsert([Item("brand new", features)])
        after = changed.recommend("nobody", 300, retriever=retriever, candidates=50, diversify=AtMost("topic", 5))
        assert gone not in after.item_ids
        assert after.unknown_items == []
        assert ("brand new" in after.item_ids) == (retriever != "popular")


@pytest.mark.parametrize("retriever", ["exact", "popular", "faiss"])
def test_what_was_deleted_takes_nobodys_seat(store: Path, tmp_path: Path, retriever: str) -> None:
    """As many candidates as were asked for, when all that a retriever would have named first is gone."""
    if retriever == "faiss":
        need("faiss", "faiss")
    shutil.copytree(store, tmp_path / "store")
    with Engine.open(tmp_path / "store") as changed:
        before = changed.recommend("nobody", 20, retriever=retriever, candidates=20)
        changed.delete(before.item_ids)
        after = changed.recommend("nobody", 20, retriever=retriever, candidates=20)
        assert len(after.item_ids) == 20
        assert not set(before.item_ids) & set(after.item_ids)
        assert after.candidates == (180 if retriever == "exact" else 20)
