"""Shards in this process, without Ray: what they answer, merged, is what one machine answers; for every ranker."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shards_here import EngineHere, agree
from tied_world import MARGIN, tied_bundle, tied_dataset

from limerank.data.store.dataset import StoredDataset
from limerank.errors import ArgumentError, BundleError, UnavailableError, UsageError
from limerank.models import RANKERS
from limerank.ops.candidate.integer import reference
from limerank.serve import scorer as scorer_module
from limerank.serve.bundles.bundle import ROWS, Bundle
from limerank.serve.bundles.store import BundleStore
from limerank.serve.engine import Engine
from limerank.serve.overlay.items import Item
from limerank.serve.sharded import shard as shard_module
from limerank.serve.sharded.deployed import assignments
from limerank.serve.sharded.engine import ShardedEngine, check_shardable
from limerank.serve.sharded.messages import Answer, Question
from limerank.serve.sharded.shard import ServedShard, Shard
from limerank.serve.sharded.slices import cut

ITEMS = 500
WITH: dict[str, dict[str, Any]] = {"sasrec": {"readout": "last"}}
"""Options with which a ranker is factorized that is not by default."""
FACTORIZED = sorted(name for name, ranker in RANKERS.items() if ranker.factorized or name in WITH)


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> StoredDataset:
    return tied_dataset(tmp_path_factory.mktemp("tied") / "d", ITEMS)


@pytest.fixture(scope="module")
def lime(tied: StoredDataset, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return tied_bundle(tied, tmp_path_factory.mktemp("lime") / "store", name="lime-mha")


@pytest.mark.parametrize("name", FACTORIZED)
def test_merged_order_is_that_of_one_machine(name: str, tied: StoredDataset, tmp_path: Path) -> None:
    """Whole catalogs, some of it, named candidates in any order, repeated and unknown ones, without what was seen."""
    bundle = tied_bundle(tied, tmp_path / "store", name=name, **WITH.get(name, {}))
    draw = np.random.default_rng(1)
    named = [f"i{number}" for number in draw.integers(0, ITEMS, 60)] + ["nothing", "i3", "nothing"]
    with EngineHere(bundle, 3) as sharded, Engine(bundle, threads=1) as engine:
        for user in ("u0", "u7", "nobody"):
            agree(sharded.answer(user), engine.answer(user))
            agree(sharded.answer(user, limit=10), engine.answer(user, limit=10))
            agree(sharded.answer(user, limit=0), engine.answer(user, limit=0))
            agree(sharded.answer(user, named), engine.answer(user, named))
            agree(sharded.answer(user, ["i1"]), engine.answer(user, ["i1"]))
            agree(sharded.answer(user, []), engine.answer(user, []))
            seen = {"exclude_seen": True, "limit": 30}
            agree(sharded.answer(user, **seen), engine.answer(user, **seen))  # type: ignore[arg-type]
            agree(sharded.recommend(user, 5), engine.recommend(user, 5))
        assert sharded.answer("u0", limit=9, task="like").item_ids == engine.answer("u0", limit=9, task="like").item_ids
        for items in (None, named):
            ours, theirs = (one.score(one.encode_user("u1"), items) for one in (sharded, engine))
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=MARGIN / 4)


@pytest.mark.parametrize("row_type", ["fp16", "u8"])
def test_other_row_types(row_type: str, tied: StoredDataset, tmp_path: Path) -> None:
    bundle = tied_bundle(tied, tmp_path / "store", row_type=row_type, name="lime-mha")  # type: ignore[arg-type]
    with EngineHere(bundle, 4) as sharded, Engine(bundle, threads=1) as engine:
        agree(sharded.answer("u3", limit=40), engine.answer("u3", limit=40))


def test_integers_on_shards(lime: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all shards try integers, the answer is that of fp32, and says how it came about."""
    monkeypatch.setattr(scorer_module, "FEWEST_ITEMS", 10)
    monkeypatch.setattr(scorer_module, "pays_from", lambda shape: 10)
    monkeypatch.setattr(scorer_module, "fast", lambda rows, hidden: reference)
    with EngineHere(lime, 2) as sharded, Engine(lime, threads=1) as engine:
        engine.stages.scorer.pays_from = None
        found = sharded.answer("u2", limit=3)
        assert found.path == "integer"
        agree(found, engine.answer("u2", limit=3))
        assert sharded.answer("u2", limit=100).path != "integer", "so many are not found faster by integers"


