"""Sharded serving: the same request to one machine's engine and to shards, what travels, and what merging costs."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from limerank.bench.cluster.results import CallCost, Merge, Scoring, ScoringRow, Wire
from limerank.bench.engine.made_up_store import made_up_dataset, made_up_export, user_with
from limerank.bench.machine import interleaved_medians, interleaved_times
from limerank.bench.train.results import Spread
from limerank.models.lime_mha import LimeMHA
from limerank.progress import Progress
from limerank.serve.bundles.bundle import Bundle
from limerank.serve.engine import Engine
from limerank.serve.ranking import Ranking
from limerank.serve.sharded.asking import Asking, Lost, Patience
from limerank.serve.sharded.cluster import RayCluster, ray_module
from limerank.serve.sharded.deployed import assignments
from limerank.serve.sharded.engine import ShardedEngine
from limerank.serve.sharded.merging import NOBODY, Portion, merged
from limerank.serve.sharded.messages import Answer, Facts, Question
from limerank.serve.sharded.shard import Shard

OPTIONS = LimeMHA(width=256, heads=4, links=32, head=(96,))
"""The industrial sizes of `limerank bench engine`: a user's matrix has 49 kB."""
HISTORY, TOP = 100, 100
NAMED = (10_000, 32_768)
"""Candidates that a request names."""
MERGED_SHARDS, MERGED_WANTED = (2, 16, 128), (100, 1000)
PATIENT = Patience(hedge_ms=60_000, patience_ms=60_000)
"""Nobody is asked twice, and nobody is lost, while time is taken."""


@dataclass
class Contestant:
    """One engine, and the answers it gave."""

    engine: Engine
    processes: int
    sharded: bool
    answers: list[Ranking] = field(default_factory=list)

    def ask(self) -> None:
        """One request."""
        self.answers.append(self.engine.answer(user_with(HISTORY), limit=TOP))

    @property
    def interact_ms(self) -> float:
        """The median."""
        return median(answer.milliseconds["interact"] for answer in self.answers)


def measure_scoring(
    progress: Progress, *, items: int = 262_144, repeats: int = 9, epochs: int = 2, processes: int = 2
) -> Scoring:
    """One machine's engine on one thread, one shard and `processes` of them, on a Ray of this machine."""
    with ExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="limerank-bench-")))
        progress.say(f"making a catalog of {items:,} items and a ranker of it")
        dataset = made_up_dataset(folder / "log", items, [HISTORY])
        bundle = made_up_export(dataset, OPTIONS, folder / "made", epochs=epochs).bundle
        cluster = RayCluster.connect(None)
        ends.callback(cluster.close)
        store = bundle.path.parent.parent
        opened = partial(
            ShardedEngine.open, store, bundle.manifest.id, ray=cluster, patience=PATIENT, states=0, threads=1
        )
        group = [Contestant(ends.enter_context(Engine(bundle, threads=1, states=0)), 1, False)]
        for count in sorted({1, processes}):
            progress.say(f"starting {count} scorer{'s' * (count > 1)}")
            group.append(Contestant(ends.enter_context(opened(shards=count)), count, True))
        with progress.bar("requests in turns", repeats + 1) as bar:
            for _ in range(repeats + 1):
                for one in group:
                    one.ask()
                bar.advance()
        for one in group:
            del one.answers[0]  # it warmed up
        largest = group[-1].engine
        assert isinstance(largest, ShardedEngine)
        return Scoring(
            model=bundle.ranker.name,
            items=items,
            wanted=TOP,
            row_bytes=bundle.manifest.row_bytes,
            repeats=repeats,
            rows=_rows(group, items),
            wire=[measure_wire(largest, count) for count in (None, *(n for n in NAMED if n <= items))],
            merges=[measure_merge(shards, k, repeats) for shards in MERGED_SHARDS for k in MERGED_WANTED],
            calls=measure_calls(largest, repeats),
        )


