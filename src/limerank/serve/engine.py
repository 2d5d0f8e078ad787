"""The engine: one verified bundle, and per request its timed stages (paper, figure "LIME Inference").

user      the history becomes a user state; once per request, whatever the number of candidates
lookup    candidate ids become item rows
interact  rows times user state, the head, probabilities, and a running choice of the best
select    names of the chosen
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from limerank.batch import Features, UserInputs
from limerank.data.batches import make_history
from limerank.data.store.encoders import encode_rows
from limerank.data.store.manifest import UNKNOWN_ROW
from limerank.errors import UsageError, did_you_mean
from limerank.files import AnyPath
from limerank.models import UserState
from limerank.ops.candidate import RowStore, best_candidates, candidate_probabilities
from limerank.schema import Role
from limerank.serve.bundle import Bundle
from limerank.serve.ranking import Ranking, ranking_frame
from limerank.serve.scorer import choose_path, request_head
from limerank.serve.store import BundleStore
from limerank.threads import warn_if_spinning
from limerank.times import EARLIEST_MODERN_TIME, LATEST_TIME, UNITS_APART

FIRST_ITEM_ROW = UNKNOWN_ROW + 1


@dataclass(frozen=True)
class Event:
    """Something that happened after the bundle's histories end: an item and its event features, by name.

    `time` is in milliseconds since 1970; None is the time of the request.
    """

    item_id: str
    features: dict[str, Any] = field(default_factory=dict)
    time: int | None = None


@dataclass(frozen=True)
class EncodedRequest:
    """What the user stage leaves behind for one request."""

    state: UserState
    known_user: bool
    history_used: int


class Engine:
    """Ranks candidates with one verified bundle; an engine keeps the bundle it opened until another is opened."""

    def __init__(self, bundle: Bundle) -> None:
        warn_if_spinning()
        self.bundle = bundle
        self.ranker = bundle.ranker

    @classmethod
    def open(cls, store: AnyPath | BundleStore, bundle_id: str | None = None) -> Engine:
        """An engine on a store's active bundle, or on the one named; the bundle is verified."""
        opened = store if isinstance(store, BundleStore) else BundleStore.open(store)
        return cls(opened.open_bundle(bundle_id))

    def rank(
        self,
        user_id: str,
        item_ids: Sequence[str] | None = None,
        *,
        context: dict[str, Any] | None = None,
        events: Sequence[Event] = (),
        now: int | None = None,
        limit: int | None = None,
        task: str | None = None,
        exclude_seen: bool = False,
    ) -> pl.DataFrame:
        """Candidates in order, best first: rank, item_id, its display where the log has one, a probability per task.

        `answer` gives the same with how it came about, and says what the arguments mean.
        """
        ranking = self.answer(
            user_id,
            item_ids,
            context=context,
            events=events,
            now=now,
            limit=limit,
            task=task,
            exclude_seen=exclude_seen,
        )
        return ranking_frame(self.bundle, [ranking])

    def rank_many(
        self,
        user_ids: Iterable[str],
        item_ids: Sequence[str] | None = None,
        *,
        context: dict[str, Any] | None = None,
        now: int | None = None,
        limit: int | None = None,
        task: str | None = None,
        exclude_seen: bool = False,
    ) -> pl.DataFrame:
        """The rankings of several users, one below the other, with a column user_id; context and time are shared."""
        users = _ids(user_ids, "user_ids")
        rankings = [
            self.answer(user, item_ids, context=context, now=now, limit=limit, task=task, exclude_seen=exclude_seen)
            for user in users
        ]
        lengths = [len(ranking.item_ids) for ranking in rankings]
        owners = pl.Series("user_id", users, dtype=pl.String).gather(np.repeat(np.arange(len(users)), lengths))
        return ranking_frame(self.bundle, rankings).insert_column(0, owners)

    def answer(
        self,
        user_id: str,
        item_ids: Sequence[str] | None = None,
        *,
        context: dict[str, Any] | None = None,
        events: Sequence[Event] = (),
        now: int | None = None,
        limit: int | None = None,
        task: str | None = None,
        exclude_seen: bool = False,
    ) -> Ranking:
        """Order candidates (the whole catalog by default) for a user whose history ends with `events`.

        An unknown user ranks with an empty history; an unknown item is scored as 'unknown' and listed as such. `now`
        is the time of the request in milliseconds since 1970, which only rankers that read times care about; by
        default the latest the engine knows of: the bundle's watermark or the time of an event. `exclude_seen` leaves
        out every item that the user has an event with, stored (however long ago) or in `events`.
        """
        user_id = _id(user_id, "user_id")
        item_ids = None if item_ids is None else _ids(item_ids, "item_ids")
        tasks = self.bundle.manifest.tasks
        if task is not None and task not in tasks:
            raise UsageError(f"no task '{task}'{did_you_mean(task, tasks)}")
        if limit is not None and limit < 0:
            raise UsageError(f"limit must not be negative, but is {limit}")
        clock = _Clock()
        request = self.encode_user(user_id, context=context, events=events, now=now)
        clock.lap("user")
        rows = self._rows_of(item_ids)
        seen = self._seen_rows(user_id, events) if exclude_seen else np.zeros(0, dtype=np.int64)
        asked = self.bundle.manifest.items - FIRST_ITEM_ROW if rows is None else len(rows)
        if item_ids is not None and rows is not None and len(seen):
            item_ids, rows = _without(item_ids, rows, seen)
        clock.lap("lookup")
        candidates = asked - len(seen) if rows is None else len(rows)
        path = choose_path(self.ranker, candidates)
        with torch.inference_mode():
            head = request_head(self.ranker, request.state, path)
            store, index = self._catalog(rows)
            wanted = candidates if limit is None else min(limit, candidates)
            besides = len(seen) if rows is None else 0
            top = best_candidates(store, head, wanted + besides, tasks.index(task) if task else 0, index)
        clock.lap("interact")
        order = top.positions.numpy()
        values = top.values.numpy()
        if item_ids is not None:
            names = [item_ids[position] for position in order.tolist()]
        else:
            unseen = np.flatnonzero(~np.isin(order + FIRST_ITEM_ROW, seen))[:wanted]
            names, values = self.bundle.item_ids.names_of(order[unseen] + FIRST_ITEM_ROW), values[unseen]
        repeated = [item for item, times in Counter(item_ids or ()).items() if times > 1]
        clock.lap("select")
        return Ranking(
            item_ids=names,
            probabilities=values,
            tasks=tasks,
            bundle=self.bundle.manifest.id,
            known_user=request.known_user,
            history_used=request.history_used,
            candidates=candidates,
            unknown_items=self._unknown(item_ids, rows),
            repeated_items=repeated,
            seen_items=asked - candidates,
            path=path,
            milliseconds=clock.finish(),
        )

    def encode_user(
        self,
        user_id: str,
        *,
        context: dict[str, Any] | None = None,
        events: Sequence[Event] = (),
        now: int | None = None,
    ) -> EncodedRequest:
        """The user stage alone; run it while retrieval runs, then `score` what retrieval found."""
        inputs, known = self.user_inputs(user_id, context or {}, events, now)
        with torch.inference_mode():
            state = self.ranker.encode_user(inputs)
        return EncodedRequest(state, known, len(inputs.history.item_of_event))

    def score(self, request: EncodedRequest, item_ids: Sequence[str] | None = None) -> NDArray[np.float32]:
        """Probabilities [candidates, tasks], in the order given; None means every known item, in row order."""
        store, index = self._catalog(self._rows_of(item_ids))
        path = choose_path(self.ranker, len(store) if index is None else len(index))
        with torch.inference_mode():
            head = request_head(self.ranker, request.state, path)
            probabilities: NDArray[np.float32] = candidate_probabilities(store, head, index).numpy()
        return probabilities

    def user_inputs(
        self, user_id: str, context: dict[str, Any], events: Sequence[Event] = (), now: int | None = None
    ) -> tuple[UserInputs, bool]:
        """What the user stage reads for one request, and whether the user is known.

        `events` follow the stored ones in the order given, whatever their times are.
        """
        bundle = self.bundle
        self._check_names(Role.CONTEXT, context)
        for event in events:
            self._check_names(Role.EVENT, event.features)
        asked_at = self._asked_at(now, events)
        user_row = int(bundle.user_ids.rows_of([user_id])[0])
        offsets = bundle.histories["offsets"]
        start, end = int(offsets[user_row]), int(offsets[user_row + 1])
        new_items = bundle.item_ids.rows_of(_ids([event.item_id for event in events], "item_id"))
        new_events = encode_rows(bundle.encoders.event, [event.features for event in events])
        items = np.concatenate([bundle.histories["item"][start:end].numpy(), new_items])
        encoded = np.concatenate([bundle.histories["events"][start:end].numpy(), new_events])
        times = self._times(slice(start, end), events, asked_at)
        kept = slice(max(0, len(items) - bundle.manifest.max_history), None)
        history = make_history(
            bundle.item_table,
            items[kept],
            Features(torch.from_numpy(encoded[kept].astype(np.int64))),
            np.array([0, len(items[kept])]),
            None if times is None else times[kept],
        )
        inputs = UserInputs(
            users=bundle.user_table.take(torch.tensor([user_row])),
            context=Features(torch.from_numpy(encode_rows(bundle.encoders.context, [context]))),
            history=history,
            times=None if asked_at is None else torch.tensor([asked_at], dtype=torch.int64),
        )
        return inputs, user_row != UNKNOWN_ROW

    def _asked_at(self, now: int | None, events: Sequence[Event]) -> int | None:
        """The time of a request; None where the log had no times, so that no ranker was trained on them."""
        watermark = self.bundle.manifest.watermark
        if watermark is None:
            return None
        known = [event.time for event in events if event.time is not None]
        asked_at = max([watermark, *known]) if now is None else now
        for given in (asked_at, *known):
            if not _same_unit(given, watermark):
                raise UsageError(
                    f"time {given}: is not in milliseconds since 1970; the bundle's log ends at {watermark}"
                )
        return asked_at

    def _times(self, stored: slice, events: Sequence[Event], asked_at: int | None) -> NDArray[np.int64] | None:
        """When the stored and the new events happened; unknown for ready-made histories."""
        times = self.bundle.histories.get("times")
        if times is None or asked_at is None:
            return None
        new = np.array([asked_at if event.time is None else event.time for event in events], dtype=np.int64)
        return np.concatenate([times[stored].numpy(), new])

    def _catalog(self, rows: NDArray[np.int64] | None) -> tuple[RowStore, torch.Tensor | None]:
        """The store and the index of the candidates: rows of the whole store, or every known item."""
        if rows is None:
            return self.bundle.rows.behind(FIRST_ITEM_ROW), None
        return self.bundle.rows, torch.from_numpy(rows)

    def _rows_of(self, item_ids: Sequence[str] | None) -> NDArray[np.int64] | None:
        return None if item_ids is None else self.bundle.item_ids.rows_of(item_ids)

    def _seen_rows(self, user_id: str, events: Sequence[Event]) -> NDArray[np.int64]:
        """The distinct catalog rows that a user has events with, ascending."""
        user, offsets = int(self.bundle.user_ids.rows_of([user_id])[0]), self.bundle.seen["offsets"]
        stored = self.bundle.seen["item"][int(offsets[user]) : int(offsets[user + 1])].numpy()
        new = self.bundle.item_ids.rows_of(_ids([event.item_id for event in events], "item_id"))
        return np.union1d(stored, new[new != UNKNOWN_ROW]).astype(np.int64)

    def _unknown(self, item_ids: Sequence[str] | None, rows: NDArray[np.int64] | None) -> list[str]:
        if item_ids is None or rows is None:
            return []
        return [item_ids[position] for position in np.flatnonzero(rows == UNKNOWN_ROW).tolist()]

    def _check_names(self, role: Role, values: dict[str, Any]) -> None:
        known = [encoder.name for encoder in self.bundle.encoders.of(role)]
        for name in values:
            if name not in known:
                why = did_you_mean(name, known) if known else f": the log has no features of the role '{role.value}'"
                raise UsageError(f"no {role.value} feature '{name}'{why}")


