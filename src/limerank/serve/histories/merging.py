"""A bundle's history of a user and the events that were stored since, as one history in order of time.

Events behind the bundle's are appended. One that came late goes to where its time is, unless the bundle holds an event
with the same item at the same time: then it is that one, from a log that has it by now. What a full history of the
bundle is too short for stays outside. A log without times has only one order: the bundle's events, then the others.
"""

from __future__ import annotations

import operator
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from limerank.data.store.encoders import Encoder
from limerank.data.store.manifest import UNKNOWN_ROW
from limerank.errors import UsageError
from limerank.schema import UNKNOWN_INDEX, Kind
from limerank.serve.bundles.bundle import Bundle
from limerank.serve.catalog import Catalog
from limerank.serve.histories.past import Event, LeftOut, Past

Ints = NDArray[np.int64]
NONE = np.zeros(0, dtype=np.int64)
OF_BUNDLE = -1
MOST_HELD = 500_000
"""Events of all users that are held encoded."""
USER_WEIGHT = 16
"""What a user takes besides events, in events."""
REFUSALS = (UsageError, TypeError, ValueError, OverflowError)


@dataclass(frozen=True)
class Encoded:
    """Stored events as a bundle reads them."""

    given: Sequence[Event]
    items: Ints
    """Rows of the bundle; 0 also for items that were upserted since."""
    events: Ints
    times: Ints


@dataclass(frozen=True)
class Merged:
    """One history: the bundle's events at `stored`, then the others in order."""

    stored: slice
    encoded: Encoded
    sources: Ints
    """Which of the stored events each one is; OF_BUNDLE: one of the bundle's, behind an event that came late."""
    items: Ints
    events: Ints
    times: Ints | None

    @property
    def count(self) -> int:
        """How many events it has."""
        return int(self.stored.stop - self.stored.start) + len(self.items)

    def items_in(self, catalog: Catalog) -> Ints:
        """The item rows of the others, with those of items that were upserted since."""
        return self._upserted(catalog, self.items, self.sources)

    def seen_in(self, catalog: Catalog) -> Ints:
        """The item rows of all stored events, also of those that no history is long enough for."""
        return self._upserted(catalog, self.encoded.items, np.arange(len(self.encoded.items)))

    def _upserted(self, catalog: Catalog, rows: Ints, sources: Ints) -> Ints:
        if not catalog.overlay.new_items:
            return rows
        unknown = np.flatnonzero((rows == UNKNOWN_ROW) & (sources != OF_BUNDLE))
        if len(unknown):
            rows, given = rows.copy(), self.encoded.given
            rows[unknown] = catalog.rows_of([given[one].item_id for one in sources[unknown].tolist()], deleted=True)
        return rows


