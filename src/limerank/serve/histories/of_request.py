"""What one request knows of its user: stored events are read once, when they are first needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from limerank.batch import UserInputs
from limerank.serve.catalog import Catalog
from limerank.serve.checks import checked_id
from limerank.serve.histories.merging import Ints
from limerank.serve.histories.past import NO_PAST, Event, Histories, LeftOut, Past
from limerank.serve.requests import Asked, RequestReader
from limerank.serve.timeline import Timeline


class RequestHistory:
    """A user, what is stored of them, and the events that came with the request."""

    def __init__(
        self,
        histories: Histories | None,
        user_id: str,
        events: Sequence[Event] = (),
        history: Sequence[Event] | None = None,
        timeline: Timeline | None = None,
        left_out: LeftOut | None = None,
    ) -> None:
        self.user_id = checked_id(user_id, "user_id")
        self.events = events
        self.history = history
        self.left_out = left_out if history is None else None
        self._histories = histories
        self._timeline = timeline
        self._past: Past | None = None

    @property
    def past(self) -> Past:
        """What was stored of the user; the same throughout the request, whatever is added meanwhile."""
        if self._past is None:
            self._past = NO_PAST if self._histories is None else self._histories.of(self.user_id)
            if self._timeline is not None and self._histories is not None:
                self._timeline.lap("history")
        return self._past

    def ask(self, reader: RequestReader, context: dict[str, Any] | None, now: int | None, catalog: Catalog) -> Asked:
        """The request as a bundle sees it."""
        return reader.ask(
            self.user_id,
            context or {},
            self.events,
            now,
            catalog=catalog,
            past=self.past,
            history=self.history,
            left_out=self.left_out,
        )

    def inputs(
        self, reader: RequestReader, context: dict[str, Any] | None, now: int | None, catalog: Catalog
    ) -> tuple[UserInputs, bool]:
        """What the user stage reads, and whether the user is known."""
        asked = self.ask(reader, context, now, catalog)
        return reader.inputs(asked), asked.known_user

    def seen(self, reader: RequestReader, catalog: Catalog) -> Ints:
        """The rows of items that the user has events with."""
        return reader.seen(
            self.user_id,
            self.events,
            catalog=catalog,
            past=self.past,
            history=self.history,
            left_out=self.left_out,
        )

    def item_names(self, reader: RequestReader, asked: Asked, name_of: Callable[[int], str]) -> list[str]:
        """The items of the events that are read, oldest first."""
        return reader.item_names(asked, self.past, self.events, name_of, history=self.history, left_out=self.left_out)
