"""What may be wrong with a prepared dataset: each check says PASS, WARN or FAIL, with counts and example ids."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from limerank.data.batches import RequestLoader
from limerank.data.describe.labels import count_labels
from limerank.data.store.dataset import StoredDataset
from limerank.data.store.history import UNLIMITED
from limerank.metrics import auc_of_counts
from limerank.schema import UNKNOWN_INDEX, Kind, Role
from limerank.splits import Part

SUSPICIOUS_AUC, IMPOSSIBLE_AUC = 0.9, 0.97
MANY = 0.2  # of the rows: from here on a fraction is worth a warning
DRIFT = 1.5  # label rates of train and test may differ by this factor
EXAMPLES = 3

Ints = NDArray[np.int64]


class Level(StrEnum):
    """How bad it is."""

    PASS = "PASS"  # noqa: S105
    WARN = "WARN"
    FAIL = "FAIL"


@dataclass(frozen=True)
class Check:
    """One line of `limerank describe`."""

    level: Level
    name: str
    text: str
    values: dict[str, Any] = field(default_factory=dict)


class _View:
    """The columns of a dataset that several checks read."""

    def __init__(self, dataset: StoredDataset) -> None:
        self.dataset = dataset
        self.start = dataset.column("requests/start").astype(np.int64)
        self.user_of_request = dataset.column("requests/user").astype(np.int64)
        self.part_of_request = np.asarray(dataset.column("requests/part"))
        self.sizes = np.diff(self.start)

    @cached_property
    def part(self) -> NDArray[np.uint8]:
        return np.repeat(self.part_of_request, self.sizes)

    @cached_property
    def user(self) -> Ints:
        return np.repeat(self.user_of_request, self.sizes)

    @cached_property
    def item(self) -> Ints:
        return np.asarray(self.dataset.column("events/item")).astype(np.int64)

    @cached_property
    def time(self) -> Ints | None:
        return np.asarray(self.dataset.column("events/time")) if self.dataset.schema.time is not None else None

    def rows_in(self, part: Part) -> NDArray[np.bool_]:
        inside: NDArray[np.bool_] = self.part == part.code
        return inside

    def columns(self) -> Iterator[tuple[str, Ints, int]]:
        """Every single-valued column known of a candidate or a request: name, category of each event, size."""
        yield "user id", self.user, self.dataset.manifest.table_rows["users"]
        yield "item id", self.item, self.dataset.manifest.table_rows["items"]
        tables = ((Role.ITEM, self.dataset.item_table, self.item), (Role.USER, self.dataset.user_table, self.user))
        for role, table, rows in tables:
            single = [e for e in self.dataset.encoders.of(role) if e.kind not in (Kind.MULTI_VALUED, Kind.VECTOR)]
            for column, encoder in enumerate(single):
                yield f"{role.value} feature '{encoder.name}'", table.indices[:, column].numpy()[rows], encoder.size
        for encoder in self.dataset.encoders.context:
            values = np.asarray(self.dataset.column(f"events/context.{encoder.name}")).astype(np.int64)
            yield f"context feature '{encoder.name}'", values, encoder.size


def run_checks(dataset: StoredDataset) -> list[Check]:
    """All checks, in the order in which to read them."""
    view = _View(dataset)
    checks = [*_bad_rows(view), *_labels(view), *_selection(view), *_histories(view), *_unseen(view)]
    checks += [*_duplicates(view), *_ties(view), *_times(view), *_constants(view), *_lists(view), *_predictors(view)]
    return checks


def _bad_rows(view: _View) -> Iterator[Check]:
    """Rows that were set aside because they cannot be read; a log without any has nothing to say here."""
    for bad in view.dataset.manifest.bad_rows:
        (said,) = view.dataset.with_paths([bad.text])
        yield Check(Level.WARN, "bad rows", said, {"rows": bad.rows})


def _labels(view: _View) -> Iterator[Check]:
    for task in count_labels(view.dataset):
        rates = {part.value: one.rate for part, one in task.parts.items()}
        missing = {part.value: one.missing_fraction for part, one in task.parts.items() if one.missing}
        said = f"{task.task} is 1 in " + ", ".join(f"{rate:.1%} of {part}" for part, rate in rates.items())
        if missing:
            lacking = ", ".join(f"{fraction:.1%} of {part}" for part, fraction in missing.items())
            said += f", where it is known; it is missing in {lacking}"
        trained, tested = rates["train"], rates["test"]
        if one_class := task.one_class_in():
            level, said = Level.WARN if one_class == [Part.VALIDATION] else Level.FAIL, task.problem()
        elif max(trained, tested) > DRIFT * min(trained, tested):
            level, said = Level.WARN, f"{said}: the test part differs much from what is trained on"
        else:
            level = Level.PASS
        yield Check(level, "labels", said, {"task": task.task, **rates})


def _selection(view: _View) -> Iterator[Check]:
    split = view.dataset.schema.split
    if split.select_on_test:
        yield Check(
            Level.WARN, "split", "no validation part: rankers are selected on the test part, as leaderboards do"
        )
    else:
        counted = ", ".join(f"{part.value} {np.count_nonzero(view.part_of_request == part.code):,}" for part in Part)
        neither = int(np.count_nonzero(view.part_of_request >= len(Part)))
        rest = f"; {neither:,} are history only" if neither else ""
        yield Check(Level.PASS, "split", f"{split.protocol}: requests {counted}{rest}", {"history_only": neither})


def _histories(view: _View) -> Iterator[Check]:
    tested = view.dataset.requests_in(Part.TEST)
    loader = RequestLoader(view.dataset, Part.TEST, batch_requests=1, max_history=UNLIMITED)
    lengths = loader.history_lengths(tested)
    marks = {f"p{q}": int(np.percentile(lengths, q)) for q in (5, 25, 50, 75, 95)} | {"max": int(lengths.max())}
    empty = float((lengths == 0).mean())
    said = "test requests have " + ", ".join(f"{name} {value:,}" for name, value in marks.items()) + " events"
    values = {**marks, "empty": empty, "histogram": histogram(lengths)}
    if empty > MANY:
        users = view.dataset.user_ids.gather(np.unique(view.user_of_request[tested[lengths == 0]])[:EXAMPLES]).to_list()
        said += f"; {empty:.0%} have none (users {_named(users)}): nothing personal can be ranked for them"
        yield Check(Level.WARN, "histories", said, values)
    else:
        yield Check(Level.PASS, "histories", said, values)


def histogram(lengths: Ints) -> list[dict[str, int]]:
    """How many requests have a history of 0, 1, 2-3, 4-7, ... events."""
    bins = np.where(lengths > 0, np.floor(np.log2(np.maximum(lengths, 1))).astype(np.int64) + 1, 0)
    counts = np.bincount(bins)
    return [
        {"from": 0 if power == 0 else 2 ** (power - 1), "to": 0 if power == 0 else 2**power - 1, "requests": int(count)}
        for power, count in enumerate(counts)
    ]


def _unseen(view: _View) -> Iterator[Check]:
    train, test = view.rows_in(Part.TRAIN), view.rows_in(Part.TEST)
    for what, rows, ids in (("users", view.user, view.dataset.user_ids), ("items", view.item, view.dataset.item_ids)):
        known = np.zeros(len(ids), dtype=bool)
        known[rows[train]] = True
        new = ~known[rows[test]]
        fraction = float(new.mean())
        distinct = np.unique(rows[test][new])
        shown = f" ({_named(ids.gather(distinct[:EXAMPLES]).to_list())})" if len(distinct) else ""
        said = f"{fraction:.1%} of test rows are of {len(distinct):,} {what} never seen in train{shown}"
        yield Check(Level.WARN if fraction > MANY else Level.PASS, "unseen", said, {"what": what, "fraction": fraction})
    worst = []
    for name, values, _ in view.columns():
        if name not in ("user id", "item id"):
            fraction = float((values[test] == UNKNOWN_INDEX).mean())
            worst.append((fraction, name, float((values[train] == UNKNOWN_INDEX).mean())))
    for fraction, name, trained in sorted(worst, reverse=True):
        if fraction > MANY:
            rates = f"{fraction:.1%} of test rows ({trained:.1%} of train)"
            said = f"{name} is unknown in {rates}: missing, rare or new values"
            yield Check(Level.WARN, "unseen", said, {"what": name, "fraction": fraction})
    if not any(fraction > MANY for fraction, _, _ in worst):
        said = f"no feature is unknown in more than {max(worst)[0]:.1%} of test rows ({max(worst)[1]})" if worst else ""
        yield Check(Level.PASS, "unseen", said or "there is no single-valued feature to look at")


def _duplicates(view: _View) -> Iterator[Check]:
    request = np.repeat(np.arange(len(view.sizes)), view.sizes)
    order = np.lexsort((view.item, request))
    twin = (np.diff(request[order]) == 0) & (np.diff(view.item[order]) == 0)
    count = int(twin.sum())
    if not count:
        yield Check(Level.PASS, "duplicates", "no item stands twice in a request", {"rows": 0})
        return
    examples = order[1:][twin][:EXAMPLES]
    examples = [
        f"user {view.dataset.user_ids[int(view.user[p])]} item {view.dataset.item_ids[int(view.item[p])]}"
        for p in examples
    ]
    said = (
        f"{count:,} rows repeat an item of their request ({'; '.join(examples)}): if they are logged twice, drop them"
    )
    yield Check(Level.WARN, "duplicates", said, {"rows": count})


def _ties(view: _View) -> Iterator[Check]:
    """Several events of a user at one time: they are candidates together, and never each other's history."""
    if view.time is None or view.dataset.schema.histories is not None:
        return
    same = (np.diff(view.user) == 0) & (np.diff(view.time) == 0)
    tied = np.zeros(len(view.user), dtype=bool)
    tied[1:] |= same
    tied[:-1] |= same
    fraction = float(tied.mean())
    said = f"{fraction:.1%} of events share user and time with another; such events are no history of each other"
    odd = fraction > MANY and view.dataset.schema.request_id is None
    hint = ": if they were not shown together, times are too coarse; if they were, name a request_id" if odd else ""
    yield Check(Level.WARN if odd else Level.PASS, "ties", said + hint, {"fraction": fraction})


