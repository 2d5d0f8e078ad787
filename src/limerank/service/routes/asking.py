"""From bodies to the engine's arguments: ids, times, and features checked by their names and kinds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from typing import Any, cast

from limerank.data.store.encoders import Encoder
from limerank.errors import BundleError, UsageError, did_you_mean
from limerank.schema import Role
from limerank.serve.bundles.bundle import Bundle
from limerank.serve.histories.past import LeftOut
from limerank.serve.hosting.leases import Lease
from limerank.serve.overlay.items import checked_value
from limerank.serve.requests import Event
from limerank.service.calls import Call, Service
from limerank.service.options import ServiceOptions
from limerank.service.problems import RefusalError, invalid, too_long
from limerank.times import same_unit
from limerank.wire.body import Values, milliseconds
from limerank.wire.problems import ProblemPart
from limerank.wire.rankings import ExplainRequest, HistoryEvent, RankRequest, RecommendRequest

LEAST_ANSWER = 1_000
"""Items that an answer may have however few candidates a service takes."""
LIVE_LOG_MS = 30 * 24 * 3_600_000
"""A log that ended longer ago than that is a recorded one: see `time_of_request`."""


@contextmanager
def leased(service: Service, call: Call, user_id: str | None = None, bundle: str | None = None) -> Iterator[Lease]:
    """The engine that answers a user, or that of a bundle; it stays open to the end of the request."""
    with ExitStack() as stack:
        try:
            lease = stack.enter_context(service.host.lease(user_id, bundle))
        except BundleError as unknown:
            raise RefusalError("unknown-bundle", str(unknown)) from None
        call.said |= {"bundle": lease.bundle_id, "arm": lease.arm, "user": user_id}
        yield lease


def text_of(given: str | int) -> str:
    """An id as the log has it."""
    return given if isinstance(given, str) else str(given)


def texts_of(given: Sequence[str | int]) -> list[str]:
    """Ids as the log has them; the list itself where they are texts already, as almost always."""
    return cast("list[str]", given) if set(map(type, given)) <= {str} else list(map(str, given))


def as_given(given: Sequence[str | int], texts: Sequence[str]) -> Callable[[list[str]], list[str | int]]:
    """Ids back in the form in which a caller wrote them."""
    if given is texts:
        return lambda found: cast("list[str | int]", found)
    numbers = {str(one): one for one in given if isinstance(one, int)}
    return lambda found: [numbers.get(one, one) for one in found]


def query_text(call: Call, name: str, most: int) -> str:
    """A text of the query, empty if it is not there."""
    text = call.query.get(name, "")
    if len(text) > most:
        raise invalid(name, f"{name}: has {len(text)} characters; at most {most} may be", "max_length")
    return text


def query_number(call: Call, name: str, otherwise: int, least: int, most: int) -> int:
    """A whole number of the query."""
    text = call.query.get(name, str(otherwise))
    if not (re.fullmatch("[0-9]{1,9}", text) and least <= int(text) <= most):
        raise invalid(name, f"{name}: {text[:20]!r} is no whole number from {least} to {most}")
    return int(text)


def reads_log_clock(bundle: Bundle, arrived_at: int) -> bool:
    """Whether a bundle's log ended so long ago that it is a recorded one, or has no times at all."""
    watermark = bundle.manifest.watermark
    return watermark is None or arrived_at - watermark > LIVE_LOG_MS


def time_of_request(bundle: Bundle, given: Any, arrived_at: int) -> int | None:
    """The time that a request is made at: as it says, else when it arrived.

    Except where the bundle's log ended long ago, as that of a demonstration does: all ages would be years, which no
    ranker was trained for. Then it is the engine's: the end of the log, or of what happened since.
    """
    if given is not None:
        return _checked_milliseconds(bundle, given, "now")
    return None if reads_log_clock(bundle, arrived_at) else arrived_at


def checked_time(bundle: Bundle, given: int, path: str) -> int:
    """A time in milliseconds, as far as that can be told from the end of the bundle's log."""
    watermark = bundle.manifest.watermark
    if not same_unit(given, 0 if watermark is None else watermark):
        raise invalid(path, f"{path}: {given} is not in milliseconds since 1970")
    return given


def _checked_milliseconds(bundle: Bundle, given: int | datetime | None, path: str) -> int | None:
    counted = milliseconds(given)
    return None if counted is None else checked_time(bundle, counted, path)


