"""The stages of a request whose interaction happens on shards; everything else is as on one machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from limerank.errors import ArgumentError, BundleError, UnavailableError
from limerank.ops.candidate import candidate_probabilities
from limerank.serve.answering import EncodedRequest, Stages
from limerank.serve.bundles.bundle import Bundle
from limerank.serve.catalog import CandidatePart, Catalog, scattered
from limerank.serve.deadline import RequestRecord
from limerank.serve.scorer import CANDIDATES_PER_WANTED, Scored, ScoringPath, choose_path, request_head
from limerank.serve.sharded.asking import Lost
from limerank.serve.sharded.merging import Portion, merged, portions
from limerank.serve.sharded.messages import Answer, Facts, Question, packed
from limerank.serve.sharded.row_steps import as_steps
from limerank.serve.sharded.slices import Slice, without
from limerank.serve.states import UserStates
from limerank.serve.threads.workers import Workers


class Shards(Protocol):
    """The scorers of one bundle."""

    @property
    def slices(self) -> Sequence[Slice]:
        """Which rows each has."""

    @property
    def facts(self) -> Sequence[Facts]:
        """What each said of itself."""

    def ask(self, questions: dict[int, Question], milliseconds: float | None) -> dict[int, Answer | Lost]:
        """The answers by shard; one that gave none is lost."""


class ShardedStages(Stages):
    """Sends the folded user matrix to the shards and merges what each of them found."""

    def __init__(
        self,
        bundle: Bundle,
        workers: Workers,
        states: UserStates | None,
        stale_budget: float | None,
        shards: Shards,
    ) -> None:
        self.shards = shards
        super().__init__(bundle, workers, states, stale_budget)

    def prepare(self, beside_others: bool) -> None:
        """Rows are prepared where they are scored; what was upserted since is scored here, as it is."""

    def search(
        self, part: CandidatePart, k: int, encoded: EncodedRequest, task: int, record: RequestRecord
    ) -> tuple[Scored, int]:
        """The best `k` of a part; what lost shards have is not scored, and the answer says so."""
        if not part.of_bundle:
            return super().search(part, k, encoded, task, record)
        wanted = k - len(part.hidden)
        asked = portions(part, self.shards.slices)
        left = record.deadline.left() if record.deadline.limited else None
        path = self._path_for(asked, wanted)
        answers, lost = self._answers(asked, wanted, encoded, task, path, left)
        if lost:
            record.degraded.append(without(self.shards.slices, lost))
        unscored = sum(one.shown if one.number in lost else answers[one.number].unscored for one in asked)
        return merged(wanted, asked, answers, task, len(self.bundle.manifest.tasks)), unscored

    def probabilities(
        self, catalog: Catalog, encoded: EncodedRequest, item_ids: Sequence[str] | None
    ) -> NDArray[np.float32]:
        """Probabilities [candidates, tasks], in the order given; without a shard there are none."""
        path = choose_path(self.bundle.ranker, len(catalog) if item_ids is None else len(item_ids))

        def probabilities(part: CandidatePart) -> Tensor:
            if not part.of_bundle:
                head = request_head(self.bundle.ranker, encoded.state, path)
                return candidate_probabilities(part.store, head, part.index, deal=self.workers.deal)
            asked = [Portion(**{**vars(one), "hidden": one.hidden[:0]}) for one in portions(part, self.shards.slices)]
            answers, lost = self._answers(asked, len(part), encoded, 0, path, None)
            if lost:
                raise UnavailableError(f"{without(self.shards.slices, lost)}; ask again when it is back")
            top = merged(len(part), asked, answers, 0, len(self.bundle.manifest.tasks)).top
            return top.values[top.positions.argsort()]

        return scattered(catalog.parts(None if item_ids is None else catalog.rows_of(item_ids)), probabilities)

    def _path_for(self, asked: Sequence[Portion], wanted: int) -> ScoringPath:
        """One path for all shards, for equal items must score equally wherever they are."""
        own = choose_path(self.bundle.ranker, sum(one.count for one in asked))
        from_where = [self.shards.facts[one.number].pays_from for one in asked]
        integers = self.bundle.ranker.foldable and all(
            least is not None and one.count >= least and 0 < wanted * CANDIDATES_PER_WANTED <= one.count
            for one, least in zip(asked, from_where, strict=True)
        )
        return "integer" if integers and asked else own

    def _answers(
        self,
        asked: Sequence[Portion],
        k: int,
        encoded: EncodedRequest,
        task: int,
        path: ScoringPath,
        milliseconds: float | None,
    ) -> tuple[dict[int, Answer], dict[int, str]]:
        """What shards found, and which of them are lost, and why."""
        bundle, tensors = self.bundle.manifest.id, packed(self.bundle.ranker, encoded.state, path)
        questions = {
            one.number: Question(
                bundle,
                path,
                tensors,
                min(k, one.shown),
                task,
                None if one.rows is None else as_steps(one.rows),
                one.hidden,
                milliseconds,
            )
            for one in asked
        }
        answers: dict[int, Answer] = {}
        lost: dict[int, str] = {}
        for number, answer in self.shards.ask(questions, milliseconds).items():
            name = self.shards.slices[number].name
            if isinstance(answer, Lost):
                lost[number] = answer.reason
            elif answer.refused:
                raise ArgumentError(f"{name}: {answer.refused}")
            elif answer.bundle != bundle:
                raise BundleError(f"{name}: answered with bundle {answer.bundle} instead of {bundle}")
            else:
                answers[number] = answer
        return answers, lost
