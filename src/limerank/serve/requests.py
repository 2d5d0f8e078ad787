"""A request as it comes in: a user, a context, what is stored and events of today, to what the user stage reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
from limerank.serve.histories.merging import REFUSALS, Merged, Merger
from limerank.serve.histories.past import NO_PAST, Event, Happened, LeftOut, Past
from limerank.times import same_unit

__all__ = ["Asked", "Event", "RequestReader"]

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Asked:
    """A request, checked and encoded, but with nothing of its stored history touched yet.

    The user's events are numbered: first those at `stored` in the bundle's histories, then the new ones, among them
    the bundle's that happened after one that came late.
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
    as_of: int | None
    """The time of the newest event, where it is known."""
    known_user: bool
    """Whether the bundle has a row for the user, or events are stored."""
    keep: bool = True
    """Whether a state may be kept; not of a history that came with the request, or that something is left out of."""
    left_out: int = 0
    """Stored events that the request wanted to be answered without."""
    token: bytes = b""
    """What servers on several machines call what was stored of the user then."""

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
        self.merger = Merger(bundle, self._columns)

    def read(
        self,
        user_id: str,
        context: dict[str, Any],
        events: Sequence[Event] = (),
        now: int | None = None,
        *,
        catalog: Catalog | None = None,
        past: Past = NO_PAST,
        history: Sequence[Event] | None = None,
    ) -> tuple[UserInputs, bool]:
        """What the user stage reads for one request, and whether the user is known.

        `events` follow the stored ones in the order given, whatever their times are. Features of items are those of
        the catalog, in stored events too; without a catalog, those that the bundle was exported with.
        """
        asked = self.ask(user_id, context, events, now, catalog=catalog, past=past, history=history)
        return self.inputs(asked), asked.known_user

    def ask(
        self,
        user_id: str,
        context: dict[str, Any],
        events: Sequence[Event] = (),
        now: int | None = None,
        *,
        catalog: Catalog | None = None,
        past: Past = NO_PAST,
        history: Sequence[Event] | None = None,
        left_out: LeftOut | None = None,
    ) -> Asked:
        """A request as the bundle's encoders see it; the cost does not depend on the bundle's history.

        `past` is what was stored of the user since the export. A `history` is read instead of both; without it some
        of what is stored may be left out.
        """
        bundle, user_id = self.bundle, checked_id(user_id, "user_id")
        catalog = self._as_exported if catalog is None else catalog  # not `or`: one without items is a catalog, too
        self._check_names(Role.CONTEXT, context)
        given = [*(history or ()), *events]
        for event in given:
            self._check_names(Role.EVENT, event.features)
        user_row = self._user_row(user_id, past)
        everything = self.merged(user_id, past, history, user_row)
        merged = everything if left_out is None else self.merger.without(everything, left_out)
        newest = past.events[-1].time if past.events and history is None else None
        asked_at = self._asked_at(now, given, newest)
        items, features, times = merged.items_in(catalog), merged.events, merged.times
        if given:
            rows = catalog.rows_of(checked_ids([event.item_id for event in given], "item_id"), deleted=True)
            encoded = encode_rows(bundle.encoders.event, [event.features for event in given])
            items, features = _followed(items, rows), _followed(features, encoded)
        if times is not None and given:
            known = [asked_at if event.time is None else event.time for event in given]
            times = _followed(times, np.array(known, dtype=np.int64))
        return Asked(
            catalog=catalog,
            user_id=user_id,
            user_row=user_row,
            stored=merged.stored,
            items=items,
            events=features,
            times=times,
            context=encode_rows(bundle.encoders.context, [context]),
            at=asked_at,
            as_of=self._as_of(merged.stored, times, newest if left_out is None else None, given),
            known_user=user_row != UNKNOWN_ROW or newest is not None,
            keep=history is None and left_out is None,
            left_out=everything.count - merged.count,
            token=past.token,
        )

    def merged(
        self, user_id: str, past: Past, history: Sequence[Event] | None = None, user_row: int | None = None
    ) -> Merged:
        """The user's history without what came with the request: the bundle's and what was stored since, in order.

        A caller may know the user's row already.
        """
        if history is not None:
            return self.merger.alone(slice(0, 0))
        return self.merger.merged(user_id, self._user_row(user_id, past) if user_row is None else user_row, past)

    def whole_history(self, user_id: str, past: Past) -> Merged:
        """All events of a user in order, to be looked at: nothing is held of it."""
        return self.merger.whole(self.merger.anew(self._user_row(user_id, past), past))

    def seen(
        self,
        user_id: str,
        events: Sequence[Event],
        *,
        catalog: Catalog,
        past: Past = NO_PAST,
        history: Sequence[Event] | None = None,
        left_out: LeftOut | None = None,
    ) -> Ints:
        """The distinct rows of the catalog's items that a user has events with: exported, stored or just now.

        Items of which all known events are left out count as not seen.
        """
        given = checked_ids([event.item_id for event in (*(history or ()), *events)], "item_id")
        if history is not None:
            return catalog.seen_rows(None, given)
        merged = self.merged(user_id, past)
        if left_out is not None:
            kept = self.merger.without(merged, left_out).items_in(catalog)
            unseen = np.setdiff1d(self.merger.whole(merged).items_in(catalog), kept)
            seen = self.seen(user_id, events, catalog=catalog, past=past)
            return np.setdiff1d(seen, np.setdiff1d(unseen, catalog.rows_of(given, deleted=True)))
        stored = merged.seen_in(catalog)
        if past.erased_at is None:
            return catalog.seen_rows(user_id, given, stored)
        # what was seen before the erasure is not told apart from what was seen after it, except in the history
        visible = self.merger.visible(self._user_row(user_id, past), past.erased_at)
        return catalog.seen_rows(None, given, np.concatenate([self._columns["item"][visible], stored]).astype(np.int64))

    def item_names(
        self,
        asked: Asked,
        past: Past,
        events: Sequence[Event],
        name_of: Callable[[int], str],
        *,
        history: Sequence[Event] | None = None,
        left_out: LeftOut | None = None,
    ) -> list[str]:
        """The items of the events that are read, oldest first: as the event said, or by the row of the bundle."""
        merged = self.merged(asked.user_id, past, history)
        if left_out is not None:
            merged = self.merger.without(merged, left_out)
        names = [name_of(row) for row in self._columns["item"][merged.stored].tolist()]
        for source, row in zip(merged.sources.tolist(), merged.items.tolist(), strict=True):
            names.append(name_of(row) if source < 0 else merged.encoded.given[source].item_id)
        names += [event.item_id for event in (*(history or ()), *events)]
        return names[self.first_kept(asked) :]

    def check_event(self, event: Happened, path: str = "event") -> None:
        """Raise unless this bundle can read an event; `path` says in the error which one it was."""
        checked_id(event.user_id, f"{path}.user_id")
        checked_id(event.item_id, f"{path}.item_id")
        self._check_names(Role.EVENT, event.features, f"{path}.features: ")
        for encoder in self.bundle.encoders.event:
            try:
                encoder.encode_value(event.features.get(encoder.name))
            except REFUSALS as refused:
                raise UsageError(f"{path}.features.{encoder.name}: {refused}") from None
        watermark = self.bundle.manifest.watermark
        if watermark is not None and not same_unit(event.time, watermark):
            raise UsageError(f"{path}.time: {_wrong_unit(event.time, watermark)}")

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

    def _user_row(self, user_id: str, past: Past) -> int:
        """The user's row of the bundle; an erased user has none until a bundle knows something newer."""
        return self.bundle.user_ids.row_of(user_id) if self.merger.knows(past.erased_at) else UNKNOWN_ROW

    def _as_of(self, stored: slice, times: Ints | None, newest: int | None, given: Sequence[Event]) -> int | None:
        known = [event.time for event in given if event.time is not None] if times is None else []
        if newest is not None:
            known.append(newest)
        if times is not None and len(times):
            known.append(int(times[-1]))
        elif times is not None and stored.stop > stored.start:
            known.append(int(self._columns["times"][stored.stop - 1]))
        return max(known, default=None)

    def _asked_at(self, now: int | None, events: Sequence[Event], newest: int | None) -> int | None:
        """The time of a request; None where the log had no times, so that no ranker was trained on them."""
        watermark = self.bundle.manifest.watermark
        if watermark is None:
            return None
        known = [event.time for event in events if event.time is not None]
        asked_at = max([watermark, newest or 0, *known]) if now is None else now
        for given in (*(() if now is None else (now,)), *known):
            if not same_unit(given, watermark):
                raise UsageError(f"time {_wrong_unit(given, watermark)}")
        return asked_at

    def _check_names(self, role: Role, values: dict[str, Any], path: str = "") -> None:
        known = self._names[role]
        for name in values:
            if name not in known:
                why = did_you_mean(name, known) if known else f": the log has no features of the role '{role.value}'"
                raise UsageError(f"{path}no {role.value} feature '{name}'{why}")


def _followed(first: Ints, then: Ints) -> Ints:
    return np.concatenate([first, then]) if len(first) else then


def _wrong_unit(time: int, watermark: int) -> str:
    return f"{time}: is not in milliseconds since 1970; the bundle's log ends at {watermark}"
