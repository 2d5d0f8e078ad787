"""What the commands that answer a request share: who asks, in what context, after which events, at what time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from limerank.cli.common import parse_pairs
from limerank.errors import UsageError
from limerank.times import NO_TIME, milliseconds_of

if TYPE_CHECKING:
    from limerank.serve.requests import Event

UserOption = Annotated[str, typer.Option(help="User id; an unknown one ranks with an empty history.")]
ContextOption = Annotated[str, typer.Option(help="Context features, for example device=phone,hour=20.")]
EventOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Something the user did since, for example item=i7,clicked=1; time=... says when, default: --now. "
        "Repeatable, in order; not stored."
    ),
]
NowOption = Annotated[
    str | None,
    typer.Option(
        help="The time of the request: 2026-01-31T12:00:00Z or milliseconds since 1970; default: the latest time "
        "the bundle or an event knows."
    ),
]
TaskOption = Annotated[str | None, typer.Option(help="Task to order by; default: the first.")]
BundleOption = Annotated[str | None, typer.Option(help="Bundle id; default: the active one.")]
DeadlineOption = Annotated[
    float | None,
    typer.Option(
        "--deadline-ms", min=0, help="Milliseconds for the request; what does not fit is left out, and said so."
    ),
]


def parse_request(context: str, event: Sequence[str] | None, now: str | None, task: str | None) -> dict[str, Any]:
    """The arguments of a request, by name, from the options of a command."""
    return {
        "context": parse_pairs(context, "--context"),
        "events": [_event(text) for text in event or ()],
        "now": None if now is None else parse_time(now, f"--now {now}"),
        "task": task,
    }


def _event(text: str) -> Event:
    from limerank.serve.requests import Event

    pairs = parse_pairs(text, "--event")
    if "item" not in pairs:
        raise UsageError(f"--event {text}: needs item=ID")
    features: dict[str, Any] = dict(pairs)
    item, time = features.pop("item"), features.pop("time", None)
    return Event(item, features, None if time is None else parse_time(time, f"--event {text}"))


def parse_time(text: str, option: str) -> int:
    """Milliseconds since 1970, from just that or from an ISO 8601 time; UTC where it names no zone, as in logs."""
    try:
        return milliseconds_of(text)
    except ValueError:
        raise UsageError(f"{option}: {NO_TIME.format(text)}") from None
