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


@dataclass(frozen=True)
class Predictions:
    """Probabilities [rows, tasks] for candidate rows of the dataset, in the order of `rows`."""

    rows: NDArray[np.int64]
    user: NDArray[np.int64]
    probability: NDArray[np.float32]


def predict(ranker: Ranker, loader: RequestLoader, bar: Bar | None = None) -> Predictions:
    """Score every candidate of a loader's part."""
    ranker.eval()
    rows, users, probabilities = [], [], []
    user_of_request = loader.dataset.column("requests/user")
    with torch.inference_mode():
        for requests in loader.plan():
            batch = loader.assemble(requests)
            probabilities.append(ranker(batch).sigmoid().numpy())
            rows.append(loader.candidate_rows(requests))
            counts = batch.candidates.offsets.diff().numpy()
            users.append(np.repeat(user_of_request[requests].astype(np.int64), counts))
            if bar is not None:
                bar.advance()
    return Predictions(np.concatenate(rows), np.concatenate(users), np.concatenate(probabilities))


def evaluation_loader(dataset: StoredDataset, part: Part, max_history: int, with_times: bool = False) -> RequestLoader:
    """The loader that evaluation uses: fixed order, every request once."""
    return RequestLoader(dataset, part, batch_requests=EVALUATION_BATCH, max_history=max_history, with_times=with_times)


def evaluate(ranker: Ranker, loader: RequestLoader, bar: Bar | None = None) -> dict[str, Metrics]:
    """Metrics per task; gAUC groups by user."""
    predictions = predict(ranker, loader, bar)
    return {
        task.name: measure(
            loader.dataset.labels(task.name, predictions.rows),
            predictions.probability[:, task_number],
            predictions.user,
        )
        for task_number, task in enumerate(loader.dataset.schema.tasks)
    }


def candidates_of(loader: RequestLoader, requests: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of the candidates in the dataset of some requests, and the user of each."""
    start = loader.dataset.column("requests/start")
    counts = start[requests + 1].astype(np.int64) - start[requests].astype(np.int64)
    user = loader.dataset.column("requests/user")[requests].astype(np.int64)
    return loader.candidate_rows(requests), np.repeat(user, counts)


def oracle(loader: RequestLoader) -> dict[str, Metrics]:
    """What the true probabilities would score, for the tasks whose true probability the dataset knows."""
    dataset = loader.dataset
    rows, user = candidates_of(loader, loader.requests)
    return {
        task.name: measure(dataset.labels(task.name, rows), dataset.column(f"events/truth.{task.name}")[rows], user)
        for task in dataset.schema.tasks
        if task.true_probability
    }