class Merger:
    """Histories of one bundle's users with what was stored since, by user, for all threads of an engine."""

    def __init__(self, bundle: Bundle, columns: Mapping[str, Ints], most_held: int = MOST_HELD) -> None:
        self.bundle = bundle
        self.columns = columns
        self.most_held = most_held
        self.has_times = "times" in columns and bundle.manifest.watermark is not None
        self._created = int(datetime.fromisoformat(bundle.manifest.created_at).timestamp() * 1000)
        self._nothing = Encoded((), NONE, np.zeros((0, len(bundle.encoders.event)), dtype=np.int64), NONE)
        self._held: OrderedDict[str, tuple[Past, Merged]] = OrderedDict()
        self._events = 0
        self._lock = Lock()

    def knows(self, erased_at: int | None) -> bool:
        """Whether the bundle may speak of a user at all: it does not if it knows nothing newer than their erasure."""
        watermark = self.bundle.manifest.watermark
        return erased_at is None or (self._created > erased_at and (watermark is None or watermark > erased_at))

    def visible(self, user_row: int, erased_at: int | None) -> slice:
        """The bundle's events of a user, without those up to an erasure."""
        begin, end = self.columns["offsets"][user_row : user_row + 2].tolist()
        if erased_at is None:
            return slice(begin, end)
        if not self.knows(erased_at):
            return slice(end, end)
        hidden = np.searchsorted(self.columns["times"][begin:end], erased_at, "right") if self.has_times else 0
        return slice(begin + int(hidden), end)

    def merged(self, user_id: str, user_row: int, past: Past) -> Merged:
        """A user's history; computed when the past changed, and then only what is new is encoded."""
        if not past.events:
            if user_id in self._held:
                self.forget(user_id)
            return self.alone(self.visible(user_row, past.erased_at))
        with self._lock:
            held = self._held.get(user_id)
            if held is not None:
                self._held.move_to_end(user_id)
                before = held[0]
                if (before.version, before.erased_at) == (past.version, past.erased_at) and len(before.events) == len(
                    past.events
                ):
                    return held[1]
        found = self._merge(user_row, past, self._encode(past.events, None if held is None else held[1].encoded))
        self._hold(user_id, past, found)
        return found

    def anew(self, user_row: int, past: Past) -> Merged:
        """The same for who looks once: nothing is held of it."""
        return self._merge(user_row, past, self._encode_all(past.events))

    def alone(self, stored: slice) -> Merged:
        """The history of a user of whom nothing was stored since."""
        nothing = self._nothing
        return Merged(stored, nothing, NONE, NONE, nothing.events, NONE if self.has_times else None)

    def whole(self, merged: Merged) -> Merged:
        """The same history with none of it left in the bundle's columns."""
        stored, count = merged.stored, merged.stored.stop - merged.stored.start

        def part(name: str, others: Ints) -> Ints:
            return np.concatenate([self.columns[name][stored], others]).astype(np.int64)

        return Merged(
            slice(0, 0),
            merged.encoded,
            np.concatenate([np.full(count, OF_BUNDLE), merged.sources]),
            part("item", merged.items),
            part("events", merged.events),
            None if merged.times is None else part("times", merged.times),
        )

    def without(self, merged: Merged, left_out: LeftOut) -> Merged:
        """A history without some of its events, as if they had not happened."""
        whole = self.whole(merged)
        given, own = whole.encoded.given, whole.sources != OF_BUNDLE
        times = whole.times
        if left_out.until is not None and times is None:
            raise UsageError("until: the log of this bundle has no times, so nothing is before or after another time")
        kept = np.ones(len(whole.items), dtype=bool)
        if left_out.until is not None and times is not None:
            kept = times < left_out.until
        if times is None:  # of a log without times those of stored events are known all the same
            times = np.full(len(whole.items), -1)
            times[own] = whole.encoded.times[whole.sources[own]]
        names = np.full(len(whole.items), None, dtype=object)
        names[own] = [given[source].item_id for source in whole.sources[own].tolist()]
        rows = self.bundle.item_ids.rows_of([item for item, _ in left_out.events]).tolist()
        for (item, time), row in zip(left_out.events, rows, strict=True):
            same = names == item
            if row != UNKNOWN_ROW:
                same |= ~own & (whole.items == row)
            kept &= ~(same if time is None else same & (times == time))
        return Merged(
            whole.stored,
            whole.encoded,
            whole.sources[kept],
            whole.items[kept],
            whole.events[kept],
            None if whole.times is None else whole.times[kept],
        )

    def user_ids(self) -> set[str]:
        """Users of whom something is held."""
        with self._lock:
            return set(self._held)

    def forget(self, user_id: str) -> None:
        """Forget a user."""
        with self._lock:
            self._drop(user_id)

    def _hold(self, user_id: str, past: Past, found: Merged) -> None:
        with self._lock:
            self._drop(user_id)
            self._held[user_id] = (past, found)
            self._events += _weight(past, found)
            while self._events > self.most_held:
                self._drop(next(iter(self._held)))

    def _drop(self, user_id: str) -> None:
        held = self._held.pop(user_id, None)
        if held is not None:
            self._events -= _weight(*held)

    def _encode(self, events: Sequence[Event], before: Encoded | None) -> Encoded:
        """Encode events, without those that were encoded before."""
        if before is None:
            return self._encode_all(events)
        known = len(before.given)
        if known <= len(events) and all(map(operator.is_, before.given, events)):
            new, positions = self._encode_all(events[known:]), np.arange(len(events))
        else:
            number = {id(event): position for position, event in enumerate(before.given)}
            found = np.array([number.get(id(event), OF_BUNDLE) for event in events], dtype=np.int64)
            missing = np.flatnonzero(found == OF_BUNDLE)
            new, positions = self._encode_all([events[one] for one in missing.tolist()]), found
            positions[missing] = known + np.arange(len(missing))
        return Encoded(
            events,
            np.concatenate([before.items, new.items])[positions],
            np.concatenate([before.events, new.events])[positions],
            np.concatenate([before.times, new.times])[positions],
        )

    def _encode_all(self, events: Sequence[Event]) -> Encoded:
        columns = [encode_stored(encoder, events) for encoder in self.bundle.encoders.event]
        features = np.stack(columns, 1) if columns else np.zeros((len(events), 0), dtype=np.int64)
        items = self.bundle.item_ids.rows_of([event.item_id for event in events]).astype(np.int64)
        return Encoded(events, items, features, np.array([event.time or 0 for event in events], dtype=np.int64))

    def _merge(self, user_row: int, past: Past, encoded: Encoded) -> Merged:
        stored, count = self.visible(user_row, past.erased_at), len(encoded.items)
        if not self.has_times:
            return Merged(stored, encoded, np.arange(count), encoded.items, encoded.events, None)
        times = self.columns["times"][stored]
        kept = self._not_in_bundle(stored, times, encoded)
        first = len(times) if not len(kept) else int(np.searchsorted(times, encoded.times[kept[0]], "right"))
        if first == len(times):
            items, events, happened = (one[kept] for one in (encoded.items, encoded.events, encoded.times))
            return Merged(stored, encoded, kept, items, events, happened)
        behind = slice(stored.start + first, stored.stop)
        together = np.concatenate([self.columns["times"][behind], encoded.times[kept]]).astype(np.int64)
        order = together.argsort(kind="stable")  # of equal times the bundle's come first
        sources = np.concatenate([np.full(behind.stop - behind.start, OF_BUNDLE), kept])[order]
        items = np.concatenate([self.columns["item"][behind], encoded.items[kept]]).astype(np.int64)[order]
        events = np.concatenate([self.columns["events"][behind], encoded.events[kept]]).astype(np.int64)[order]
        return Merged(slice(stored.start, behind.start), encoded, sources, items, events, together[order])

    def _not_in_bundle(self, stored: slice, times: Ints, encoded: Encoded) -> Ints:
        """Stored events that are not the bundle's own, and not too old for what it holds of the user."""
        if not len(times):
            return np.arange(len(encoded.times))
        late = int(np.searchsorted(encoded.times, times[-1], "right"))
        kept = np.ones(len(encoded.times), dtype=bool)
        if len(times) >= self.bundle.manifest.max_history:
            kept[: np.searchsorted(encoded.times, times[0], "right")] = False
        if late:
            kept[:late] &= ~events_held(times, self.columns["item"][stored], encoded.times[:late], encoded.items[:late])
        return np.flatnonzero(kept)


