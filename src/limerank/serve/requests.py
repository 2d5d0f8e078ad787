"""A request as it comes in: a user, a context and events of today, to what the user stage reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from limerank.batch import Features, UserInputs
from limerank.data.batches import make_history
from limerank.data.store.encoders import encode_rows
from limerank.data.store.manifest import UNKNOWN_ROW
from limerank.errors import UsageError, did_you_mean
from limerank.schema import Role
from limerank.serve.bundles.bundle import Bundle
from limerank.times import EARLIEST_MODERN_TIME, LATEST_TIME, UNITS_APART


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

    def history_length(self, user_id: str, events: Sequence[Event] = ()) -> int:
        """How many events the user stage of a request reads."""
        offsets = self.bundle.histories["offsets"]
        user_row = int(self.bundle.user_ids.rows_of([user_id])[0])
        stored = int(offsets[user_row + 1]) - int(offsets[user_row])
        return min(stored + len(events), self.bundle.manifest.max_history)

    def read(
        self,
        user_id: str,
        context: dict[str, Any],
        events: Sequence[Event] = (),
        now: int | None = None,
        most_events: int | None = None,
    ) -> tuple[UserInputs, bool]:
        """What the user stage reads for one request, and whether the user is known.

        `events` follow the stored ones in the order given, whatever their times are; of all, at most the latest
        `most_events` are read.
        """
        bundle = self.bundle
        self._check_names(Role.CONTEXT, context)
        for event in events:
            self._check_names(Role.EVENT, event.features)
        asked_at = self._asked_at(now, events)
        user_row = int(bundle.user_ids.rows_of([user_id])[0])
        offsets = bundle.histories["offsets"]
        start, end = int(offsets[user_row]), int(offsets[user_row + 1])
        new_items = bundle.item_ids.rows_of(checked_ids([event.item_id for event in events], "item_id"))
        new_events = encode_rows(bundle.encoders.event, [event.features for event in events])
        items = np.concatenate([bundle.histories["item"][start:end].numpy(), new_items])
        encoded = np.concatenate([bundle.histories["events"][start:end].numpy(), new_events])
        times = self._times(slice(start, end), events, asked_at)
        most = bundle.manifest.max_history if most_events is None else min(most_events, bundle.manifest.max_history)
        kept = slice(max(0, len(items) - most), None)
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

    def _check_names(self, role: Role, values: dict[str, Any]) -> None:
        known = [encoder.name for encoder in self.bundle.encoders.of(role)]
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