def _rows(group: Sequence[Contestant], items: int) -> list[ScoringRow]:
    rates = [1000 * items / one.interact_ms for one in group]
    alone = next(rate for one, rate in zip(group, rates, strict=True) if one.sharded and one.processes == 1)
    return [
        ScoringRow(
            processes=one.processes,
            sharded=one.sharded,
            path=one.answers[-1].path,
            interact_ms=one.interact_ms,
            total_ms=median(answer.milliseconds["total"] for answer in one.answers),
            total=Spread.of([answer.milliseconds["total"] / 1000 for answer in one.answers]),
            items_per_second=rate,
            efficiency=rate / one.processes / alone,
        )
        for one, rate in zip(group, rates, strict=True)
    ]


def measure_wire(engine: ShardedEngine, named: int | None) -> Wire:
    """The messages of one request, weighed: for the whole catalog, or for so many candidates that it names."""
    bundle = engine.bundle
    candidates = None if named is None else named_items(bundle, named)
    sent: list[Question] = []
    received: list[Answer | Lost] = []
    real = engine.shards.ask

    def weighed(questions: dict[int, Question], milliseconds: float | None) -> dict[int, Answer | Lost]:
        answers = real(questions, milliseconds)
        sent.extend(questions.values())
        received.extend(answers.values())
        return answers

    engine.shards.ask = weighed  # type: ignore[method-assign]
    try:
        engine.answer(user_with(HISTORY), candidates, limit=TOP)
    finally:
        engine.shards.ask = real  # type: ignore[method-assign]
    dumps = ray_module().cloudpickle.dumps
    asked, answered = (sum(len(dumps(one)) for one in messages) for messages in (sent, received))
    count = bundle.manifest.items - 1 if named is None else named
    rows = count * bundle.manifest.row_bytes
    return Wire(
        what="the whole catalog" if named is None else f"{named:,} named candidates",
        candidates=count,
        question_bytes=asked,
        matrix_bytes=sum(tensor.nbytes for one in sent for tensor in one.tensors),
        answer_bytes=answered,
        row_bytes=rows,
        fraction=(asked + answered) / rows,
    )


def named_items(bundle: Bundle, count: int) -> list[str]:
    """Some items of a bundle, at random."""
    draw = np.random.default_rng(1)
    return bundle.item_ids.names_of(draw.choice(bundle.manifest.items - 1, count, replace=False) + 1)


def measure_merge(shards: int, wanted: int, repeats: int) -> Merge:
    """Answers of so many shards, each with its best, put in one order."""
    draw = np.random.default_rng(shards)
    asked = [Portion(number, 1_000_000, NOBODY, start=number * 1_000_000) for number in range(shards)]
    answers = {}
    for one in asked:
        values = -np.sort(-draw.random((wanted, 1), dtype=np.float32), axis=0)
        positions = draw.choice(one.count, wanted, replace=False).astype(np.int32)
        answers[one.number] = Answer("made up", positions, values, "folded")
    (seconds,) = interleaved_medians([lambda: merged(wanted, asked, answers, 0, 1)], 10 * repeats)
    return Merge(shards=shards, wanted=wanted, ms=1000 * seconds)


def measure_calls(engine: ShardedEngine, repeats: int) -> list[CallCost]:
    """The same question to a scorer on Serve and to one that is a plain actor; it names no candidates."""
    ray, first = ray_module(), engine.shards.slices[0]
    told = assignments(engine.bundle, [first])[0]
    actor = ray.remote(Shard).options(num_cpus=0).remote(told)
    nothing = np.zeros(0, dtype=np.int32)
    matrix = np.zeros((engine.bundle.rows.rows.shape[1], engine.bundle.rows.head_part.shape[1]), dtype=np.float32)
    question = Question(told.bundle, "folded", (matrix, matrix[0].copy()), 0, 0, nothing, nothing, None)

    async def call(number: int, question: Question) -> Answer:
        answer: Answer = await actor.answer.remote(question)
        return answer

    async def knock(number: int) -> Facts:
        facts: Facts = await actor.facts.remote()
        return facts

    plain: Asking[Question, Answer] = Asking(call, knock, PATIENT, replicas=1)
    try:
        works = [partial(one.ask, {0: question}) for one in (engine.shards.asking, plain)]
        times = interleaved_times(works, 10 * repeats)
    finally:
        plain.close()
        ray.kill(actor)
    return [CallCost(engine=name, call=Spread.of(one)) for name, one in zip(("serve", "actor"), times, strict=True)]
