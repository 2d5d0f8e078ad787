"""Predictions of a ranker on one part of a dataset, and how good they are; the oracle's too where it is known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from limerank.data.batches import RequestLoader
from limerank.data.store.dataset import StoredDataset
from limerank.metrics import Metrics, measure
from limerank.models import Ranker
from limerank.progress import Bar
from limerank.splits import Part

EVALUATION_BATCH = 256

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class CandidateRows:
    """Candidate rows of a dataset, with the request and the user of each."""

    rows: Ints
    request: Ints
    user: Ints


@dataclass(frozen=True)
class Predictions(CandidateRows):
    """Probabilities [rows, tasks] for candidate rows of the dataset, in the order of `rows`."""

    probability: NDArray[np.float32]

    def in_stored_order(self) -> Predictions:
        """The same in the order of the dataset, whatever batches they came from."""
        order = np.argsort(self.rows)
        return Predictions(self.rows[order], self.request[order], self.user[order], self.probability[order])


def predict(
    ranker: Ranker, loader: RequestLoader, bar: Bar | None = None, device: torch.device | None = None
) -> Predictions:
    """Score every candidate of a loader's part, or of its share of it; batches follow the ranker to its device,
    probabilities come back.
    """
    ranker.eval()
    probabilities: list[NDArray[np.float32]] = []
    plan = loader.plan()
    with torch.inference_mode():
        for requests in plan:
            batch = loader.assemble_own(requests)
            there = batch if device is None else batch.map(lambda tensor: tensor.to(device))
            probability = ranker(there).sigmoid().float().cpu().numpy()
            probabilities.append(probability[:0] if batch.empty else probability)
            if bar is not None:
                bar.advance()
    scored = candidates_of(loader, np.concatenate([np.zeros(0, dtype=np.int64), *map(loader.portion.own, plan)]))
    empty = np.zeros((0, len(loader.dataset.schema.tasks)), dtype=np.float32)
    return Predictions(scored.rows, scored.request, scored.user, np.concatenate([empty, *probabilities]))


def evaluation_loader(
    dataset: StoredDataset, part: Part | Ints, max_history: int, with_times: bool = False
) -> RequestLoader:
    """The loader that evaluation uses: fixed order, every request of a part, or of those named, once."""
    return RequestLoader(dataset, part, batch_requests=EVALUATION_BATCH, max_history=max_history, with_times=with_times)


def evaluate(
    ranker: Ranker, loader: RequestLoader, bar: Bar | None = None, device: torch.device | None = None
) -> dict[str, Metrics]:
    """Metrics per task; gAUC groups by user, session AUC by request."""
    return measured(loader.dataset, predict(ranker, loader, bar, device))


def measured(dataset: StoredDataset, predictions: Predictions, chosen: Ints | None = None) -> dict[str, Metrics]:
    """Metrics per task of predictions, or of those that are chosen by their position."""
    where: Ints | slice = slice(None) if chosen is None else chosen
    rows, user, request = predictions.rows[where], predictions.user[where], predictions.request[where]
    return {
        task.name: measure(
            dataset.column(f"events/label.{task.name}")[rows], predictions.probability[where, number], user, request
        )
        for number, task in enumerate(dataset.schema.tasks)
    }


def candidates_of(loader: RequestLoader, requests: Ints) -> CandidateRows:
    """Rows of the candidates in the dataset of some requests, with the request and the user of each."""
    start = loader.dataset.column("requests/start")
    counts = start[requests + 1].astype(np.int64) - start[requests].astype(np.int64)
    user = loader.dataset.column("requests/user")[requests].astype(np.int64)
    return CandidateRows(loader.candidate_rows(requests), np.repeat(requests, counts), np.repeat(user, counts))


def oracle(loader: RequestLoader) -> dict[str, Metrics]:
    """What the true probabilities would score, for the tasks whose true probability the dataset knows."""
    dataset, scored = loader.dataset, candidates_of(loader, loader.requests)
    return {
        task.name: measure(
            dataset.column(f"events/label.{task.name}")[scored.rows],
            dataset.column(f"events/truth.{task.name}")[scored.rows],
            scored.user,
            scored.request,
        )
        for task in dataset.schema.tasks
        if task.true_probability
    }
