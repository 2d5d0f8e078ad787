"""What can go wrong, by name, and how exceptions become answers (RFC 9457); docs/reference/http.md explains each."""

from __future__ import annotations

import errno
import logging
import re
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from limerank.errors import (
    BundleError,
    ConflictError,
    DataError,
    DeadlineError,
    StorageFullError,
    UnavailableError,
    UsageError,
)
from limerank.wire.problems import PROBLEM_JSON, Problem, ProblemPart

logger = logging.getLogger("limerank.service")
Headers = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Kind:
    """One kind of problem: its status, its title, and what to do about it."""

    status: int
    title: str
    meaning: str


KINDS = {
    "malformed-request": Kind(400, "Malformed request", "The path, a header or the body cannot be read at all."),
    "malformed-json": Kind(400, "Malformed JSON", "The body is not JSON, or not UTF-8; `detail` says at which byte."),
    "unauthenticated": Kind(401, "No valid key", "Send a key: `Authorization: Bearer KEY` or `X-API-Key: KEY`."),
    "forbidden": Kind(403, "Key without scope", "The key is valid, but may not do this; `detail` names the scope."),
    "cross-site": Kind(
        403, "Not from here", "Without keys only this machine is answered; make a key to call from others."
    ),
    "no-such-path": Kind(404, "No such path", "There is nothing at this path; /docs lists what there is."),
    "unknown-bundle": Kind(404, "Unknown bundle", "No bundle of this id is in the store, or it is not being served."),
    "no-report": Kind(
        404, "No report", "The bundle was exported from a run without a report; write it, then export again."
    ),
    "method-not-allowed": Kind(405, "Method not allowed", "The header `Allow` lists what the path takes."),
    "slow-request": Kind(408, "Request too slow", "The body did not arrive in time; send it faster, or in parts."),
    "conflict": Kind(409, "Conflict", "The state is not what the caller believed, or somebody else is changing it."),
    "body-too-large": Kind(413, "Body too large", "Send less at a time; /v1/info shows the limit."),
    "unsupported-media-type": Kind(
        415, "Unsupported media type", "Send `Content-Type: application/json`, not compressed."
    ),
    "invalid-value": Kind(422, "Invalid value", "`errors` lists each wrong field by its path in the body."),
    "too-many-candidates": Kind(422, "Too many candidates", "Send or ask for fewer, or let the service retrieve."),
    "too-many-events": Kind(422, "Too many events", "Send fewer events in a call."),
    "unknown-items": Kind(
        422, "Unknown items", "`missing` is `error`, and these items are not in the catalog: upsert them, or `prior`."
    ),
    "no-links": Kind(
        422, "No links", "The ranker of this bundle has no links to explain a ranking by; `detail` names those that do."
    ),
    "unfit-bundle": Kind(422, "Bundle refused", "A bundle is damaged or does not fit; `detail` names the file."),
    "too-many-requests": Kind(429, "Too many requests", "Too much is waiting; come back when `Retry-After` says."),
    "headers-too-large": Kind(431, "Headers too large", "Send fewer and shorter headers."),
    "internal": Kind(500, "Internal error", "A bug of the service: its log has the details under `request_id`."),
    "unavailable": Kind(503, "Unavailable", "The service starts, drains, or lacks something; try again later."),
    "deadline": Kind(504, "Deadline over", "The time was up before any work began; give more, or send fewer requests."),
    "storage-full": Kind(507, "Storage full", "Nothing more can be stored; ranking goes on. Make room on the disk."),
}


class RefusalError(Exception):
    """A request that is answered with a problem of some kind."""

    def __init__(self, kind: str, detail: str, *, errors: Sequence[ProblemPart] = (), headers: Headers = ()) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.errors = list(errors)
        self.headers = tuple(headers)

    @property
    def status(self) -> int:
        """The status of the answer."""
        return KINDS[self.kind].status

    def problem(self, instance: str = "", request_id: str = "") -> Problem:
        """The body of the answer."""
        return Problem(
            type=f"/problems/{self.kind}",
            title=KINDS[self.kind].title,
            status=self.status,
            detail=self.detail,
            instance=instance,
            request_id=request_id,
            errors=self.errors,
        )


class ClientGoneError(Exception):
    """The client closed the connection before its request was whole: nobody waits for an answer."""


def refusal_of(error: BaseException) -> RefusalError:
    """The refusal that an exception amounts to; of what nobody foresaw the caller is told nothing."""
    if isinstance(error, RefusalError):
        return error
    if (retry_after := getattr(error, "retry_after", None)) is not None:
        return RefusalError("too-many-requests", str(error), headers=[("Retry-After", str(max(1, round(retry_after))))])
    if isinstance(error, DeadlineError):
        return RefusalError("deadline", str(error))
    if _is_full(error):
        return RefusalError("storage-full", _sentence(error))
    for kind, classes in BY_CLASS.items():
        if isinstance(error, classes):
            return RefusalError(kind, str(error))
    return RefusalError("internal", "something went wrong in the service; its log says more under the request_id")


BY_CLASS: dict[str, tuple[type[Exception], ...]] = {
    "invalid-value": (UsageError, DataError),
    "conflict": (ConflictError,),
    "unfit-bundle": (BundleError,),
    "unavailable": (UnavailableError,),
}
FULL = {errno.ENOSPC, errno.EDQUOT}


def _is_full(error: BaseException | None) -> bool:
    """Whether a full disk is behind an error, whatever it was turned into."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in FULL:
            return True
        if isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
            return True
        if isinstance(error, StorageFullError):
            return True
        error = error.__cause__
    return False


def _sentence(error: BaseException) -> str:
    return str(error) or "the disk is full"


AT = re.compile(r" - at `(?:key in )?\$?\.?(.*?)`$")


def invalid_body(error: msgspec.ValidationError, part: str = "") -> RefusalError:
    """A body, or a part of one, of which a field is wrong: `Expected ... - at $.item_ids[3]` names it."""
    text = str(error)
    found = AT.search(text)
    path, message = (found[1], text[: found.start()]) if found else ("", text)
    field = re.search(r"(?:unknown|missing required) field `(.*?)`", message)
    path = ".".join(filter(None, (part, path, field[1] if field else "")))
    detail = f"{path}: {_lowered(message)}" if path else _lowered(message)
    return RefusalError("invalid-value", detail, errors=[ProblemPart(path=path, code="invalid", message=message)])


def too_long(kind: str, path: str, found: int, limit: int, option: str) -> RefusalError:
    """A list in a body that is longer than the service takes."""
    return RefusalError(
        kind,
        f"{path} has {found:,} entries, the limit is {limit:,} ({option})",
        errors=[ProblemPart(path=path, code="max_length", limit=limit, message=f"at most {limit:,} entries")],
    )


def invalid(path: str, detail: str, code: str = "invalid") -> RefusalError:
    """One value that cannot be."""
    return RefusalError("invalid-value", detail, errors=[ProblemPart(path=path, code=code, message=detail)])


def encoded(refusal: RefusalError, instance: str, request_id: str) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """The body and the headers of the answer to a refused request."""
    headers = [(b"content-type", PROBLEM_JSON.encode())]
    headers += [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in refusal.headers]
    return msgspec.json.encode(refusal.problem(instance, request_id)), headers


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]
