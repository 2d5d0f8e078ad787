"""A shard: one slice of a bundle's rows, and the best of them for whoever asks. Ray runs it, and starts it again."""

from __future__ import annotations

import os
import time
from asyncio import wrap_future
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

from limerank.config import finished_model
from limerank.errors import BundleError, LimerankError, UnavailableError
from limerank.models import build_ranker
from limerank.ops.candidate import RowStore
from limerank.serve.bundles.bundle import FIX, ROWS, read_manifest, row_store
from limerank.serve.deadline import Deadline, RequestRecord, best_in_time
from limerank.serve.scorer import Scored, Scorer, ScoringPath
from limerank.serve.sharded.messages import Answer, Assignment, Facts, Question, head_of, without_tables
from limerank.serve.sharded.row_steps import rows_of
from limerank.serve.sharded.slices import digest
from limerank.serve.threads.workers import Workers
from limerank.serve.timeline import Timeline

HANGING_SECONDS = 60.0
"""After so long at one question a scorer hangs; what waits behind it does not count, for a busy scorer is well."""


class Shard:
    """Maps its slice, verifies it, and answers: one question at a time, on one thread, so one core each."""

    def __init__(self, assignment: Assignment) -> None:
        """What is wrong with the slice is an error here, and the shard does not come up."""
        self.assignment = assignment
        self.rows = mapped(assignment)
        self.items = self.rows.behind(assignment.part.first_item - assignment.part.first)
        ranker = build_ranker(
            finished_model(assignment.model), without_tables(assignment.space), assignment.tasks, assignment.folder
        )
        weights = {name: torch.from_numpy(np.array(values)) for name, values in assignment.weights.items()}
        ranker.load_state_dict(weights, strict=False)
        self.scorer = Scorer(ranker.eval(), self.rows)
        self.layers = [(weight.detach(), bias.detach()) for weight, bias in ranker.head.later_layers()]
        self.workers = Workers(1)
        self._began: float | None = None
        if self.scorer.worth_preparing:
            self.workers.run(partial(self.scorer.prepare, self.workers.deal))

    def facts(self) -> Facts:
        """What it is; whoever gets an answer knows that it lives, and that its worker takes questions."""
        return self.workers.run(self.own_facts)

    def own_facts(self) -> Facts:
        """The same, for its worker."""
        return Facts(self.assignment.bundle, os.getpid(), self.scorer.pays_from)

    def check_health(self) -> None:
        """Raise if a question was begun long ago and is not done; Ray Serve replaces who raises.

        It does not wait for the worker: questions may queue for longer than Serve waits, and that is no reason.
        """
        began = self._began
        if began is not None and time.monotonic() - began > HANGING_SECONDS:
            raise UnavailableError(f"a question is being scored for {time.monotonic() - began:.0f} seconds")

    def answer(self, question: Question) -> Answer:
        """The best candidates of this slice; what makes no sense is refused in words, for it is no fault of Ray's."""
        return self.workers.run(self.answering(question))

    def answering(self, question: Question) -> Callable[[], Answer]:
        """What its worker does for a question that is here now: waiting for the worker takes its time, too."""
        return partial(self._timed, question, Deadline.of(question.milliseconds))

    def _timed(self, question: Question, deadline: Deadline) -> Answer:
        self._began = time.monotonic()
        try:
            return self._answer(question, deadline)
        except LimerankError as refused:
            return self._nothing(question, refused=str(refused))
        finally:
            self._began = None

    def _answer(self, question: Question, deadline: Deadline) -> Answer:
        own = self.assignment
        if question.bundle != own.bundle:
            raise BundleError(f"was asked for bundle {question.bundle}, but serves {own.bundle}")
        store, index = self.items, None
        if question.rows is not None:
            store, index = self.rows, torch.from_numpy(rows_of(question.rows))
        count = len(store) if index is None else len(index)
        if deadline.over():  # whoever asked has gone, and others wait
            return self._nothing(question, unscored=count - len(question.hidden))
        k = min(question.k + len(question.hidden), count)
        head = head_of(self.scorer.ranker, question, self.layers)
        whole_ties = index is not None  # rows ascend, whichever was named first

        def best(*, k: int, store: RowStore, index: torch.Tensor | None) -> Scored:
            path: ScoringPath = question.path
            if path == "integer" and not self.scorer.tries(len(store) if index is None else len(index), k):
                path = "folded"
            return self.scorer.best_with(head, path, k, question.task, store=store, index=index, whole_ties=whole_ties)

        record = RequestRecord(deadline, Timeline(deadline.clock))
        scored, left = best_in_time(record, best, store, k, index, whole_ties=whole_ties)
        positions = scored.top.positions.numpy()
        shown = np.flatnonzero(~np.isin(positions, question.hidden))[: None if whole_ties else question.k]
        behind = int((question.hidden >= count - left).sum())
        return Answer(
            bundle=own.bundle,
            positions=positions[shown].astype(np.int32),
            values=scored.top.values.numpy()[shown],
            path=scored.path,
            rescored=scored.rescored,
            fell_back=scored.fell_back,
            unscored=left - behind,
        )

    def _nothing(self, question: Question, *, unscored: int = 0, refused: str = "") -> Answer:
        own, values = self.assignment, np.zeros((0, self.assignment.tasks), dtype=np.float32)
        return Answer(
            own.bundle, np.zeros(0, dtype=np.int32), values, question.path, unscored=unscored, refused=refused
        )


class ServedShard:
    """A shard as Ray Serve calls it: nothing blocks the event loop that Serve calls methods on.

    Some versions of Ray call methods that are not async in threads, others on that loop, where a question that is being
    scored would hold up all others, and the answer to the question whether anybody is there.
    """

    def __init__(self, assignment: Assignment) -> None:
        self.shard = Shard(assignment)

    async def facts(self) -> Facts:
        """What it is."""
        return await wrap_future(self.shard.workers.submit(self.shard.own_facts))

    async def answer(self, question: Question) -> Answer:
        """The best candidates of its slice; if whoever asks goes before it is begun, it is not."""
        return await wrap_future(self.shard.workers.submit(self.shard.answering(question)))

    def check_health(self) -> None:
        """Serve calls this, and replaces who raises; it waits for nothing."""
        self.shard.check_health()


def mapped(assignment: Assignment) -> RowStore:
    """The rows of a slice, mapped and verified; no other row of the file is read."""
    folder, part = Path(assignment.folder), assignment.part
    manifest = read_manifest(folder)
    if manifest.id != assignment.bundle:
        raise BundleError(f"{folder}: is bundle {manifest.id}, should be {assignment.bundle}; {FIX}")
    rows = row_store(folder / ROWS, manifest).between(part.first, part.last)
    if digest(rows) != assignment.digest:
        raise BundleError(
            f"{folder / ROWS}: rows {part.first:,} to {part.last - 1:,} are not those that were verified; {FIX}"
        )
    return rows