def test_what_changed_since_the_export(tied: StoredDataset, tmp_path: Path) -> None:
    """Upserted items are scored here, deleted ones are hidden on the shards: as if the catalog were exported anew."""
    bundle = tied_bundle(tied, tmp_path / "store", name="lime-mha")
    with EngineHere(bundle, 3) as sharded, Engine(bundle, threads=1) as engine:
        engine.delete([f"i{number}" for number in range(0, ITEMS, 7)])
        new = [{"topic": "1", "brand": "2"}, {"topic": "3", "brand": "0"}]
        engine.upsert([Item("new-a", new[0]), Item("new-b", new[1]), Item("i1", new[0])])
        agree(sharded.answer("u4", limit=50), engine.answer("u4", limit=50))
        agree(sharded.answer("u4", ["i0", "i1", "i2", "new-a"]), engine.answer("u4", ["i0", "i1", "i2", "new-a"]))
        hidden = [question.hidden for question in sharded.shards.asked[0].values()]
        assert sum(map(len, hidden)) == len(range(0, ITEMS, 7)) + 1


def test_a_lost_shard_is_named_with_its_fraction(lime: Bundle) -> None:
    """The rest is ranked as ever; the answer says how much is missing, and scores of all items are refused."""
    with EngineHere(lime, 3) as sharded, Engine(lime, threads=1) as engine:
        everything = engine.answer("u5").item_ids
        sharded.shards.lost = {1}
        part = sharded.shards.slices[1]
        missing = set(lime.item_ids.names_of(range(part.first, part.last)))
        found = sharded.answer("u5", limit=20)
        assert found.item_ids == [item for item in everything if item not in missing][:20]
        percent = f"{len(missing) / ITEMS:.1%}"
        assert found.degraded[0] == f"shards: {percent} of the catalog is missing (shard 2 of 3: gone)"
        assert (found.unscored, found.candidates) == (len(missing), ITEMS - len(missing))
        elsewhere = [item for item in everything if item not in missing][:5]
        assert sharded.answer("u5", elsewhere).degraded == [], "nobody asks a shard that has none of the candidates"
        with pytest.raises(UnavailableError, match="shard 2 of 3: gone"):
            sharded.score(sharded.encode_user("u5"))
        sharded.shards.lost = {0, 1, 2}
        nothing = sharded.answer("u5", limit=5)
        assert (nothing.item_ids, nothing.unscored) == ([], ITEMS)
        assert nothing.degraded[0].startswith("shards: 100.0% of the catalog is missing")


def test_a_question_carries_its_bundle(lime: Bundle, tied: StoredDataset, tmp_path: Path) -> None:
    """A shard of another bundle refuses, and that is an error, not an answer."""
    other = tied_bundle(tied, tmp_path / "store", seed=6, name="lime-mha")
    with EngineHere(lime, 2) as sharded, EngineHere(other, 2) as wrong:
        sharded.shards.shards[1] = wrong.shards.shards[1]
        with pytest.raises(ArgumentError, match=f"shard 2 of 2: was asked for bundle {lime.manifest.id}"):
            sharded.answer("u1", limit=3)


def test_only_small_things_travel(lime: Bundle) -> None:
    """The user's matrix there; rows and scores of the best back: no item row, no id."""
    with EngineHere(lime, 2) as sharded:
        sharded.answer("u1", limit=10)
        (asked,) = sharded.shards.asked
        for number, question in asked.items():
            assert question.rows is None
            answer = sharded.shards.shards[number].answer(question)
            assert answer.positions.shape == (10,)
            assert answer.values.shape == (10, 2)


@contextmanager
def busy(shard: Shard) -> Iterator[Callable[[], None]]:
    """A shard whose worker does something else, until it is told to go on."""
    begun, go = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go.wait(60)

    done = shard.workers.submit(work)
    assert begun.wait(60)
    try:
        yield go.set
    finally:
        go.set()
        done.result()


def test_time_runs_while_a_question_waits_for_the_worker(lime: Bundle) -> None:
    """One whose time is over when its turn comes is not scored: others wait; the answer says what is missing."""
    with EngineHere(lime, 2) as sharded, ThreadPoolExecutor(1) as asker:
        sharded.answer("u1", limit=10)
        question = sharded.shards.asked[0][1]
        shard, part = sharded.shards.shards[1], sharded.shards.slices[1]
        hidden = np.array([0, 3], dtype=np.int32)
        with busy(shard) as go_on:
            late = asker.submit(shard.answer, replace(question, milliseconds=1.0, hidden=hidden))
            time.sleep(0.1)
            go_on()
            answer = late.result()
        assert (answer.refused, len(answer.positions), answer.values.shape) == ("", 0, (0, 2))
        assert answer.unscored == part.items - 2
        assert shard.answer(replace(question, milliseconds=60_000.0)).unscored == 0


