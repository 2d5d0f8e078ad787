"""Clocks that tests move by hand."""

from __future__ import annotations


class Clock:
    """Stands still until it is moved; with `tick`, every look at it moves it by so many milliseconds."""

    def __init__(self, tick: float = 0.0) -> None:
        self.milliseconds = 0.0
        self.tick = tick

    def __call__(self) -> float:
        self.milliseconds += self.tick
        return self.milliseconds / 1000
