"""Properties of a log that decide how hard it is, counted from a prepared dataset; no ranker is trained."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from limerank.data.store.dataset import StoredDataset
from limerank.errors import DataError
from limerank.evaluation.evaluate import evaluation_loader, oracle
from limerank.evaluation.floor import counting_floors
from limerank.metrics import MISSING
from limerank.schema import Kind
from limerank.splits import Part
from limerank.study.logs.results import Drift, Floors, Lengths, Popularity, Properties

LATE = 0.2  # the last fifth of the log
EVENTS_FOR_DRIFT = 20
DAY_MS = 86_400_000
CURVE = np.linspace(0, 1, 41)

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def properties(dataset: StoredDataset, name: str) -> Properties:
    """Measure a dataset; its events are stored by user and time."""
    if dataset.schema.time is None:
        raise DataError(f"{dataset.path}: its log has no time, so repeats, drift and late events cannot be told")
    per_request = np.diff(dataset.column("requests/start")).astype(np.int64)
    user = np.repeat(dataset.column("requests/user"), per_request).astype(np.int64)
    request = np.repeat(np.arange(len(per_request)), per_request)
    every = np.arange(len(user))
    item = dataset.column("events/item")[every].astype(np.int64)
    time = dataset.column("events/time")[every].astype(np.int64)
    lengths = np.bincount(user)
    lengths = lengths[lengths > 0]
    return Properties(
        name=name,
        fingerprint=dataset.fingerprint,
        split=dataset.schema.split.protocol,
        users=len(lengths),
        items=len(np.unique(item)),
        events=len(item),
        requests=len(per_request),
        candidates=float(per_request.mean()),
        days=float(time.max() - time.min()) / DAY_MS,
        lengths=Lengths(
            median=float(np.median(lengths)),
            mean=float(lengths.mean()),
            upper_tenth=float(np.quantile(lengths, 0.9)),
            longest=int(lengths.max()),
            quantiles=[(float(q), float(np.quantile(lengths, q))) for q in CURVE],
        ),
        popularity=popularity(item, time),
        positive={task.name: _positive(dataset, task.name, every) for task in dataset.schema.tasks},
        repeats=repeat_rate(user, item, request),
        drift=_drift(dataset, user, item),
        floors=_floors(dataset),
    )


def popularity(item: Ints, time: Ints) -> Popularity:
    """How events are spread over items."""
    counts = np.bincount(item)
    counts = np.sort(counts[counts > 0])[::-1]
    rising = counts[::-1]
    # the mean difference of two items relative to twice the mean, from sorted counts
    gini = float(((2 * np.arange(1, len(rising) + 1) - len(rising) - 1) * rising).sum() / (len(rising) * rising.sum()))
    late = time > np.quantile(time, 1 - LATE)
    return Popularity(
        gini=gini,
        top_1_percent=_on_top(counts, 0.01),
        top_10_percent=_on_top(counts, 0.1),
        seen_once=float((counts == 1).mean()),
        unseen_late=_unseen(item[late], item[~late]),
        head=[(0.0, 0.0), *((float(q), _on_top(counts, q)) for q in CURVE[1:])],
    )


def repeat_rate(user: Ints, item: Ints, request: Ints) -> float:
    """Fraction of events on an item that the same user met in an earlier request; requests are numbered by time."""
    order = np.lexsort((request, item, user))
    same = (user[order][1:] == user[order][:-1]) & (item[order][1:] == item[order][:-1])
    # twins within a request are no repeat, unless the first of them is
    starts = np.flatnonzero(np.r_[True, ~same])
    first_request = np.repeat(request[order][starts], np.diff(np.r_[starts, len(order)]))
    return float((request[order] > first_request).mean())


def drift(user: Ints, row: Ints, value: Ints, attribute: str) -> Drift | None:
    """Compare halves of each user's events; (row, value) are the attribute values of events, which are in time's order.

    Both ways of halving see the same number of events, so that sparse counts lower both cosines alike.
    """
    count = np.bincount(user)
    start = np.r_[0, np.cumsum(count)[:-1]]
    number = row - start[user[row]]
    enough = count >= EVENTS_FOR_DRIFT
    chosen = enough[user[row]]
    whose, value, number = user[row][chosen], value[chosen], number[chosen]
    if not chosen.any():
        return None
    shape = (len(count), int(value.max()) + 1)

    def counted(mask: NDArray[np.bool_]) -> Floats:
        table = np.zeros(shape)
        np.add.at(table, (whose[mask], value[mask]), 1.0)
        return table[enough]

    late, odd = number >= count[whose] // 2, number % 2 == 1
    by_time, by_turns = _cosines(counted(~late), counted(late)), _cosines(counted(~odd), counted(odd))
    known = ~(np.isnan(by_time) | np.isnan(by_turns))
    if known.sum() < 2:
        return None
    by_time, by_turns = by_time[known], by_turns[known]
    early_late, alternating = float(by_time.mean()), float(by_turns.mean())
    whole = counted(np.ones(len(whose), dtype=bool))
    part = whole / np.maximum(whole.sum(1, keepdims=True), 1)
    entropy = -(part * np.log(np.where(part > 0, part, 1))).sum(1)
    return Drift(
        attribute=attribute,
        users=int(known.sum()),
        early_late=early_late,
        alternating=alternating,
        drift=1 - early_late / alternating,
        error=float((by_turns - by_time).std(ddof=1) / np.sqrt(len(by_time)) / alternating),
        effective_values=float(np.median(np.exp(entropy))),
    )


def _drift(dataset: StoredDataset, user: Ints, item: Ints) -> Drift | None:
    """Of the first categorical or multi-valued item feature that is not the id; else of a continuous one's buckets."""
    features = [encoder for encoder in dataset.encoders.item if encoder.name != dataset.schema.item_id]
    kinds = (Kind.CATEGORICAL, Kind.MULTI_VALUED), (Kind.CONTINUOUS,)
    found = next((encoder for kind in kinds for encoder in features if encoder.kind in kind), None)
    if found is None:
        return None
    order = np.argsort(user, kind="stable")  # segments that were appended hold later events of the same users
    user, item = user[order], item[order]
    if found.kind is Kind.MULTI_VALUED:
        values = np.concatenate(dataset.pieces(f"items/{found.name}.values")).astype(np.int64)
        lengths = np.concatenate([np.diff(piece) for piece in dataset.pieces(f"items/{found.name}.offsets")])
        begin = np.r_[0, np.cumsum(lengths.astype(np.int64))]
        many = lengths[item].astype(np.int64)
        row = np.repeat(np.arange(len(item)), many)
        within = np.arange(len(row)) - np.repeat(np.cumsum(many) - many, many)
        value = values[np.repeat(begin[item], many) + within]
    else:
        row = np.arange(len(item))
        value = np.concatenate(dataset.pieces(f"items/{found.name}")).astype(np.int64)[item]
    return drift(user, row, value, found.name)


def _floors(dataset: StoredDataset) -> dict[str, Floors]:
    loader = evaluation_loader(dataset, Part.TEST, 1)
    counted, true = counting_floors(loader), oracle(loader)
    return {
        task: Floors(
            user=of_task["user"].auc,
            item=of_task["item"].auc,
            both=of_task["both"].auc,
            oracle=true[task].auc if task in true else None,
        )
        for task, of_task in counted.items()
    }


def _positive(dataset: StoredDataset, task: str, every: Ints) -> float:
    labels = dataset.column(f"events/label.{task}")[every]
    return float((labels[labels != MISSING] == 1).mean())


def _on_top(counts: Ints, fraction: float) -> float:
    return float(counts[: max(1, round(fraction * len(counts)))].sum() / counts.sum())


def _unseen(late: Ints, early: Ints) -> float:
    return float((~np.isin(late, early)).mean()) if len(late) else 0.0


def _cosines(one: Floats, other: Floats) -> Floats:
    """Row by row; nothing (NaN) where a half has no value at all."""
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    cosines: Floats = np.where(lengths > 0, (one * other).sum(1) / np.where(lengths > 0, lengths, 1), np.nan)
    return cosines
