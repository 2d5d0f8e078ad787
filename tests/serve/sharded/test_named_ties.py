"""Named candidates on shards that see rows and not the order of names: ties are decided as on one machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shards_here import EngineHere, agree
from tied_world import tied_bundle, tied_dataset

from limerank.ops.candidate.integer import reference
from limerank.serve import deadline as deadlines
from limerank.serve import scorer as scorer_module
from limerank.serve.engine import Engine
from limerank.serve.sharded.messages import Answer
from limerank.serve.sharded.row_steps import as_steps

ITEMS = 500
SHARDS = (1, 2, 3)
USERS = ("u0", "u7", "nobody")


class Engines:
    """One machine, and shards that score in fp32 and by integers."""

    def __init__(self, folder: pytest.TempPathFactory, ends: ExitStack) -> None:
        dataset = tied_dataset(folder.mktemp("tied") / "d", ITEMS)
        bundle = tied_bundle(dataset, folder.mktemp("lime") / "store", name="lime-mha")
        self.one = ends.enter_context(Engine(bundle, threads=1))
        self.in_fp32 = {count: ends.enter_context(EngineHere(bundle, count)) for count in SHARDS}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scorer_module, "FEWEST_ITEMS", 10)
            patch.setattr(scorer_module, "pays_from", lambda shape: 10)
            patch.setattr(scorer_module, "fast", lambda rows, hidden: reference)
            self.by_integers = {count: ends.enter_context(EngineHere(bundle, count)) for count in SHARDS}


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    with ExitStack() as ends:
        yield Engines(tmp_path_factory, ends)


def names(count: int, seed: int, unknown: float) -> list[str]:
    """Items in no order, some of them more than once, and some ids that nobody knows."""
    draw = np.random.default_rng(seed)
    known = [f"i{number}" for number in draw.integers(0, ITEMS, count)]
    return [f"nothing-{item}" if draw.random() < unknown else item for item in known]


@given(
    shards=st.sampled_from(SHARDS),
    integers=st.booleans(),
    user=st.sampled_from(USERS),
    count=st.integers(1, 400),
    k=st.integers(0, 100),
    unknown=st.sampled_from([0.0, 0.1, 0.9]),
    in_time=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_ties_are_those_of_one_machine(
    engines: Engines,
    shards: int,
    integers: bool,
    user: str,
    count: int,
    k: int,
    unknown: float,
    in_time: bool,
    seed: int,
) -> None:
    """Forty kinds of items, so that almost every k cuts through a tie; all at once, and in blocks between two looks at
    the clock."""
    named = names(count, seed, unknown)
    sharded = (engines.by_integers if integers else engines.in_fp32)[shards]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deadlines, "FIRST_BLOCK", 16)
        patch.setattr(deadlines, "BLOCK", 48)
        found = sharded.answer(user, named, limit=k, deadline_ms=600_000 if in_time else None)
    agree(found, engines.one.answer(user, named, limit=k))


@pytest.mark.parametrize("shards", SHARDS)
def test_ties_by_integers(engines: Engines, shards: int) -> None:
    """Where integers exclude most candidates, none of those that equal the last is among the excluded."""
    named = names(400, 1, 0.0)
    for k in (1, 2, 3):
        found = engines.by_integers[shards].answer("u7", named, limit=k)
        assert (found.path, found.fell_back) == ("integer", False)
        agree(found, engines.one.answer("u7", named, limit=k))


def test_a_byte_for_each_candidate(engines: Engines) -> None:
    """That is what naming them costs; back come the best few, and more only where they are alike."""
    sharded = engines.in_fp32[2]
    for named, answered in (([f"i{number}" for number in range(ITEMS)], 3 * ITEMS // 10), (["nothing"] * 90, 90)):
        sharded.answer("u7", named, limit=5)
        asked = sharded.shards.asked[-1]
        rows = [question.rows for question in asked.values() if question.rows is not None]
        assert sum(one.nbytes for one in rows) == len(named)
        answers = sharded.shards.ask(asked, None).values()
        assert all(isinstance(one, Answer) and 5 <= len(one.positions) <= answered for one in answers)


def test_a_row_that_nobody_has_is_refused(engines: Engines) -> None:
    """In words, by the shard that was asked for it."""
    sharded = engines.in_fp32[2]
    sharded.answer("u7", ["i1", f"i{ITEMS - 1}"])
    question = sharded.shards.asked[-1][1]
    refused = sharded.shards.shards[1].answer(replace(question, rows=as_steps(np.array([0, ITEMS])))).refused
    assert "runs from 0 to 500" in refused


def test_scores_of_named_candidates(engines: Engines) -> None:
    """All scores, in the order of names, whatever the order of rows."""
    named = names(300, 2, 0.1)
    expected = engines.one.score(engines.one.encode_user("u0"), named)
    for sharded in engines.in_fp32.values():
        found = sharded.score(sharded.encode_user("u0"), named)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)