def _times(view: _View) -> Iterator[Check]:
    first, last = view.dataset.manifest.first_time, view.dataset.manifest.last_time
    if first is None or last is None:
        yield Check(Level.PASS, "times", "the log has no times; its histories are ready-made")
        return
    begin, end = (datetime.fromtimestamp(value / 1000, UTC) for value in (first, last))
    said = f"from {begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC, {(end - begin).days + 1} days"
    if end.year < 1980:
        yield Check(Level.WARN, "times", f"{said}: before 1980, so time_unit is probably wrong")
    elif end > datetime.now(UTC) + timedelta(days=1):
        yield Check(Level.WARN, "times", f"{said}: in the future, so time_unit or a clock is probably wrong")
    else:
        yield Check(Level.PASS, "times", said)


def _constants(view: _View) -> Iterator[Check]:
    train = view.rows_in(Part.TRAIN)
    names = [
        name for name, values, _ in view.columns() if len(values[train]) and values[train].min() == values[train].max()
    ]
    folder = "histories" if view.dataset.schema.histories else "events"
    for encoder in view.dataset.encoders.event:
        stored = np.asarray(view.dataset.column(f"{folder}/event.{encoder.name}"))
        seen = stored if folder == "histories" else stored[train]
        if len(seen) and seen.min() == seen.max():
            names.append(f"event feature '{encoder.name}'")
    if names:
        yield Check(
            Level.WARN, "constants", f"{_named(names)}: the same value in all of train; leave out", {"names": names}
        )
    else:
        yield Check(Level.PASS, "constants", "no column is constant in train")


