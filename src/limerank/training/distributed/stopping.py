"""Ctrl-C on several ranks: each only notes it, and all stop after the same step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

from limerank.training.steps.interrupts import Interrupts

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class NotedInterrupts(Interrupts):
    """While it is open, Ctrl-C and an end that was asked for are noted as `pending`, however often, and raise nothing.

    torchrun passes on what its terminal sent to all, so that a rank sees it twice.
    """

    def __init__(self) -> None:
        super().__init__()
        self._before: dict[int, Callable[[int, FrameType | None], Any] | int | None] = {}

    @property
    def pending(self) -> bool:
        """Whether this rank was asked to stop."""
        return self._pending

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._pressed) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """A piece of work; nothing interrupts it anyway."""
        yield

    def _pressed(self, number: int, frame: FrameType | None) -> None:
        self._pending = True
