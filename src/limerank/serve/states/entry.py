"""What is kept of one user: the events that were read, and a reading for every context that needs one.

The events of a bundle never change, so of those that stand in front only the range is compared, and the new ones one
by one: if those asked for now begin with those asked for before, the rest is appended. Whatever else it is (an event
that arrived late, one that was corrected, one that is gone, a user who was erased), the history is read again.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from threading import Lock
from typing import Literal

from torch import Tensor

from limerank.models import UserState
from limerank.models.incremental import Reading, bytes_of
from limerank.serve.requests import Asked
from limerank.serve.states.shared import SharedStates, name_of
from limerank.serve.states.source import UserSource

How = Literal["cached", "appended", "computed", "approximate"]
"""Nothing was read, only new events were, or the whole history; or one of the first two, against stale links."""
Why = Literal["first", "context", "changed", "fewer", "window", "many", "refresh", "short", "ranker"]
WHY: dict[Why, str] = {
    "first": "nothing was kept of this user",
    "context": "nothing was kept for this context, which the ranker's links read the history with",
    "changed": "an event that was read before is another now, or one arrived late",
    "fewer": "events that were read before are gone",
    "window": "the history is full, and this ranker cannot forget the oldest event",
    "many": "more events are new than known",
    "refresh": "an approximation has used up its budget",
    "short": "the history is read as quickly as a kept state would be finished",
    "ranker": "every event, or the time of the request, changes everything that this ranker keeps",
}
MOST_CONTEXTS = 8
"""Readings per user; the one that was asked for longest ago goes first."""


@dataclass(frozen=True)
class Found:
    """A user state, and how it came about."""

    state: UserState
    how: How
    slid: bool = False
    why: Why | None = None
    shared: bool = False
    """Another server made it."""


@dataclass
class Kept:
    """A reading, the state that was last finished from it, and for what request."""

    reading: Reading | None
    state: UserState
    request: tuple[object, ...]
    context: Tensor | None
    """E^C of that request."""

    @property
    def bytes(self) -> int:
        """Memory of both."""
        context = 0 if self.context is None else self.context.numel() * self.context.element_size()
        return state_bytes(self.state) + (0 if self.reading is None else self.reading.bytes) + context


class Entry:
    """The kept states of one user; hold `lock` while calling."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.asked: Asked | None = None
        self.kept: OrderedDict[bytes, Kept] = OrderedDict()

    def encode(self, source: UserSource, asked: Asked, shared: SharedStates | None = None) -> Found:
        """The user state of a request. After an error nothing is kept, for it may be half changed."""
        try:
            return self._encode(source, asked, shared)
        except BaseException:
            self.asked = None
            self.kept.clear()
            raise

    def answers(self, source: UserSource, asked: Asked) -> bool:
        """Whether a request needs less than the whole history: a finished state, or one that only has to grow."""
        key, request = self._named(source, asked)
        kept = self.kept.get(key)
        if kept is None or self._why_not(asked, source.ranker.needs_times) is not None:
            return False
        if kept.request == request or kept.reading is None:
            return kept.request == request
        return source.is_long(asked) and self._why_anew(source, asked, kept.reading) is None

    def adopt(self, source: UserSource, asked: Asked, state: UserState) -> None:
        """Keep a state that another server finished for this request."""
        key, request = self._named(source, asked)
        if self._why_not(asked, source.ranker.needs_times) is not None:
            self.kept.clear()
        self.asked = replace(asked, catalog=None)
        self._keep(key, Kept(None, state, request, None))

    def _named(self, source: UserSource, asked: Asked) -> tuple[bytes, tuple[object, ...]]:
        """By what a reading is kept, and what a finished state is for."""
        context = asked.context.tobytes()
        user = source.grows if source.is_long(asked) else None
        key = context if user is None or user.by_context else b""
        return key, (context, asked.count, asked.at if source.reads_now else None)

    def _encode(self, source: UserSource, asked: Asked, shared: SharedStates | None) -> Found:
        user = source.grows if source.is_long(asked) else None
        key, request = self._named(source, asked)
        context = request[0]
        why = self._why_not(asked, source.ranker.needs_times)
        if why is not None:
            self.kept.clear()
        kept, self.asked = self.kept.get(key), replace(asked, catalog=None)  # nobody keeps catalogs of the past
        if kept is not None and kept.request == request:
            self.kept.move_to_end(key)
            return Found(kept.state, "cached")
        name = None if shared is None else name_of(source, asked)
        if shared is not None and name is not None and (kept is None or kept.reading is None):
            state = shared.find(asked.user_id, name)
            if state is not None:
                self._keep(key, Kept(None, state, request, None))
                return Found(state, "cached", shared=True)
        embedded = None
        if user is not None:
            known = kept is not None and kept.context is not None and kept.request[0] == context
            embedded = kept.context if kept is not None and known else source.context(asked)
        found, reading = self._read(source, asked, embedded, None if kept is None else kept.reading, why)
        self._keep(key, Kept(reading, found.state, request, embedded))
        if shared is not None and name is not None and found.how != "cached":
            shared.keep(asked.user_id, asked.token, name, found.state)
        return found

    def _keep(self, key: bytes, kept: Kept) -> None:
        self.kept[key] = kept
        self.kept.move_to_end(key)
        while len(self.kept) > MOST_CONTEXTS:
            self.kept.popitem(last=False)

    def _why_not(self, asked: Asked, needs_times: bool) -> Why | None:
        """Why what is kept cannot be appended to; None if it can."""
        before = self.asked
        if before is None:
            return "first"
        if (asked.stored, asked.user_row) != (before.stored, before.user_row):
            return "changed"
        known = len(before.items)
        if len(asked.items) < known:
            return "fewer"
        pairs = [(asked.items, before.items), (asked.events, before.events)]
        if needs_times and asked.times is not None and before.times is not None:
            pairs.append((asked.times, before.times))
        return None if all((now[:known] == then).all() for now, then in pairs) else "changed"

    def _read(
        self, source: UserSource, asked: Asked, context: Tensor | None, reading: Reading | None, why: Why | None
    ) -> tuple[Found, Reading | None]:
        user, first, stop = source.grows, source.reader.first_kept(asked), asked.count
        if user is None or context is None:
            reason: Why = "ranker" if user is None else "short"
            return Found(source.encode(asked), "computed", why=why or reason), None
        slid = appended = False
        if reading is None:
            why = why or "context"
        else:
            slid, appended = first > reading.first, stop > reading.stop
            why = self._why_anew(source, asked, reading)
            if why is None:
                if appended:
                    reading.append(source.events(asked, reading.stop, stop))
                if slid:
                    reading.drop(first, lambda start, end: source.events(asked, start, end))
                why = "refresh" if reading.stale else None
        if reading is None or why is not None:
            reading = user.start(source.events(asked, first, stop), context, first)
            return Found(user.finish(reading, context), "computed", why=why), reading
        return Found(user.finish(reading, context), "appended" if appended else "cached", slid), reading

    def _why_anew(self, source: UserSource, asked: Asked, reading: Reading) -> Why | None:
        """Why a reading of the same events cannot grow to those of a request; None if it can."""
        first, stop = source.reader.first_kept(asked), asked.count
        if stop - reading.stop > (stop - first) // 2:
            return "many"
        return "window" if first > reading.first and not source.slides else None

    @property
    def bytes(self) -> int:
        """Memory of all that is kept."""
        asked = self.asked
        arrays = () if asked is None else (asked.items, asked.events, asked.context, asked.times)
        return sum(kept.bytes for kept in self.kept.values()) + sum(0 if one is None else one.nbytes for one in arrays)


def state_bytes(state: UserState) -> int:
    """Memory of a finished state."""
    return bytes_of([*state.memory, state.head_part, *([] if state.history is None else [state.history.rows])])