def request_arguments(
    bundle: Bundle, body: RankRequest | RecommendRequest | ExplainRequest, options: ServiceOptions, arrived_at: int
) -> dict[str, Any]:
    """What rank, recommend and explain have in common."""
    return {
        "context": checked_features(bundle, Role.CONTEXT, body.context, "context"),
        "events": _events(bundle, body.events, options, "events"),
        "now": time_of_request(bundle, body.now, arrived_at),
        "task": body.task,
        "history": None if body.history is None else _events(bundle, body.history, options, "history"),
        "left_out": _left_out(bundle, body),
    }


def _left_out(bundle: Bundle, body: RankRequest | RecommendRequest | ExplainRequest) -> LeftOut | None:
    """Stored events that a request wants to be answered without."""
    if not body.without and body.until is None:
        return None
    for name, given in (("without", bool(body.without)), ("until", body.until is not None)):
        if given and body.history is not None:
            raise invalid(name, f"{name}: is about stored events, but `history` stands for all of them; leave one out")
    unwanted = [
        (text_of(one.item_id), _checked_milliseconds(bundle, one.timestamp, f"without[{number}].timestamp"))
        for number, one in enumerate(body.without)
    ]
    if body.until is not None and bundle.manifest.watermark is None:
        raise invalid("until", "until: the log of this bundle has no times, so nothing is before or after another time")
    return LeftOut(unwanted, _checked_milliseconds(bundle, body.until, "until"))


def _events(bundle: Bundle, given: Sequence[HistoryEvent], options: ServiceOptions, path: str) -> list[Event]:
    if len(given) > options.history_events:
        raise too_long("too-many-events", path, len(given), options.history_events, "history_events")
    encoders = _by_name(bundle, Role.EVENT)
    return [
        Event(
            text_of(one.item_id),
            _checked(encoders, one.features, f"{path}[{number}].features", "event"),
            _checked_milliseconds(bundle, one.timestamp, f"{path}[{number}].timestamp"),
        )
        for number, one in enumerate(given)
    ]


def checked_features(bundle: Bundle, role: Role, given: Values, path: str) -> dict[str, Any]:
    """Features of a role, each known and of its kind."""
    return _checked(_by_name(bundle, role), given, path, role.value) if given else {}


def _by_name(bundle: Bundle, role: Role) -> dict[str, Encoder]:
    return {encoder.name: encoder for encoder in bundle.encoders.of(role)}


def _checked(encoders: Mapping[str, Encoder], given: Values, path: str, role: str) -> dict[str, Any]:
    checked = {}
    for name, value in given.items():
        encoder = encoders.get(name)
        if encoder is None:
            why = did_you_mean(name, encoders) if encoders else f": the log has no features of the role '{role}'"
            raise invalid(f"{path}.{name}", f"{path}.{name}: no {role} feature '{name}'{why}", "unknown")
        try:
            checked[name] = checked_value(encoder, value, f"{path}.{name}")
        except UsageError as unfit:
            raise invalid(f"{path}.{name}", str(unfit)) from None
    return checked


def check_candidates(count: int, options: ServiceOptions) -> None:
    """Refuse lists that are longer than this service takes."""
    if count > options.candidates:
        raise too_long("too-many-candidates", "item_ids", count, options.candidates, "candidates")


def check_answered(call: Call, more: int, options: ServiceOptions) -> None:
    """Refuse what would make an answer longer than the longest list of candidates: few bytes can ask for gigabytes."""
    most = max(options.candidates, LEAST_ANSWER)
    if call.answered + more > most:
        raise RefusalError(
            "too-many-candidates",
            f"limit: the answer would have {call.answered + more:,} items, and has at most {most:,} (candidates)",
            errors=[ProblemPart(path="limit", code="max_length", limit=most, message=f"at most {most:,} in an answer")],
        )


def unknown_items(unknown: Sequence[str | int]) -> RefusalError:
    """A request that wants to be refused if it names items that are not in the catalog."""
    named = ", ".join(map(repr, unknown[:10])) + (", ..." if len(unknown) > 10 else "")
    return RefusalError(
        "unknown-items",
        f"{len(unknown):,} of item_ids are not in the catalog: {named}",
        errors=invalid("item_ids", f"unknown: {named}", "unknown").errors,
    )