def test_whether_a_scorer_hangs(lime: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks for facts waits for the worker; health is a question of how long one question takes, not of a queue."""
    shard = Shard(assignments(lime, cut(lime.manifest.items, 2))[0])
    with ThreadPoolExecutor(1) as asker, busy(shard) as go_on:
        facts = asker.submit(shard.facts)
        with pytest.raises(TimeoutError):
            facts.result(0.05)
        shard.check_health()
        go_on()
        assert facts.result(60).bundle == lime.manifest.id
    begun, go = threading.Event(), threading.Event()

    def hang(*given: object) -> Answer:
        begun.set()
        go.wait(60)
        raise BundleError("went on")

    monkeypatch.setattr(shard, "_answer", hang)
    question = Question(lime.manifest.id, "folded", (), 1, 0, None, np.zeros(0, dtype=np.int32), None)
    with ThreadPoolExecutor(1) as asker:
        refused = asker.submit(shard.answer, question)
        assert begun.wait(60)
        shard.check_health()
        monkeypatch.setattr(shard_module, "HANGING_SECONDS", 0.0)
        with pytest.raises(UnavailableError, match="a question is being scored for"):
            shard.check_health()
        go.set()
        assert refused.result().refused == "went on"
        shard.check_health()


def test_a_busy_scorer_does_not_hold_up_the_loop_of_serve(lime: Bundle) -> None:
    """Whatever Ray does with methods that are not async; and a question whose asker has gone is not begun."""
    served = ServedShard(assignments(lime, cut(lime.manifest.items, 2))[0])
    begun, go = threading.Event(), threading.Event()
    answered: list[int] = []
    question = Question(lime.manifest.id, "folded", (), 1, 0, None, np.zeros(0, dtype=np.int32), None)

    def hang(asked: Question, *_: object) -> Answer:
        answered.append(asked.k)
        begun.set()
        assert go.wait(60)
        raise BundleError("went on")

    async def ask() -> None:
        first = asyncio.create_task(served.answer(question))
        while not begun.is_set():
            await asyncio.sleep(0.01)
        gone = asyncio.create_task(served.answer(replace(question, k=2)))
        facts = asyncio.create_task(served.facts())
        await asyncio.sleep(0)  # the loop goes on
        served.check_health()
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):  # until then its worker may still begin it
            await gone
        assert not first.done()
        go.set()
        assert (await first).refused == "went on"
        assert (await facts).bundle == lime.manifest.id
        assert answered == [1]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(served.shard, "_answer", hang)
        asyncio.run(asyncio.wait_for(ask(), 60))


def test_a_slice_that_is_not_what_was_verified(lime: Bundle, tied: StoredDataset, tmp_path: Path) -> None:
    """A damaged byte in a slice is found by its shard, and by no other."""
    bundle = tied_bundle(tied, tmp_path / "store", name="lime-mha")
    told = assignments(bundle, cut(bundle.manifest.items, 2))
    path = bundle.path / ROWS
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1  # the last number of the last row
    path.unlink()  # a mapping keeps the file that it has
    path.write_bytes(damaged)
    Shard(told[0])
    with pytest.raises(BundleError, match=r"rows\.safetensors: rows 257 to 500 are not those that were verified"):
        Shard(told[1])
    with pytest.raises(BundleError, match="no such bundle"):
        Shard(type(told[0])(**{**vars(told[0]), "folder": str(tmp_path / "nowhere")}))


def test_rankers_that_cannot_be_sharded(tied: StoredDataset, tmp_path: Path) -> None:
    bundle = tied_bundle(tied, tmp_path / "store", name="mha")
    with pytest.raises(UsageError, match="ranker 'mha' cannot be sharded, .*; serve it without shards"):
        check_shardable(bundle)


def test_a_missing_ray_is_told_in_a_line(lime: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "ray" else real(name, *more))
    with pytest.raises(UnavailableError, match=r"this needs ray, .*pip install 'limerank\[ray\]'") as told:
        ShardedEngine.open(BundleStore(lime.path.parent.parent), shards=2)
    assert told.value.exit_code == 6