def _lists(view: _View) -> Iterator[Check]:
    """A multi-valued feature that never has two values was probably split by the wrong separator."""
    for role, table in ((Role.ITEM, view.dataset.item_table), (Role.USER, view.dataset.user_table)):
        encoders = [e for e in view.dataset.encoders.of(role) if e.kind is Kind.MULTI_VALUED]
        for encoder, jagged in zip(encoders, table.lists, strict=True):
            longest = int(jagged.offsets.diff().max())
            said = f"{role.value} feature '{encoder.name}' has up to {longest} values"
            if longest > 1:
                yield Check(Level.PASS, "lists", said)
            else:
                yield Check(Level.WARN, "lists", f"{said}: is its separator right, or is it categorical?")


def _predictors(view: _View) -> Iterator[Check]:
    """A column that alone predicts a label too well is a leak or an artefact of how the log was selected."""
    train, test = view.rows_in(Part.TRAIN), view.rows_in(Part.TEST)
    for task in view.dataset.schema.tasks:
        labels = view.dataset.labels(task.name).astype(np.float64)
        best: tuple[float, str] | None = None
        for name, values, size in view.columns():
            for how, found in (
                ("rate in train", _rate_auc(values, labels, train, test, size)),
                ("frequency", _frequency_auc(values, labels, size)),
            ):
                if found is None:
                    continue
                best = max(best or (0.0, ""), (found, f"the {how} of {name}"))
                if found >= SUSPICIOUS_AUC:
                    level = Level.FAIL if found >= IMPOSSIBLE_AUC else Level.WARN
                    said = (
                        f"the {how} of {name} alone predicts {task.name} with AUC {found:.3f}: "
                        + ("it tells the label" if how.startswith("rate") else "the log was selected by the label")
                        + ", or it is not known beforehand; another target or another log is needed"
                    )
                    yield Check(level, "leaks", said, {"task": task.name, "column": name, "how": how, "auc": found})
        if best is None:
            said = f"no column can be tried as a predictor of {task.name}, which has one class only"
            yield Check(Level.WARN, "leaks", said, {"task": task.name, "auc": None})
        elif best[0] < SUSPICIOUS_AUC:
            said = f"no column alone predicts {task.name} suspiciously well (best: {best[1]}, AUC {best[0]:.3f})"
            yield Check(Level.PASS, "leaks", said, {"task": task.name, "auc": best[0]})


