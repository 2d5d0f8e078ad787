"""Scorers of a Ray that is not one: what they are told of time, and what is said of one that does not answer."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from limerank.errors import UnavailableError
from limerank.serve.sharded import deployed
from limerank.serve.sharded.asking import Patience
from limerank.serve.sharded.deployed import DeployedShards, time_of_shard
from limerank.serve.sharded.messages import Answer, Facts, Question
from limerank.serve.sharded.slices import cut

SLICES = cut(1000, 2)
NOBODY = np.zeros(0, dtype=np.int32)
QUESTION = Question("b", "folded", (), 5, 0, None, NOBODY, None)
PATIENCE = Patience(hedge_ms=50, patience_ms=20_000)


class Scorer:
    """What a handle of Serve does, for one scorer."""

    def __init__(self) -> None:
        self.questions: list[Question] = []
        self.hangs = False
        self.answer, self.facts = SimpleNamespace(remote=self._answer), SimpleNamespace(remote=self._facts)

    async def _answer(self, question: Question) -> Answer:
        self.questions.append(question)
        return Answer("b", NOBODY, np.zeros((0, 1), dtype=np.float32), question.path)

    async def _facts(self) -> Facts:
        await asyncio.sleep(3600 if self.hangs else 0)
        return Facts("b", 1, None)


@pytest.fixture
def scorers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Scorer]:
    there = {"one": Scorer(), "two": Scorer()}
    serve: Any = SimpleNamespace(get_app_handle=there.__getitem__)
    monkeypatch.setattr(deployed, "serve_module", lambda: serve)
    monkeypatch.setattr(deployed, "delete", lambda names, *, wait: None)
    return there


def test_shards_stop_before_nobody_waits_any_more(scorers: dict[str, Scorer]) -> None:
    """A fifth of the time is for the way, 5 ms at least; patience is a limit as well; no deadline stays none."""
    shards = DeployedShards(list(scorers), SLICES, 1, PATIENCE)
    try:
        for milliseconds in (15_000.0, 1_000_000.0, None):
            shards.ask({0: QUESTION, 1: QUESTION}, milliseconds)
    finally:
        shards.close()
    for scorer in scorers.values():
        assert [question.milliseconds for question in scorer.questions] == [12_000, 16_000, None]
    assert [time_of_shard(given) for given in (500, 20, 6, 5.5, 0.5, -3)] == [400, 15, 1, 1, 1, 1]


def test_a_scorer_that_does_not_say_what_it_is(scorers: dict[str, Scorer], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is ready, says Serve, and hangs: an error that names it, after some time."""
    monkeypatch.setattr(deployed, "FACTS_SECONDS", 0.05)
    scorers["two"].hangs = True
    with pytest.raises(UnavailableError, match="shard 2 of 2: its scorer is ready, but did not answer in 0.05 sec"):
        DeployedShards(list(scorers), SLICES, 1, PATIENCE)
