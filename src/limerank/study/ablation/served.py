"""Row precision: one run, its item rows stored as fp32, fp16 and u8, and what is served from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from limerank.data.batches import RequestLoader
from limerank.data.store.dataset import StoredDataset
from limerank.errors import ArgumentError
from limerank.evaluation.evaluate import Predictions, candidates_of, evaluation_loader, measured
from limerank.models import Ranker, UserState
from limerank.ops.candidate import ROW_TYPES, RowStore
from limerank.progress import Bar
from limerank.serve.bundles.offline import RowType, compute_rows
from limerank.serve.scorer import score_candidates
from limerank.splits import Part
from limerank.study.ablation.differences import paired
from limerank.study.ablation.results import RowPrecision, values
from limerank.training.run import FinishedRun

REFERENCE: RowType = "fp32"
TYPES: tuple[RowType, ...] = ("fp32", "fp16", "u8")
CATALOG_REQUESTS = 200
"""Requests for which the whole catalog is ranked."""
FIRST, MANY = 10, 100


def row_precisions(
    model: str,
    runs: Sequence[FinishedRun],
    dataset: StoredDataset,
    task: str,
    requests: int = CATALOG_REQUESTS,
    bar: Bar | None = None,
) -> list[RowPrecision]:
    """The runs of one ranker, one for each seed, served in every row type; fp32 is what the others are held against.

    The bar advances by a step for each run.
    """
    assert set(TYPES) == set(ROW_TYPES)
    found = {row_type: RowPrecision(model=model, row_type=row_type) for row_type in TYPES}
    tops: dict[str, list[tuple[float, float]]] = {row_type: [] for row_type in TYPES}
    number = [one.name for one in dataset.schema.tasks].index(task)
    for run in runs:
        ranker = run.ranker(dataset)
        loader = evaluation_loader(dataset, Part.TEST, run.config.train.max_history, ranker.needs_times)
        stores = {}
        for row_type, one in found.items():
            try:
                stores[row_type] = compute_rows(ranker, dataset.item_table, row_type)
            except ArgumentError as refused:
                one.refused = str(refused)
        served = {row_type: served_predictions(ranker, loader, store) for row_type, store in stores.items()}
        for row_type, predictions in served.items():
            one = found[row_type]
            one.bytes_per_item = stores[row_type].row_bytes
            one.test = [*one.test, measured(dataset, predictions)[task]]
            off = float(np.abs(predictions.probability - served[REFERENCE].probability).max(initial=0))
            one.largest_difference = max(off, one.largest_difference or 0.0)
        for row_type, overlaps in _overlaps(ranker, loader, stores, number, requests).items():
            tops[row_type] += overlaps
        if bar is not None:
            bar.advance()
    for row_type, one in found.items():
        one.ne = paired(values(found[REFERENCE].test, "ne"), values(one.test, "ne")) if one.test else None
        if tops[row_type]:
            one.top_10, one.top_100 = (float(np.mean(column)) for column in zip(*tops[row_type], strict=True))
    return list(found.values())


def served_predictions(ranker: Ranker, loader: RequestLoader, store: RowStore) -> Predictions:
    """Every candidate of a loader's requests, scored as the engine does: from stored rows, request by request."""
    items, rows = loader.dataset.column("events/item"), candidates_of(loader, loader.requests)
    probabilities: list[NDArray[np.float32]] = []
    position = 0
    with torch.inference_mode():
        for requests in _batches(loader):
            states = ranker.encode_user(loader.user_inputs(requests))
            for state, count in zip(_each(states, len(requests)), _counts(loader, requests), strict=True):
                index = torch.from_numpy(items[rows.rows[position : position + count]].astype(np.int64))
                probabilities.append(score_candidates(ranker, state, store, index).sigmoid().float().numpy())
                position += count
    empty = np.zeros((0, len(loader.dataset.schema.tasks)), dtype=np.float32)
    return Predictions(rows.rows, rows.request, rows.user, np.concatenate([empty, *probabilities]))


def _overlaps(
    ranker: Ranker, loader: RequestLoader, stores: Mapping[RowType, RowStore], task: int, requests: int
) -> dict[RowType, list[tuple[float, float]]]:
    """For each row type, of some requests spread over the part: the fractions of the best 10 and 100 that stay."""
    every = max(1, len(loader.requests) // requests)
    chosen = loader.requests[::every][:requests]
    found: dict[RowType, list[tuple[float, float]]] = {row_type: [] for row_type in stores}
    with torch.inference_mode():
        for state in _each(ranker.encode_user(loader.user_inputs(chosen)), len(chosen)):
            best = {
                row_type: score_candidates(ranker, state, store)[1:, task].argsort(descending=True)
                for row_type, store in stores.items()
            }
            for row_type, order in best.items():
                found[row_type].append((_kept(best[REFERENCE], order, FIRST), _kept(best[REFERENCE], order, MANY)))
    return found


def _kept(reference: Tensor, order: Tensor, count: int) -> float:
    count = min(count, len(reference))
    return len(set(reference[:count].tolist()) & set(order[:count].tolist())) / count


def _batches(loader: RequestLoader) -> list[NDArray[np.int64]]:
    """In the order of the requests, so that candidates are in the order of `candidates_of`."""
    size = loader.batch_requests
    return [loader.requests[first : first + size] for first in range(0, len(loader.requests), size)]


def _counts(loader: RequestLoader, requests: NDArray[np.int64]) -> list[int]:
    start = loader.dataset.column("requests/start")
    counts: list[int] = (start[requests + 1].astype(np.int64) - start[requests].astype(np.int64)).tolist()
    return counts


def _each(states: UserState, count: int) -> list[UserState]:
    """The states of single requests, of a factorized ranker: everything it leaves has a row for each."""
    return [
        UserState(tuple(part[one : one + 1] for part in states.memory), states.head_part[one : one + 1])
        for one in range(count)
    ]
