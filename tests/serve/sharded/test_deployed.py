"""Scorers of a Ray that is not one: what they are told of time, and what is said of one that does not answer."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tied_world import tied_bundle, tied_dataset

from limerank.errors import UnavailableError
from limerank.serve.bundles.bundle import Bundle
from limerank.serve.sharded import deployed
from limerank.serve.sharded.asking import Patience
from limerank.serve.sharded.cluster import RayCluster
from limerank.serve.sharded.deployed import DeployedShards, delete_leftovers, time_of_shard
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


class DeadError(Exception):
    """As Ray's errors are: many lines, and none of limerank's."""

    def __init__(self) -> None:
        super().__init__("The actor died.\n\tclass_name: ServeController\n\tactor_id: 1")


class Serve:
    """Serve whose controller dies at one of the calls."""

    exceptions = SimpleNamespace(RayServeException=KeyError)

    def __init__(self, dies_at: str) -> None:
        self.dies_at = dies_at

    def __getattr__(self, name: str) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            if name == self.dies_at or (name == "delete" and self.dies_at != "nothing"):
                raise DeadError
            running = SimpleNamespace(status="RUNNING")
            return SimpleNamespace(bind=lambda one: one, applications=SimpleNamespace(get=lambda name: running))

        return call


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("tied")
    return tied_bundle(tied_dataset(folder / "d", 200), folder / "store", name="lime-mha")


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


def test_what_is_missing_is_told(scorers: dict[str, Scorer]) -> None:
    """Which shards, and how much; when it is all, for how long, and what to do."""
    shards = DeployedShards(list(scorers), SLICES, 1, PATIENCE)
    try:
        assert shards.missing() is None
        asking = shards.asking
        asking.lost, asking.lost_since = {1: "gone"}, {1: time.monotonic() - 100}
        some = shards.missing()
        assert some is not None
        assert some.all_for is None
        assert re.fullmatch(
            r"shards: [0-9.]+% of the catalog is missing \(shard 2 of 2: gone\); see `ray status`", some.said
        )
        asking.lost, asking.lost_since = {1: "gone", 0: "dead"}, {1: time.monotonic() - 100, 0: time.monotonic() - 50}
        every = shards.missing()
        assert every is not None
        assert every.all_for is not None
        assert 50 <= every.all_for < 100, "as long as the last of them is lost"
        assert "100.0% of the catalog is missing (shard 2 of 2: gone; shard 1 of 2: dead)" in every.said
        assert every.said.endswith("start this service again")
    finally:
        asking.lost.clear()
        shards.close()


def test_a_scorer_that_does_not_say_what_it_is(scorers: dict[str, Scorer], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is ready, says Serve, and hangs: an error that names it, after some time."""
    monkeypatch.setattr(deployed, "FACTS_SECONDS", 0.05)
    scorers["two"].hangs = True
    with pytest.raises(UnavailableError, match="shard 2 of 2: its scorer is ready, but did not answer in 0.05 sec"):
        DeployedShards(list(scorers), SLICES, 1, PATIENCE)


def test_a_scorer_that_is_dead_when_it_is_asked_what_it_is(scorers: dict[str, Scorer]) -> None:
    """The error of Ray is not limerank's; it becomes a line that names the shard."""

    async def dead() -> Facts:
        raise DeadError

    scorers["two"].facts = SimpleNamespace(remote=dead)
    with pytest.raises(UnavailableError, match="shard 2 of 2: .* did not say what it is .*The actor died") as refused:
        DeployedShards(list(scorers), SLICES, 1, PATIENCE)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("dies_at", "said"),
    [
        ("start", "ray at 10.0.0.1:1: Ray Serve did not start"),
        ("run_many", "ray at 10.0.0.1:1: Ray Serve did not take the shards"),
        ("status", "ray at 10.0.0.1:1: Ray Serve did not say whether the shards are ready"),
        ("get_app_handle", "Ray Serve: did not give access to its scorers"),
    ],
)
def test_a_serve_that_does_not_answer_is_told_in_a_line(
    dies_at: str, said: str, monkeypatch: pytest.MonkeyPatch, tied: Bundle, caplog: pytest.LogCaptureFixture
) -> None:
    """Wherever it dies; that scorers cannot be deleted then is told, and is not the error."""
    monkeypatch.setattr(deployed, "serve_module", lambda: Serve(dies_at))
    monkeypatch.setattr(deployed, "ray_module", lambda: SimpleNamespace(is_initialized=lambda: True))
    with caplog.at_level(logging.WARNING, "limerank"), pytest.raises(UnavailableError, match=said) as refused:
        DeployedShards.deploy(RayCluster("10.0.0.1:1"), tied, 2, 1, PATIENCE)
    assert "(DeadError: The actor died.)" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert ("may not have ended" in caplog.text) == (dies_at != "start")


def test_leftovers_of_a_serve_that_does_not_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An error in a line; a Serve that was never started has none."""
    monkeypatch.setattr(deployed, "serve_module", lambda: Serve("status"))
    with pytest.raises(UnavailableError, match="did not end scorers .*The actor died.*nothing is served") as refused:
        delete_leftovers(tmp_path)
    assert "\n" not in str(refused.value)
    monkeypatch.setattr(Serve, "exceptions", SimpleNamespace(RayServeException=DeadError))
    delete_leftovers(tmp_path)
