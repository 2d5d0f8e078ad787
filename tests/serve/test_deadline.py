"""Deadlines: what is left out when time is short, that the answer says so, and that it is right for what it did.

Time is a clock that the tests move; nothing sleeps.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from clocks import Clock
from hypothesis import given
from hypothesis import strategies as st

from limerank.errors import DeadlineError, UsageError
from limerank.ops.candidate import RequestHead, RowStore, best_candidates
from limerank.serve import deadline as deadlines
from limerank.serve.deadline import (
    LEAST_EVENTS,
    Deadline,
    RequestRecord,
    UserStageCost,
    best_in_time,
    reads_in_time,
)
from limerank.serve.engine import Engine
from limerank.serve.requests import Event
from limerank.serve.scorer import Scored


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 64 candidates, because the catalog of the tests has 200."""
    monkeypatch.setattr(deadlines, "FIRST_BLOCK", 64)
    monkeypatch.setattr(deadlines, "BLOCK", 64)


def test_a_deadline_runs_from_when_it_was_made() -> None:
    clock = Clock()
    deadline = Deadline(20, clock)
    clock.milliseconds = 15
    assert deadline.left() == pytest.approx(5)
    assert not deadline.over()
    clock.milliseconds = 20
    assert deadline.over()
    assert not Deadline.of(None).over()
    assert Deadline.of(deadline) is deadline
    with pytest.raises(UsageError, match="deadline_ms is not a number"):
        Deadline(math.nan)


def test_a_request_that_comes_too_late_is_refused(engine: Engine) -> None:
    for late in (0.0, -5.0):
        with pytest.raises(DeadlineError, match="before any work began; give requests more time"):
            engine.answer("u1", deadline_ms=late)
        with pytest.raises(DeadlineError):
            engine.recommend("u1", deadline_ms=late)


def test_a_request_that_waited_too_long_for_a_worker_is_refused(engine: Engine) -> None:
    """Its budget runs from when it arrived: every look at the clock takes a millisecond, and it has three."""
    with pytest.raises(DeadlineError, match="the deadline of 3 ms was over"):
        engine.answer("u1", deadline_ms=Deadline(3, Clock(tick=1)))


def test_a_user_whose_state_is_kept_reads_all(engine: Engine) -> None:
    """Whatever user stages took before: there is nothing to read."""
    fresh = Engine(engine.bundle)
    whole = fresh.answer("u2")
    for _ in range(40):
        fresh.stages.cost.observe(whole.history_used, 50.0)
    kept = fresh.answer("u2", deadline_ms=Deadline(20, Clock()))
    assert (kept.history_used, kept.user_state, kept.degraded) == (whole.history_used, "cached", [])
    assert kept.item_ids == whole.item_ids


def test_a_kept_state_that_does_not_answer_a_request_is_no_reason_to_read_all(engine: Engine) -> None:
    """A short history's state cannot grow: with an event more all would be read again, for which there is no time."""
    fresh, other = Engine(engine.bundle), Engine(engine.bundle)
    whole, more = fresh.answer("u2"), [Event("i7", {"clicked": 1})]
    for _ in range(40):
        fresh.stages.cost.observe(whole.history_used, 50.0)
    cut, expected = fresh.answer("u2", events=more, deadline_ms=Deadline(20, Clock())), other.answer("u2", events=more)
    assert cut.history_used < whole.history_used
    assert cut.degraded == [f"user: read the latest {cut.history_used} of {expected.history_used} events"]
    free = fresh.answer("u2", events=more)
    assert free.history_used == expected.history_used  # what was cut short is not kept
    np.testing.assert_allclose(free.probabilities, expected.probabilities, rtol=0, atol=1e-6)


def test_enough_time_changes_nothing(engine: Engine) -> None:
    """A clock that stands still: the same answer as without a deadline, and nothing is degraded."""
    fresh, other = Engine(engine.bundle), Engine(engine.bundle)  # that do not know yet how long a user stage takes
    timed, free = fresh.answer("u2", deadline_ms=Deadline(1, Clock())), other.answer("u2")
    assert timed.item_ids == free.item_ids
    np.testing.assert_array_equal(timed.probabilities, free.probabilities)
    assert free.degraded == timed.degraded == []
    assert free.unscored == timed.unscored == 0
    assert fresh.rank("u2", deadline_ms=Deadline(1, Clock())).equals(other.rank("u2"))


