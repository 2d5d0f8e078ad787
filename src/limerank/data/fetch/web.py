"""Ask servers on the web: http and https only, with patience for passing trouble and one line for lasting one."""

from __future__ import annotations

import http.client
import re
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from limerank.errors import DataError, UnavailableError, UsageError
from limerank.progress import Progress

MOST_TEXT = 4_000_000
PASSING_STATUS = {408, 429, 500, 502, 503, 504}
BROKEN = (OSError, http.client.HTTPException)  # what urllib and its sockets raise when the network fails


@dataclass(frozen=True)
class Patience:
    """How long to try: attempts in a row that bring nothing, the first pause (it doubles), seconds of silence."""

    attempts: int = 5
    pause: float = 1.0
    timeout: float = 60.0


class AskAgain(Exception):  # noqa: N818 (it is no error: it says that another attempt makes sense)
    """This attempt brought nothing more, but another one may."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class NothingAtThatRange(AskAgain):
    """The server has no byte where the rest should begin."""


def fetch_text(url: str, *, progress: Progress, patience: Patience | None = None) -> str:
    """A small published text, such as a checksum or a description."""
    patience = patience or Patience()
    check_scheme(url)
    for attempt in range(patience.attempts):
        try:
            with open_url(url, {}, patience) as response:
                data: bytes = response.read(MOST_TEXT + 1)
        except (AskAgain, *BROKEN) as broken:
            pause_or_give_up(url, broken, attempt, patience, progress, heard=False)
            continue
        if len(data) > MOST_TEXT:
            raise DataError(f"{url}: is longer than {MOST_TEXT:,} bytes, so it is not the text that was expected")
        return data.decode("utf-8", errors="replace")
    raise AssertionError("the last attempt returns or raises")


def published_md5(url: str, *, progress: Progress, patience: Patience | None = None) -> str:
    """The MD5 that is published beside a file, as `URL.md5`."""
    text = fetch_text(f"{url}.md5", progress=progress, patience=patience)
    found = re.search(r"\b[0-9a-fA-F]{32}\b", text)
    if found is None:
        raise DataError(f"{url}.md5: holds no MD5 checksum; look at it in a browser, the owner may have moved the file")
    return found.group().lower()


@contextmanager
def open_url(url: str, headers: dict[str, str], patience: Patience) -> Iterator[Any]:
    """A response with status 200 or 206; a passing trouble is `AskAgain`, a lasting one an error for people."""
    request = urllib.request.Request(  # noqa: S310 (the scheme was checked, redirects are checked below)
        url, headers={"User-Agent": "limerank", "Accept-Encoding": "identity", **headers}
    )
    try:
        response = _opener().open(request, timeout=patience.timeout)
    except urllib.error.HTTPError as refused:
        refused.close()
        if refused.code in PASSING_STATUS:
            raise AskAgain(f"the server answered {refused.code} {refused.reason}") from None
        if refused.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise NothingAtThatRange("the file at its owner is shorter now, so the download starts over") from None
        raise UnavailableError(
            f"{url}: the server answered {refused.code} {refused.reason}; see the owner's page, the file may have moved"
        ) from None
    with response:
        yield response


class _OnlyWeb(urllib.request.HTTPRedirectHandler):
    """Follows redirects within http and https, and never from https down to http."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """Another address for the same request, if it may be followed."""
        check_scheme(newurl)
        if urlsplit(req.full_url).scheme == "https" and urlsplit(newurl).scheme != "https":
            raise UnavailableError(f"{req.full_url}: redirects to {newurl}, which is not encrypted; refused")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener() -> urllib.request.OpenerDirector:
    """An opener without file:, ftp: and data: handlers; proxies come from the environment, as usual."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
        _OnlyWeb(),
    ):
        opener.add_handler(handler)
    return opener


def check_scheme(url: str) -> None:
    """Refuse everything that is not on the web."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{url}: only http and https addresses can be downloaded")


def pause_or_give_up(
    url: str, reason: Exception, fruitless: int, patience: Patience, progress: Progress, *, heard: bool
) -> None:
    """Wait before another attempt, or give up in one line."""
    inner = getattr(reason, "reason", reason)
    text = inner if isinstance(inner, str) else (getattr(inner, "strerror", None) or str(inner) or type(inner).__name__)
    host = urlsplit(url).hostname
    hopeless = isinstance(inner, ssl.SSLCertVerificationError) or (isinstance(inner, socket.gaierror) and not heard)
    if hopeless or fruitless + 1 >= patience.attempts:
        kept = "what arrived is kept, run the command again to go on" if heard else "is this machine online?"
        raise UnavailableError(f"{url}: cannot be fetched from {host} ({text}); {kept}") from None
    wait = patience.pause * 2**fruitless
    progress.say(f"{host}: {text}; trying again in {wait:g} s")
    time.sleep(wait)
