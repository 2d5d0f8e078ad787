"""The engine: unknown users and items, new events, limits, stages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from limerank.errors import UsageError
from limerank.serve import answering
from limerank.serve.engine import Engine
from limerank.serve.requests import Event


def test_a_click_changes_the_ranking_and_is_not_remembered(engine: Engine) -> None:
    before = engine.answer("u3")
    clicked = before.item_ids[-1]
    after = engine.answer("u3", events=[Event(clicked, {"clicked": 1, "watched_fraction": 0.9})])
    assert after.history_used == before.history_used + 1 or before.history_used == engine.bundle.manifest.max_history
    assert not np.allclose(after.probabilities, before.probabilities)
    assert engine.answer("u3").item_ids == before.item_ids


def test_what_happened_in_an_event_matters(engine: Engine) -> None:
    clicked, skipped = (
        engine.answer("u3", events=[Event("i7", {"clicked": value, "watched_fraction": value})]) for value in (1, 0)
    )
    assert not np.allclose(clicked.probabilities, skipped.probabilities)


def test_an_unknown_user_ranks_with_an_empty_history(engine: Engine) -> None:
    ranking = engine.answer("nobody")
    assert not ranking.known_user
    assert ranking.history_used == 0
    assert len(ranking.item_ids) == engine.bundle.manifest.items - 1
    assert np.isfinite(ranking.probabilities).all()


def test_unknown_items_are_scored_alike_and_listed(engine: Engine) -> None:
    ranking = engine.answer("u1", ["i1", "ghost", "i2", "phantom"])
    assert ranking.unknown_items == ["ghost", "phantom"]
    assert sorted(ranking.item_ids) == ["ghost", "i1", "i2", "phantom"]
    scores = dict(zip(ranking.item_ids, ranking.probabilities[:, 0], strict=True))
    assert scores["ghost"] == scores["phantom"]


def test_unknown_category_in_context_is_accepted_but_unknown_feature_is_not(engine: Engine) -> None:
    assert np.isfinite(engine.answer("u1", context={"device": "toaster"}).probabilities).all()
    with pytest.raises(UsageError, match="no context feature 'devise'; did you mean 'device'?"):
        engine.answer("u1", context={"devise": "phone"})
    with pytest.raises(UsageError, match="no event feature 'click'; did you mean 'clicked'?"):
        engine.answer("u1", events=[Event("i1", {"click": 1})])
    with pytest.raises(UsageError, match="no task 'clik'; did you mean 'click'?"):
        engine.answer("u1", task="clik")


def test_an_event_on_an_unknown_item_is_history_all_the_same(engine: Engine) -> None:
    assert engine.answer("nobody", events=[Event("ghost", {"clicked": 1})]).history_used == 1


def test_history_is_capped(engine: Engine) -> None:
    events = [Event(f"i{n}", {"clicked": 1}) for n in range(100)]
    assert engine.answer("u1", events=events).history_used == engine.bundle.manifest.max_history


def test_limit_and_task(engine: Engine) -> None:
    everything = engine.answer("u2")
    assert engine.answer("u2", limit=5).item_ids == everything.item_ids[:5]
    by_view = engine.answer("u2", task="long_view")
    assert (np.diff(by_view.probabilities[:, 1]) <= 0).all()


def test_no_candidates_is_an_empty_ranking(engine: Engine) -> None:
    assert engine.answer("u2", []).item_ids == []


def test_stages_are_timed(engine: Engine) -> None:
    stages = engine.answer("u2").milliseconds
    assert list(stages) == ["queue", "history", "user", "lookup", "interact", "select", "total"]
    assert stages["total"] == pytest.approx(sum(v for k, v in stages.items() if k != "total"), rel=1e-6)


@pytest.mark.parametrize("limit", [0, 1, 49, 200, 1000, None])
@pytest.mark.parametrize("task", ["click", "long_view"])
def test_a_limit_is_a_cut_of_a_stable_sort(engine: Engine, limit: int | None, task: str) -> None:
    """Order, ties (every item is asked for twice) and the probabilities of all tasks, as one sort would give them."""
    asked = [f"i{n % 100}" for n in range(200)]
    scores = engine.score(engine.encode_user("u2"), asked)
    column = engine.bundle.manifest.tasks.index(task)
    order = np.argsort(-scores[:, column], kind="stable")[:limit]
    ranking = engine.answer("u2", asked, limit=limit, task=task)
    assert ranking.item_ids == [asked[place] for place in order]
    np.testing.assert_array_equal(ranking.probabilities, scores[order])
    assert ranking.candidates == 200


def test_a_negative_limit_is_refused(engine: Engine) -> None:
    with pytest.raises(UsageError, match="limit must not be negative, but is -1"):
        engine.answer("u2", limit=-1)


def test_seen_items_are_left_out_and_the_rest_keeps_its_order(engine: Engine) -> None:
    """As if the whole catalog were ranked and every item with an event of the user struck out."""
    bundle = engine.bundle
    user = int(bundle.user_ids.rows_of(["u2"])[0])
    start, end = bundle.histories["offsets"][user : user + 2].tolist()
    recent = set(bundle.item_ids.names_of(bundle.histories["item"][start:end].tolist()))
    everything = engine.answer("u2")
    unseen = engine.answer("u2", exclude_seen=True)
    seen = set(everything.item_ids) - set(unseen.item_ids)
    assert recent < seen  # older ones too
    assert unseen.seen_items == len(seen)
    assert unseen.candidates == len(unseen.item_ids) == everything.candidates - len(seen)
    assert unseen.item_ids == [item for item in everything.item_ids if item not in seen]
    kept = [place for place, item in enumerate(everything.item_ids) if item not in seen]
    np.testing.assert_array_equal(unseen.probabilities, everything.probabilities[kept])
    assert engine.answer("u2", limit=3, exclude_seen=True).item_ids == unseen.item_ids[:3]
    some = [*sorted(seen)[:3], *unseen.item_ids[:2], "ghost"]
    assert sorted(engine.answer("u2", some, exclude_seen=True).item_ids) == sorted(some[3:])
    assert engine.answer("u2", sorted(seen), exclude_seen=True).item_ids == []


def test_an_event_of_the_request_is_seen(engine: Engine) -> None:
    event = Event("i7", {"clicked": 1})
    assert "i7" not in engine.answer("nobody", events=[event], exclude_seen=True).item_ids
    assert "i7" in engine.answer("nobody", events=[event]).item_ids


def test_repeated_candidates_are_listed(engine: Engine) -> None:
    ranking = engine.answer("u2", ["i1", "i2", "i1", "i3", "i3"])
    assert ranking.repeated_items == ["i1", "i3"]
    assert len(ranking.item_ids) == 5


@pytest.mark.parametrize("sparse", [0, 10**6])
def test_repeated_candidates_are_listed_whether_known_or_not(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, sparse: int
) -> None:
    """Each once, in order of first mention, whether rows are marked or sorted to find them."""
    monkeypatch.setattr(answering, "SPARSE", sparse)
    for asked, repeated in (
        (["ghost", "i1", "other ghost"], []),
        (["ghost", "i1", "ghost", "i2"], ["ghost"]),
        (["i2", "ghost", "i1", "i1", "other", "i2", "other"], ["i2", "i1", "other"]),
        (["ghost", "other", "i1", "i3", "i1"], ["i1"]),
        ([], []),
    ):
        assert engine.answer("u1", asked).repeated_items == repeated


def test_ids_may_be_whole_numbers_in_every_call(engine: Engine) -> None:
    number: Any = 2
    nothing: Any = None
    assert not engine.encode_user(number).known_user
    assert not engine.user_inputs(number, {})[1]
    with pytest.raises(UsageError, match="user_id: None is no id"):
        engine.encode_user(nothing)
