"""A request as it comes in: a user, a context and events of today, to what the user stage reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from limerank.batch import Features, History, UserInputs
from limerank.data.batches import distinct_items
from limerank.data.store.encoders import encode_rows
from limerank.data.store.manifest import UNKNOWN_ROW
from limerank.errors import UsageError, did_you_mean
from limerank.schema import Role
from limerank.serve.bundles.bundle import Bundle
from limerank.times import EARLIEST_MODERN_TIME, LATEST_TIME, UNITS_APART

FEW_EVENTS = 8  # whose items are found faster one by one


@dataclass(frozen=True)
class Event:
    """Something that happened after the bundle's histories end: an item and its event features, by name.

    `time` is in milliseconds since 1970; None is the time of the request.
    """

    item_id: str
    features: dict[str, Any] = field(default_factory=dict)
    time: int | None = None


class RequestReader:
    """Builds the inputs of the user stage from one bundle's histories, tables and encoders."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        columns = {name: column.numpy() for name, column in bundle.histories.items()}
        self._offsets, self._items, self._events = columns["offsets"], columns["item"], columns["events"]
        self._times = columns.get("times")
        """When events happened; unknown for ready-made histories."""
        self._names = {role: [encoder.name for encoder in bundle.encoders.of(role)] for role in Role}

    def read(
        self, user_id: str, context: dict[str, Any], events: Sequence[Event] = (), now: int | None = None
    ) -> tuple[UserInputs, bool]:
        """What a ranker's `encode_user` reads for one request, and whether the user is known.

        `events` follow the stored ones in the order given, whatever their times are.
        """
        inputs, known = self.read_by_row(user_id, context, events, now)
        history = inputs.history
        items, item_of_event = distinct_items(history.items, history.item_of_event.numpy())
        return replace(inputs, history=replace(history, items=items, item_of_event=item_of_event)), known

    def read_by_row(
        self, user_id: str, context: dict[str, Any], events: Sequence[Event] = (), now: int | None = None
    ) -> tuple[UserInputs, bool]:
        """The same for a prepared user stage: the history's items are the bundle's whole table, events name rows."""
        bundle = self.bundle
        self._check_names(Role.CONTEXT, context)
        for event in events:
            self._check_names(Role.EVENT, event.features)
        asked_at = self._asked_at(now, events)
        user_row = bundle.user_ids.row_of(user_id)
        begin, end = self._offsets[user_row : user_row + 2].tolist()
        most = bundle.manifest.max_history
        stored = slice(max(begin, end - most), end)
        items, encoded = self._items[stored].astype(np.int64), self._events[stored].astype(np.int64)
        times = None if self._times is None or asked_at is None else self._times[stored]
        if events:
            names = checked_ids([event.item_id for event in events], "item_id")
            few = len(names) <= FEW_EVENTS
            new_items = [bundle.item_ids.row_of(name) for name in names] if few else bundle.item_ids.rows_of(names)
            new_events = encode_rows(bundle.encoders.event, [event.features for event in events])
            items = np.concatenate([items, new_items])[-most:]
            encoded = np.concatenate([encoded, new_events])[-most:]
            if times is not None:
                happened = [asked_at if event.time is None else event.time for event in events]
                times = np.concatenate([times, np.array(happened, dtype=np.int64)])[-most:]
        history = History(
            bundle.item_table,
            torch.from_numpy(items),
            Features(torch.from_numpy(encoded)),
            offsets=torch.from_numpy(np.array([0, len(items)])),
            times=None if times is None else torch.from_numpy(times),
        )
        inputs = UserInputs(
            users=bundle.user_table.at(user_row),
            context=Features(torch.from_numpy(encode_rows(bundle.encoders.context, [context]))),
            history=history,
            times=None if asked_at is None else torch.from_numpy(np.array([asked_at])),
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

    def _check_names(self, role: Role, values: dict[str, Any]) -> None:
        known = self._names[role]
        for name in values:
            if name not in known:
                why = did_you_mean(name, known) if known else f": the log has no features of the role '{role.value}'"
                raise UsageError(f"no {role.value} feature '{name}'{why}")


def checked_ids(ids: Iterable[object], name: str) -> list[str]:
    """Ids as texts, from a list, an array or a series of them; one text or a frame is a mistake."""
    if isinstance(ids, str) or not isinstance(ids, Iterable) or hasattr(ids, "columns"):
        raise UsageError(f"{name}: {type(ids).__name__} is no list of ids; pass a list, an array or a series")
    return [checked_id(one, name) for one in ids]


def checked_id(value: object, name: str) -> str:
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
