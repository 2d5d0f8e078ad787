"""Times: milliseconds since 1970, everywhere inside. What makes a number a sensible one, and how people read it."""

from __future__ import annotations

from datetime import UTC, datetime

LATEST_TIME = 253_402_300_800_000  # the year 10000, in milliseconds
EARLIEST_MODERN_TIME = 300_000_000_000  # 1979
LATEST_MODERN_TIME = 4_200_000_000_000  # 2103
UNITS_APART = 100  # times of two units differ by a factor of a thousand


def time_text(milliseconds: int) -> str:
    """A time as people read it, in UTC."""
    return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M:%S}"


def iso_time(milliseconds: int) -> str:
    """A time as files and programs read it: ISO 8601, in UTC."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")


def day_text(milliseconds: int) -> str:
    """The day of a time, in UTC."""
    return time_text(milliseconds)[:10]
