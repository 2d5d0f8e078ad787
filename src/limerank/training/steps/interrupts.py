"""Ctrl-C between two steps, never inside one: what is saved then is what an uninterrupted training would have."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Self


class Interrupts:
    """While it is open, Ctrl-C inside `held()` waits for its end; elsewhere it interrupts at once, as always.

    Pressed a second time it does not wait either. Nothing changes outside the main thread, which signals never reach,
    and where somebody else handles or ignores them.
    """

    def __init__(self) -> None:
        self._pending = False
        self._holding = False
        self._installed = False

    def __enter__(self) -> Self:
        usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if usual and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._pressed)
            self._installed = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """A piece of work that is done whole."""
        self._holding = True
        try:
            yield
        finally:
            self._holding = False
        if self._pending:
            raise KeyboardInterrupt

    def forget(self) -> None:
        """What was pressed has been seen to."""
        self._pending = False

    def _pressed(self, number: int, frame: FrameType | None) -> None:
        again, self._pending = self._pending, True
        if again or not self._holding:
            raise KeyboardInterrupt