@pytest.mark.parametrize("exclude_seen", [False, True])
@pytest.mark.usefixtures("small_blocks")
def test_a_cut_scan_is_the_best_of_what_was_scored(engine: Engine, exclude_seen: bool) -> None:
    """Whenever time runs out: the ranking of the first items alone, and the rest counted, none silently."""
    everything = engine.answer("u2", exclude_seen=exclude_seen)
    names = engine.catalog.names_of_rows(np.arange(1, len(engine.catalog) + 1))
    cuts = set()
    for budget in range(6, 40):
        fresh, deadline = Engine(engine.bundle), Deadline(budget, Clock(tick=1))
        ranking = fresh.answer("u2", exclude_seen=exclude_seen, deadline_ms=deadline)
        assert ranking.candidates + ranking.unscored == everything.candidates
        assert len(ranking.item_ids) == ranking.candidates
        ended = max(names.index(item) for item in ranking.item_ids) // 64
        alone = engine.answer("u2", names[: 64 * (ended + 1)], exclude_seen=exclude_seen)
        assert ranking.item_ids == alone.item_ids
        np.testing.assert_allclose(ranking.probabilities, alone.probabilities, rtol=0, atol=1e-6)
        said = [f"interact: {ranking.unscored:,} of {everything.candidates:,} candidates were not scored"]
        assert ranking.degraded == (said if ranking.unscored else [])
        cuts.add(ended)
    assert {0, 3} < cuts  # from one block to all four


@given(
    items=st.integers(0, 60),
    k=st.integers(0, 70),
    budget=st.integers(1, 12),
    named=st.booleans(),
    whole_ties=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_scored_in_time_is_a_prefix_of_the_candidates(
    items: int, k: int, budget: int, named: bool, whole_ties: bool, seed: int
) -> None:
    """Equal to `best_candidates` of those scored, ties included (rows repeat), for every cut and every k."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(0, 3, (items, 2), generator=generator).float()
    store = RowStore.store(rows, torch.zeros(items, 2), "fp32")
    layers = [(torch.randn(2, 2, generator=generator), torch.zeros(2))]
    head = RequestHead(torch.randn(2, 2, generator=generator), torch.zeros(2), layers)
    index = torch.randint(0, items, (2 * items,), generator=generator) if named and items else None
    count = items if index is None else len(index)

    def plain_best(*, k: int, store: RowStore, index: torch.Tensor | None) -> Scored:
        return Scored(best_candidates(store, head, k, 1, index, whole_ties=whole_ties), "folded")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deadlines, "FIRST_BLOCK", 4)
        patch.setattr(deadlines, "BLOCK", 8)
        record = RequestRecord.begin(Deadline(budget + 2, Clock(tick=1)))
        scored_by, unscored = best_in_time(record, plain_best, store, k, index, whole_ties=whole_ties)
    scored = count - unscored
    assert scored >= min(count, 4)
    whole = torch.arange(items) if index is None else index
    expected = best_candidates(store, head, min(k, scored), 1, whole[:scored], whole_ties=whole_ties)
    assert scored_by.top.positions.tolist() == expected.positions.tolist()
    assert torch.equal(scored_by.top.values, expected.values)


def test_a_history_is_shortened_to_what_fits(engine: Engine) -> None:
    """The latest events are read, as if the others had not been; a request that waits for nothing reads all again."""
    fresh = Engine(engine.bundle)
    events = [Event(f"i{n}", {"clicked": 1}) for n in range(20)]
    for _ in range(40):
        fresh.stages.cost.observe(20, 50.0)
        fresh.stages.cost.observe(LEAST_EVENTS, 1.0)
    short = fresh.answer("nobody", events=events, deadline_ms=Deadline(20, Clock()))
    assert short.degraded == ["user: read the latest 16 of 20 events"]
    assert short.history_used == 16
    alone = fresh.answer("nobody", short.item_ids, events=events[-16:])
    by_item = np.argsort([short.item_ids.index(item) for item in alone.item_ids])
    np.testing.assert_allclose(short.probabilities, alone.probabilities[by_item], rtol=0, atol=1e-5)
    assert fresh.answer("nobody", events=events).history_used == 20


@given(
    seen=st.lists(st.tuples(st.integers(0, 20000), st.floats(0, 1e4)), max_size=20),
    events=st.integers(0, 20000),
    budget=st.floats(0, 1e4),
)
def test_how_many_events_fit(seen: list[tuple[int, float]], events: int, budget: float) -> None:
    """All or fewer, never below the least, all that were asked for while nothing is known, and more time never less."""
    costs = []
    for _ in range(2):
        cost = UserStageCost()
        for length, milliseconds in seen:
            cost.observe(length, milliseconds)
        costs.append(cost)
    fits = costs[0].longest(events, budget)
    assert min(events, LEAST_EVENTS) <= fits <= events
    assert costs[1].longest(events, 2 * budget) >= fits
    assert UserStageCost().longest(events, budget) == events


def test_who_asks_whether_a_history_fits_changes_nothing() -> None:
    """A request that a kept state answers asks, and shortens nothing: the next user's whole history takes as long."""
    cost = UserStageCost()
    cost.observe(1000, 400.0)
    for _ in range(50):
        assert not reads_in_time(RequestRecord.begin(100.0), cost, 1000)
    assert cost.expected(1000) == 400.0
    assert reads_in_time(RequestRecord.begin(100.0), cost, LEAST_EVENTS)
    assert reads_in_time(RequestRecord.begin(1e7), cost, 1000)


def test_one_slow_request_is_not_believed_for_ever() -> None:
    cost = UserStageCost()
    cost.observe(1000, 400.0)
    tries = 1
    while cost.longest(1000, 10.0) < 1000:
        tries += 1
        assert tries < 100
    assert tries > 10
