"""A request as it comes in: a user, a context and events of today, to what the user stage reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from limerank.batch import Features, History, UserInputs
from limerank.data.batches import distinct_items
from limerank.data.store.encoders import encode_rows
from limerank.data.store.manifest import UNKNOWN_ROW
from limerank.errors import UsageError, did_you_mean
from limerank.schema import Role
from limerank.serve.bundles.bundle import Bundle
from limerank.serve.catalog import Catalog
from limerank.serve.checks import checked_id, checked_ids
from limerank.times import EARLIEST_MODERN_TIME, LATEST_TIME, UNITS_APART


@dataclass(frozen=True)
class Event:
    """Something that happened after the bundle's histories end: an item and its event features, by name.

    `time` is in milliseconds since 1970; None is the time of the request.
    """

    item_id: str
    features: dict[str, Any] = field(default_factory=dict)
    time: int | None = None


Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Asked:
    """A request, checked and encoded, but with nothing of its stored history touched yet.

    The user's events are numbered: first those at `stored` in the bundle's histories, then the new ones.
    """

    catalog: Catalog | None
    """Whose items the events name; it does not change while the request is answered. None: the bundle's own."""
    user_id: str
    user_row: int
    stored: slice
    items: Ints
    """The item rows of the new events."""
    events: Ints
    """Their encoded features [new, features]."""
    times: Ints | None
    """When they happened; unknown for ready-made histories."""
    context: Ints
    """The encoded context [1, features]."""
    at: int | None
    """The time of the request; None where the log had no times, so that no ranker was trained on them."""

    @property
    def known_user(self) -> bool:
        """Whether the bundle has a row for the user."""
        return self.user_row != UNKNOWN_ROW

    @property
    def count(self) -> int:
        """How many events the user has, whether they are kept or not."""
        return int(self.stored.stop - self.stored.start) + len(self.items)

    def latest(self, most: int) -> Asked:
        """The same request of a user who has only the latest events, at most so many."""
        dropped = max(0, self.count - most)
        old = min(dropped, int(self.stored.stop - self.stored.start))
        new = slice(dropped - old, None)
        return replace(
            self,
            stored=slice(self.stored.start + old, self.stored.stop),
            items=self.items[new],
            events=self.events[new],
            times=None if self.times is None else self.times[new],
        )


class RequestReader:
    """Builds the inputs of the user stage from one bundle's histories, tables and encoders.

    `by_row`, for a prepared user stage, a history's items are the bundle's whole table and its events name rows of it;
    otherwise the items of a history are held once each, as rankers read them.
    """

    def __init__(self, bundle: Bundle, *, by_row: bool = False) -> None:
        self.bundle = bundle
        self.by_row = by_row
        self._as_exported = Catalog(bundle)
        self._names = {role: [encoder.name for encoder in bundle.encoders.of(role)] for role in Role}
        self._columns = {name: column.numpy() for name, column in bundle.histories.items()}

    def read(
        self,
        user_id: str,
        context: dict[str, Any],
        events: Sequence[Event] = (),
        now: int | None = None,
        *,
        catalog: Catalog | None = None,
    ) -> tuple[UserInputs, bool]:
        """What the user stage reads for one request, and whether the user is known.

        `events` follow the stored ones in the order given, whatever their times are. Features of items are those of
        the catalog, in stored events too; without a catalog, those that the bundle was exported with.
        """
        asked = self.ask(user_id, context, events, now, catalog=catalog)
        return self.inputs(asked), asked.known_user

    def ask(
        self,
        user_id: str,
        context: dict[str, Any],
        events: Sequence[Event] = (),
        now: int | None = None,
        *,
        catalog: Catalog | None = None,
    ) -> Asked:
        """A request as the bundle's encoders see it; the cost does not depend on the stored history."""
        bundle, user_id = self.bundle, checked_id(user_id, "user_id")
        catalog = self._as_exported if catalog is None else catalog  # not `or`: one without items is a catalog, too
        self._check_names(Role.CONTEXT, context)
        for event in events:
            self._check_names(Role.EVENT, event.features)
        asked_at = self._asked_at(now, events)
        user_row = bundle.user_ids.row_of(user_id)
        begin, end = self._columns["offsets"][user_row : user_row + 2].tolist()
        times = None
        if "times" in self._columns and asked_at is not None:
            times = np.array([asked_at if event.time is None else event.time for event in events], dtype=np.int64)
        return Asked(
            catalog=catalog,
            user_id=user_id,
            user_row=user_row,
            stored=slice(begin, end),
            items=catalog.rows_of(checked_ids([event.item_id for event in events], "item_id"), deleted=True),
            events=encode_rows(bundle.encoders.event, [event.features for event in events]),
            times=times,
            context=encode_rows(bundle.encoders.context, [context]),
            at=asked_at,
        )

    def first_kept(self, asked: Asked) -> int:
        """The number of the oldest event that is read: the last `max_history` are."""
        return max(0, asked.count - self.bundle.manifest.max_history)

    def inputs(self, asked: Asked) -> UserInputs:
        """What the user stage reads."""
        return UserInputs(
            users=self.bundle.user_table.at(asked.user_row),
            context=Features(torch.from_numpy(asked.context)),
            history=self.history(asked, self.first_kept(asked), asked.count),
            times=None if asked.at is None else torch.from_numpy(np.array([asked.at])),
        )

    def history(self, asked: Asked, first: int, stop: int) -> History:
        """The events from one number up to another; nothing else is touched."""
        rows, events, times = self.columns(asked, first, stop)
        table, rows = self.items_of(asked, rows)
        by_row = self.by_row and table is self.bundle.item_table
        items, item_of_event = (table, torch.from_numpy(rows)) if by_row else distinct_items(table, rows)
        return History(
            items,
            item_of_event,
            Features(torch.from_numpy(events)),
            offsets=torch.from_numpy(np.array([0, len(rows)])),
            times=None if times is None else torch.from_numpy(times),
        )

    def items_of(self, asked: Asked, rows: Ints) -> tuple[Features, Ints]:
        """A table of item features, and where in it the items of a history stand: the bundle's, unless they changed."""
        return self._catalog_of(asked).history_features(rows)

    def version(self, asked: Asked) -> str | None:
        """What a kept state of this history depends on besides its events; None: it reads items that were replaced."""
        catalog = self._catalog_of(asked)
        if not catalog.overlay.replaces:  # then nothing that is stored can have changed
            return catalog.reading_version(asked.items)
        return catalog.reading_version(self.columns(asked, self.first_kept(asked), asked.count)[0])

    def _catalog_of(self, asked: Asked) -> Catalog:
        return self._as_exported if asked.catalog is None else asked.catalog

    def columns(self, asked: Asked, first: int, stop: int) -> tuple[Ints, Ints, Ints | None]:
        """Item rows, encoded features and times of the events from one number up to another."""
        begin, old = asked.stored.start, asked.stored.stop - asked.stored.start

        def part(name: str, new: Ints) -> Ints:
            if first >= old:
                return new[first - old : stop - old]
            stored = self._columns[name][begin + first : begin + min(stop, old)].astype(np.int64)
            return stored if stop <= old else np.concatenate([stored, new[: stop - old]])

        times = None if asked.times is None else part("times", asked.times)
        return part("item", asked.items), part("events", asked.events), times

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


def _same_unit(time: int, watermark: int) -> bool:
    """Whether a time may be in milliseconds like the watermark: seconds, micro- and nanoseconds are far off."""
    modern = watermark > EARLIEST_MODERN_TIME
    return 0 <= time < LATEST_TIME and not (modern and time < watermark / UNITS_APART)
