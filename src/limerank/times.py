"""Times: milliseconds since 1970, everywhere inside. What makes a number a sensible one, and how people read it."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta

LATEST_TIME = 253_402_300_800_000  # the year 10000, in milliseconds
EARLIEST_MODERN_TIME = 300_000_000_000  # 1979
LATEST_MODERN_TIME = 4_200_000_000_000  # 2103
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NO_TIME = "'{}' is not a time; write 2026-01-31T12:00:00Z, or milliseconds since 1970"
UNITS_APART = 100  # times of two units differ by a factor of a thousand


def same_unit(time: int, watermark: int) -> bool:
    """Whether a time may be in milliseconds like the end of a log: seconds, micro- and nanoseconds are far off."""
    modern = watermark > EARLIEST_MODERN_TIME
    return 0 <= time < LATEST_TIME and not (modern and time < watermark / UNITS_APART)


def time_text(milliseconds: int) -> str:
    """A time as people read it, in UTC."""
    return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M:%S}"


def iso_time(milliseconds: int) -> str:
    """A time as files and programs read it: ISO 8601, in UTC."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")


def day_text(milliseconds: int) -> str:
    """The day of a time, in UTC."""
    return time_text(milliseconds)[:10]


def milliseconds_of(given: str | date) -> int:
    """Milliseconds since 1970 of a text that says them or is ISO 8601, of a date, or of a date and time.

    What names no zone is in UTC, as in logs; what is no time is a ValueError.
    """
    if isinstance(given, str):
        if given.isascii() and given.isdigit():
            return int(given)
        given = datetime.fromisoformat(given)
    if not isinstance(given, datetime):
        given = datetime.combine(given, time())
    aware = given if given.tzinfo is not None else given.replace(tzinfo=UTC)
    return (aware - EPOCH) // timedelta(milliseconds=1)


def age_text(seconds: float) -> str:
    """A time that has passed, in the largest unit of which it has two or more."""
    units = [("days", 86_400), ("hours", 3_600), ("minutes", 60), ("seconds", 1)]
    name, length = next((unit for unit in units if seconds >= 2 * unit[1]), units[-1])
    return f"{seconds / length:,.0f} {name}"