def _rate_auc(
    values: Ints, labels: NDArray[np.float64], train: NDArray[np.bool_], test: NDArray[np.bool_], size: int
) -> float | None:
    """AUC on test of the label's rate in train per category; unseen categories get the overall rate."""
    known = ~np.isnan(labels)
    train, test = train & known, test & known
    if not train.any():
        return None
    shown = np.bincount(values[train], minlength=size)
    positive = np.bincount(values[train], weights=labels[train], minlength=size)
    rate = np.where(shown > 0, positive / np.maximum(shown, 1), labels[train].mean())
    return _auc_by_category(rate, values[test], labels[test], size)


def _frequency_auc(values: Ints, labels: NDArray[np.float64], size: int) -> float | None:
    """AUC of how often a category occurs in the whole log, in whichever direction."""
    known = ~np.isnan(labels)
    often = np.bincount(values, minlength=size).astype(np.float64)
    found = _auc_by_category(often, values[known], labels[known], size)
    return None if found is None else max(found, 1 - found)


def _auc_by_category(score: NDArray[np.float64], values: Ints, labels: NDArray[np.float64], size: int) -> float | None:
    positive = np.bincount(values, weights=labels, minlength=size).astype(np.float64)
    return auc_of_counts(score, positive, np.bincount(values, minlength=size).astype(np.float64) - positive)


def _named(names: list[str]) -> str:
    return ", ".join(names[:EXAMPLES]) + (f" and {len(names) - EXAMPLES} more" if len(names) > EXAMPLES else "")
