"""Connections of clients that may be slow, wrong or malicious: uvicorn's HTTP/1.1 with limits of time and number.

What a client may take: `header_seconds` for the head of a request, `body_seconds` and a second for every 64 KiB for its
body, `idle_seconds` until the next one, and `body_seconds` without reading anything of an answer.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any, Literal

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol
from uvicorn.server import ServerState

from limerank.service.problems import RefusalError
from limerank.service.running.life import SPARE_CONNECTIONS, Life
from limerank.service.security.refusals import CLOSE, SECURITY_HEADERS, whole_answer

Phase = Literal["", "head", "body"]
LEAST_BYTES_PER_SECOND = 64 * 1024
LINGER_SECONDS = 2.0
"""How long what a refused client goes on sending is read and thrown away: closing at once would destroy the answer."""
SURPLUS_SECONDS = DRAINED_SECONDS = 1.0
"""What is left for the head of a request when there are too many connections, or the process is about to end."""
CANNOT_ANSWER = (h11.LocalProtocolError, RuntimeError)


class LingeringTransport:
    """A transport that, when closed while the client still sends, first lets the client read the answer."""

    def __init__(self, transport: asyncio.Transport, protocol: GuardedProtocol) -> None:
        self._transport = transport
        self._protocol = protocol
        self._closing = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        """Whether nothing is written any more."""
        return self._closing or self._transport.is_closing()

    def write(self, data: bytes) -> None:
        """Send, unless it is closed: who is dropped may have been about to be answered."""
        if not self._closing:
            self._transport.write(data)

    def close(self) -> None:
        """Close, at once if the request was read to its end."""
        if self.is_closing():
            return
        self._closing = True
        if not self._protocol.linger():
            self._transport.close()
            return
        try:
            self._transport.write_eof()
        except OSError:  # the client is gone already
            self._transport.abort()
            return
        self._transport.resume_reading()
        asyncio.get_running_loop().call_later(LINGER_SECONDS, self._transport.abort)


class GuardedProtocol(H11Protocol):
    """One connection."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        life: Life,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.life = life
        self.late = life.draining
        """It began when the process was already about to end."""
        self._phase: Phase = ""
        self._timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._began = 0.0
        self._received = 0
        self._used = False
        self._discarding = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin; with one connection too many, only to say so."""
        super().connection_made(transport)
        self.transport = LingeringTransport(transport, self)  # type: ignore[assignment]
        surplus = len(self.connections) > self.life.connections
        if len(self.connections) > self.life.connections + SPARE_CONNECTIONS:
            self.life.refused("cut")
            transport.abort()
            return
        self.app_state = {**self.app_state, "late": self.late, "surplus": surplus}
        self._await("head", SURPLUS_SECONDS if surplus else self.life.options.header_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._await("")
        self._unset_keepalive_if_required()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what came in."""
        if self._discarding:
            return
        self._used = True
        self._received += len(data)
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Go on with the next request."""
        super().on_response_complete()
        self._watch()

    def send_400_response(self, msg: str) -> None:
        """What uvicorn calls while it handles what h11 cannot read."""
        error = sys.exc_info()[1]
        self.life.refused("malformed")
        if getattr(error, "error_status_hint", 400) == 431:
            self._refuse(RefusalError("headers-too-large", "the head of the request is too long"))
        else:
            self._refuse(RefusalError("malformed-request", "this is not HTTP/1.1"))

    def shutdown(self) -> None:
        """Close politely: an idle connection now, one with a request under way after its answer."""
        if self.cycle is None and not self._discarding:  # its first request may be on the way
            self._await("head", DRAINED_SECONDS)
            return
        try:
            super().shutdown()
        except CANNOT_ANSWER:
            self.transport.close()

    def pause_writing(self) -> None:
        """The client does not read; it may not go on like that for ever."""
        super().pause_writing()
        seconds = self.life.options.body_seconds
        self._write_timer = self._write_timer or self.loop.call_later(seconds, self._too_slow_to_read)

    def resume_writing(self) -> None:
        """The client reads again."""
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        if self.flow is not None:
            super().resume_writing()

    def linger(self) -> bool:
        """Whether the client is still sending; what comes is thrown away from now on."""
        sending = self.conn.their_state in (h11.SEND_BODY, h11.ERROR)
        self._discarding = True
        self._await("")
        self._unset_keepalive_if_required()
        return sending

    def _unsupported_upgrade_warning(self) -> None:
        """Whoever asks for another protocol gets this one; that is no news."""

    def _watch(self) -> None:
        """Set the clock for what has to come next."""
        state = self.conn.their_state
        if self.transport.is_closing():
            self._await("")
        elif state is h11.SEND_BODY:
            if self._phase != "body":
                self._began, self._received = time.monotonic(), 0
                self._await("body", self.life.options.body_seconds)
        elif state is h11.IDLE and self.timeout_keep_alive_task is None:
            if self._phase != "head":
                self._await("head", self.life.options.header_seconds)
        else:
            self._await("")

    def _await(self, phase: Phase, seconds: float = 0.0) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._phase = phase
        if phase:
            self._timer = self.loop.call_later(seconds, self._too_slow)

    def _too_slow(self) -> None:
        """Time is up for what had to come."""
        phase, self._timer = self._phase, None
        if phase == "body":
            allowed = self.life.options.body_seconds + self._received / LEAST_BYTES_PER_SECOND
            left = self._began + allowed - time.monotonic()
            if self.flow.read_paused:  # it is we who do not read
                left = max(left, 1.0)
            if left > 0:
                self._timer = self.loop.call_later(left, self._too_slow)
                return
        self._phase = ""
        self.life.refused("slow")
        if not self._used:  # a connection that was opened, and then nothing
            self.transport.close()
            return
        said = f"the {phase} of the request did not arrive in time"
        self._refuse(RefusalError("slow-request", said))

    def _too_slow_to_read(self) -> None:
        self.life.refused("slow")
        self.transport.abort()

    def _refuse(self, refusal: RefusalError) -> None:
        """Answer without the application, if nothing was answered yet, and close."""
        body, headers = whole_answer(refusal)
        headers = [*self.server_state.default_headers, *headers, *SECURITY_HEADERS, CLOSE]
        try:
            for event in (
                h11.Response(status_code=refusal.status, headers=headers, reason=STATUS_PHRASES[refusal.status]),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event))
        except CANNOT_ANSWER:
            self.transport.abort()
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.scope["state"]["status"] = refusal.status  # for the log
            self.cycle.message_event.set()
        self.transport.close()