def _ids(ids: Iterable[object], name: str) -> list[str]:
    """Ids as texts, from a list, an array or a series of them; one text or a frame is a mistake."""
    if isinstance(ids, str) or not isinstance(ids, Iterable) or hasattr(ids, "columns"):
        raise UsageError(f"{name}: {type(ids).__name__} is no list of ids; pass a list, an array or a series")
    return [_id(one, name) for one in ids]


def _id(value: object, name: str) -> str:
    """An id as the text it was in the log; whole numbers may come as such."""
    if isinstance(value, str):
        return value
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return str(value)
    raise UsageError(f"{name}: {value!r} is no id; ids are texts or whole numbers")


def _same_unit(time: int, watermark: int) -> bool:
    """Whether a time may be in milliseconds like the watermark: seconds, micro- and nanoseconds are far off."""
    modern = watermark > EARLIEST_MODERN_TIME
    return 0 <= time < LATEST_TIME and not (modern and time < watermark / UNITS_APART)


def _without(
    item_ids: Sequence[str], rows: NDArray[np.int64], seen: NDArray[np.int64]
) -> tuple[list[str], NDArray[np.int64]]:
    """Candidates and their rows, without those of seen rows."""
    kept = np.flatnonzero(~np.isin(rows, seen))
    return [item_ids[position] for position in kept.tolist()], rows[kept]


class _Clock:
    def __init__(self) -> None:
        self.started = self.last = time.perf_counter()
        self.laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name] = (now - self.last) * 1000
        self.last = now

    def finish(self) -> dict[str, float]:
        return {**self.laps, "total": (self.last - self.started) * 1000}
