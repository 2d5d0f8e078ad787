"""A request as it comes in: a user, a context and events of today, to what the user stage reads."""

from __future__ import annotations

from collections.abc import Sequence
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
from limerank.serve.catalog import Catalog
from limerank.serve.checks import checked_ids
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

    def read(
        self,
        catalog: Catalog,
        user_id: str,
        context: dict[str, Any],
        events: Sequence[Event] = (),
        now: int | None = None,
    ) -> tuple[UserInputs, bool]:
        """What the user stage reads for one request, and whether the user is known.

        `events` follow the stored ones in the order given, whatever their times are. Features of items are those that
        the catalog has now, in stored events, too.
        """
        bundle = self.bundle
        self._check_names(Role.CONTEXT, context)
        for event in events:
            self._check_names(Role.EVENT, event.features)
        asked_at = self._asked_at(now, events)
        user_row = int(bundle.user_ids.rows_of([user_id])[0])
        offsets = bundle.histories["offsets"]
        start, end = int(offsets[user_row]), int(offsets[user_row + 1])
        new_items = catalog.rows_of(checked_ids([event.item_id for event in events], "item_id"), deleted=True)
        new_events = encode_rows(bundle.encoders.event, [event.features for event in events])
        items = np.concatenate([bundle.histories["item"][start:end].numpy(), new_items])
        encoded = np.concatenate([bundle.histories["events"][start:end].numpy(), new_events])
        times = self._times(slice(start, end), events, asked_at)
        kept = slice(max(0, len(items) - bundle.manifest.max_history), None)
        item_table, item_rows = catalog.history_features(items[kept])
        history = make_history(
            item_table,
            item_rows,
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


def _same_unit(time: int, watermark: int) -> bool:
    """Whether a time may be in milliseconds like the watermark: seconds, micro- and nanoseconds are far off."""
    modern = watermark > EARLIEST_MODERN_TIME
    return 0 <= time < LATEST_TIME and not (modern and time < watermark / UNITS_APART)
