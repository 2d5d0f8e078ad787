"""What kept states ask of a bundle: E of some events, E^C of a request, and the whole user stage if need be."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from limerank.batch import Features, UserInputs
from limerank.models import Ranker, UserState
from limerank.models.incremental import Events, incremental_user
from limerank.serve.requests import Asked, RequestReader


class UserSource:
    """The user side of one bundle, by its `version`: states of another version are never used.

    `encode` is the user stage that computes a state from nothing. `stale_budget` lets LIME-XOR be approximate.
    """

    def __init__(
        self,
        version: str,
        ranker: Ranker,
        reader: RequestReader,
        encode: Callable[[UserInputs], UserState] | None = None,
        stale_budget: float | None = None,
    ) -> None:
        self.version = version
        self.ranker = ranker
        self.reader = reader
        self.grows = incremental_user(ranker, stale_budget)
        self._encode = encode or ranker.encode_user

    @property
    def slides(self) -> bool:
        """Whether a kept state can forget the oldest events: positions from the start shift with the window."""
        return self.grows is not None and self.grows.slides and self.ranker.options.encoding != "position"

    @property
    def reads_now(self) -> bool:
        """Whether the time of the request itself changes the state."""
        return self.ranker.options.encoding == "age"

    def events(self, asked: Asked, first: int, stop: int) -> Events:
        """E and times of the events from one number up to another; `first_kept` stands at position 0."""
        history = self.reader.history(asked, first, stop)
        before = first - self.reader.first_kept(asked)
        return Events(self.ranker.history_part(history, before), history.times if self.ranker.needs_times else None)

    def context(self, asked: Asked) -> Tensor:
        """E^C [1, c]."""
        users = self.reader.bundle.user_table.take(torch.tensor([asked.user_row]))
        context: Tensor = self.ranker.context_tower(users, Features(torch.from_numpy(asked.context)))
        return context

    def encode(self, asked: Asked) -> UserState:
        """The state from nothing."""
        return self._encode(self.reader.inputs(asked))
