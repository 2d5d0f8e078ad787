"""How much of the exact answer retrieval finds: measured against the exhaustive scan of the whole catalog."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict

from limerank.models import UserState
from limerank.ops.candidate import best_candidates
from limerank.serve.bundles.bundle import Bundle
from limerank.serve.catalog import FIRST_ITEM_ROW
from limerank.serve.requests import RequestReader
from limerank.serve.retrieval.retriever import Rows, StateRetriever
from limerank.serve.scorer import choose_path, request_head

K: int = 100
USERS: int = 32
SEED = 0
LEAST_CANDIDATES, MOST_CANDIDATES, ITEMS_PER_CANDIDATE = 1000, 10_000, 250


def usual_candidates(items: int) -> int:
    """How many candidates a retriever is asked for: 1,000, and of large catalogs one in 250 items, up to 10,000."""
    return min(max(LEAST_CANDIDATES, items // ITEMS_PER_CANDIDATE), MOST_CANDIDATES)


class Recall(BaseModel):
    """Of the exact best `k`, the fraction that is among the `candidates` retrieved: over users, mean and least."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    k: int
    candidates: int
    users: int
    mean: float
    least: float


@dataclass(frozen=True)
class ExactAnswers:
    """Requests of some users, and the rows of the best `k` items of the whole catalog for each."""

    k: int
    users: list[UserState]
    best: list[Rows]

    @classmethod
    def of(cls, bundle: Bundle, *, k: int = K, users: int = USERS) -> ExactAnswers:
        """The answers for users drawn from the bundle (the same ones each time), by the exhaustive scan."""
        ranker, catalog, reader = bundle.ranker, bundle.rows.behind(FIRST_ITEM_ROW), RequestReader(bundle)
        known = bundle.manifest.users - FIRST_ITEM_ROW
        drawn = np.random.default_rng(SEED).permutation(known)[:users] + FIRST_ITEM_ROW
        states, best = [], []
        for name in bundle.user_ids.names_of(np.sort(drawn)) or [""]:
            with torch.inference_mode():
                state = ranker.encode_user(reader.read(name, {})[0])
                head = request_head(ranker, state, choose_path(ranker, len(catalog)))
                top = best_candidates(catalog, head, min(k, len(catalog)))
            states.append(state)
            best.append(top.positions.numpy() + FIRST_ITEM_ROW)
        return cls(k, states, best)

    def recall(self, retriever: StateRetriever, candidates: int) -> Recall:
        """How much of these answers a retriever finds."""
        found = [retriever.retrieve(user, candidates) for user in self.users]
        return recall_of(self.best, found, k=self.k, candidates=candidates)


def recall_of(best: Sequence[Rows], found: Sequence[Rows], *, k: int, candidates: int) -> Recall:
    """The fraction of each list of best rows that is among the rows found beside it."""
    fractions = [float(np.isin(one, other).mean()) if len(one) else 1.0 for one, other in zip(best, found, strict=True)]
    return Recall(
        k=k, candidates=candidates, users=len(best), mean=float(np.mean(fractions)), least=float(np.min(fractions))
    )


def measure_recall(
    bundle: Bundle, retriever: StateRetriever, *, k: int = K, candidates: int | None = None, users: int = USERS
) -> Recall:
    """How much of the exact top `k` a retriever finds that is asked for some candidates, over users of the bundle."""
    asked = usual_candidates(bundle.manifest.items) if candidates is None else candidates
    return ExactAnswers.of(bundle, k=k, users=users).recall(retriever, asked)
