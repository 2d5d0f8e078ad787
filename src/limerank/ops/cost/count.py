"""What a count is: FLOP and bytes, alone or per event and per user."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from limerank.errors import ArgumentError, did_you_mean


@dataclass(frozen=True)
class Cost:
    """FLOP of matrix products and the least bytes moved; counts add up and multiply."""

    flops: int
    bytes: int

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flops + other.flops, self.bytes + other.bytes)

    def times(self, count: int) -> Cost:
        """The same work `count` times."""
        check_counts(count=count)
        return Cost(self.flops * count, self.bytes * count)


@dataclass(frozen=True)
class Streamed:
    """Work of a path that reads each event once: linear in the history, plus a part for each user's links."""

    per_event: Cost
    per_user: Cost

    def __add__(self, other: Streamed) -> Streamed:
        return Streamed(self.per_event + other.per_event, self.per_user + other.per_user)

    def times(self, count: int) -> Streamed:
        """The same work `count` times, such as one layer of a stack."""
        return Streamed(self.per_event.times(count), self.per_user.times(count))

    def total(self, *, history: int, users: int = 1) -> Cost:
        """All work for `history` events in the whole batch and this many users."""
        return self.per_event.times(history) + self.per_user.times(users)


def check_counts(at_least: int = 0, **counts: int) -> None:
    """Refuse a size that is no whole number or too small to make sense."""
    for name, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool):
            raise ArgumentError(f"{name} must be a whole number, not {count!r}")
        if count < at_least:
            raise ArgumentError(f"{name} must be at least {at_least}, but is {count}")


def check_word(name: str, word: str, known: Collection[str]) -> None:
    """Refuse a word that names no path."""
    if word not in known:
        raise ArgumentError(f"{name} '{word}' is unknown{did_you_mean(word, known)}")
