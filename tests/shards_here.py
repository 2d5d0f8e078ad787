"""An engine whose shards are in this process, without Ray, and what its answers are compared by."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tied_world import MARGIN

from limerank.serve.answering import Stages
from limerank.serve.bundles.bundle import Bundle
from limerank.serve.engine import Engine
from limerank.serve.ranking import Ranking
from limerank.serve.sharded.asking import Lost
from limerank.serve.sharded.deployed import assignments
from limerank.serve.sharded.messages import Answer, Facts, Question
from limerank.serve.sharded.shard import Shard
from limerank.serve.sharded.slices import cut
from limerank.serve.sharded.stages import ShardedStages


class Here:
    """Shards of this process; some of them may be lost."""

    def __init__(self, bundle: Bundle, count: int) -> None:
        self.slices = cut(bundle.manifest.items, count)
        self.shards = [Shard(one) for one in assignments(bundle, self.slices)]
        self.facts: Sequence[Facts] = [shard.facts() for shard in self.shards]
        self.lost: set[int] = set()
        self.asked: list[dict[int, Question]] = []

    def ask(self, questions: dict[int, Question], milliseconds: float | None) -> dict[int, Answer | Lost]:
        self.asked.append(questions)
        return {
            number: Lost("gone") if number in self.lost else self.shards[number].answer(question)
            for number, question in questions.items()
        }


class EngineHere(Engine):
    """An engine whose shards are in this process."""

    def __init__(self, bundle: Bundle, count: int) -> None:
        self.shards = Here(bundle, count)
        super().__init__(bundle, threads=1)

    def _stages(self, stale_budget: float | None, beside_others: bool) -> Stages:
        return ShardedStages(self.bundle, self.workers, self.states, stale_budget, self.shards)


def agree(one: Ranking, other: Ranking) -> None:
    """The same order, ties included, of scores that differ by rounding at most."""
    values = np.unique(other.probabilities[:, 0])
    assert len(values) < 2 or np.diff(values).min() > MARGIN, "the test's own margin"
    assert one.item_ids == other.item_ids
    np.testing.assert_allclose(one.probabilities, other.probabilities, rtol=1e-5, atol=MARGIN / 4)
    told = ("candidates", "unknown_items", "repeated_items", "seen_items", "degraded", "unscored", "history_used")
    assert {name: getattr(one, name) for name in told} == {name: getattr(other, name) for name in told}