def events_held(times: Ints, items: Ints, their_times: Ints, their_items: Ints) -> NDArray[np.bool_]:
    """Which events (the second) are among others, each at most as often as it is there; both in order of time."""
    first, last = (np.searchsorted(times, their_times, side) for side in ("left", "right"))
    repeated = np.diff(their_times) == 0
    single = last - first == 1  # a bundle often has all that is stored but the newest: nearly all are
    single[1:] &= ~repeated
    single[:-1] &= ~repeated
    held: NDArray[np.bool_] = single & (items[np.minimum(first, len(items) - 1)] == their_items)
    left: dict[int, Counter[int]] = {}
    for position in np.flatnonzero(~single & (last > first)).tolist():
        begin, item = int(first[position]), int(their_items[position])
        others = left.get(begin) or left.setdefault(begin, Counter(items[begin : last[position]].tolist()))
        if others[item] > 0:
            others[item] -= 1
            held[position] = True
    return held


def _weight(past: Past, found: Merged) -> int:
    """With the bundle's events behind one that came late, which are held, too."""
    return len(past.events) + len(found.items) + USER_WEIGHT


def encode_stored(encoder: Encoder, events: Sequence[Event]) -> Ints:
    """The indices of one feature; what this encoder refuses is unknown, for it was stored for another bundle."""
    values = [event.features.get(encoder.name) for event in events]
    if encoder.kind is Kind.CONTINUOUS:
        try:
            numbers = np.array([np.nan if value is None else float(value) for value in values], dtype=np.float64)
            return encoder.bucketize(numbers).astype(np.int64)
        except REFUSALS:
            pass
    return np.array([_index(encoder, value) for value in values], dtype=np.int64)


def _index(encoder: Encoder, value: object) -> int:
    try:
        return encoder.encode_value(value)
    except REFUSALS:
        return UNKNOWN_INDEX
