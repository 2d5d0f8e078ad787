"""One process that serves: it listens before it loads, is ready when it is warm, and ends without dropping anything."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import uvicorn

from limerank.errors import UnavailableError
from limerank.service.admission import Admission
from limerank.service.options import ServiceOptions
from limerank.service.running.access_log import end_all
from limerank.service.running.front import Front
from limerank.service.running.life import HEAD_BYTES, Life
from limerank.service.running.listening import BACKLOG, fitting_connections
from limerank.service.running.protocol import GuardedProtocol
from limerank.service.security.refusals import Application

TICK = 0.02
SWITCH_SECONDS = 0.0002
"""How long a thread may keep Python's lock from others. The event loop gives it up at every read and write: with
Python's own 5 ms it waits that long each time while workers are busy, and a flood is refused at a hundred a second."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)
LOOK_SECONDS, CLOSE_SECONDS = 1.0, 10.0
"""Between two looks at whether there is anything to answer with, and what closing may take when there is not."""

log = logging.getLogger("limerank.service")


@dataclass
class Loaded:
    """What takes its time: an application behind its gate, and how to end it."""

    app: Application
    admissions: list[Admission] = field(default_factory=list)
    close: Callable[[], None] = lambda: None
    lifespan: Callable[[], Any] | None = None
    """An asynchronous context in which the application lives."""
    on_refused: Callable[[str], None] | None = None
    """Counts what is refused before the application sees it."""
    hopeless: Callable[[], str | None] = lambda: None
    """Why there is nothing to answer with, for so long that only a new start may help."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What to tell when the service is ready."""


Load = Callable[[], Loaded]
Announce = Callable[[dict[str, Any]], None]


class Server(uvicorn.Server):
    """uvicorn's server with another end."""

    def __init__(self, config: uvicorn.Config, life: Life) -> None:
        super().__init__(config)
        self.life = life
        self.unfinished = 0
        """Requests that the grace was too short for."""
        self.until = 0.0
        """When grace ends, on the clock that never goes back."""
        self.hopeless = False
        """It ends because there is nothing to answer with."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The first signal asks for a drain, the second ends the process at once."""
        self.catch_signals()
        try:
            yield
        finally:
            for number in SIGNALS if threading.current_thread() is threading.main_thread() else ():
                asyncio.get_running_loop().remove_signal_handler(number)

    def catch_signals(self) -> None:
        """Once more when everything is loaded: a library may have put handlers of its own there, as Ray does."""
        for number in SIGNALS if threading.current_thread() is threading.main_thread() else ():
            asyncio.get_running_loop().add_signal_handler(number, self._asked_to_end, number)

    def _asked_to_end(self, number: int) -> None:
        if self.should_exit:
            log.warning("asked twice to end: ended at once, requests under way were dropped")
            _flush()
            os._exit(128 + number)
        self.life.drain()
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let everything that has begun end, for as long as grace allows; meanwhile others are told to go elsewhere."""
        self.life.drain()
        self.until = time.monotonic() + self.life.options.grace_seconds
        for connection in list(self.server_state.connections):
            connection.shutdown()
        while self._under_way() and time.monotonic() < self.until:
            await asyncio.sleep(TICK)
        self.unfinished = len(self._under_way())
        for server in self.servers:
            server.close()
        for listener in sockets or []:
            listener.close()
        for connection in list(self.server_state.connections):
            connection.transport.close()
        for task in self.server_state.tasks:
            task.cancel()
        await asyncio.sleep(TICK)

    def _under_way(self) -> Sequence[object]:
        """Connections from before the end began, and requests."""
        connections = [c for c in self.server_state.connections if not getattr(c, "late", False)]
        return connections or list(self.server_state.tasks)


def serve(
    listener: socket.socket,
    options: ServiceOptions,
    load: Load,
    *,
    announce: Announce = lambda facts: None,
    access: Callable[[dict[str, Any]], None] | None = None,
    load_first: bool = False,
) -> int:
    """Answer on a socket until a signal comes; returns the exit code. `load` runs in a thread, while probes answer.

    With `load_first` nothing is accepted before it is loaded: others answer on the same socket meanwhile.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    if load_first:
        loaded = _load_unless_asked_to_end(load)
        return asyncio.run(_serve(listener, options, lambda: loaded, announce, access))
    return asyncio.run(_serve(listener, options, load, announce, access))


def _load_unless_asked_to_end(load: Load) -> Loaded:
    """Load on this thread; a signal meanwhile ends the process, which has nothing under way."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in SIGNALS}
    try:
        return load()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def _serve(
    listener: socket.socket,
    options: ServiceOptions,
    load: Load,
    announce: Announce,
    access: Callable[[dict[str, Any]], None] | None,
) -> int:
    life = Life(options, fitting_connections(options.connections))
    front = Front(life, access)
    config = uvicorn.Config(
        front,
        loop="asyncio",
        http=partial(GuardedProtocol, life=life),  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=options.idle_seconds,  # type: ignore[arg-type]
        h11_max_incomplete_event_size=HEAD_BYTES,
    )
    server = Server(config, life)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    loading = _in_a_thread(load)
    both: list[asyncio.Future[Any]] = [running, loading]
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    if not loading.done():  # asked to end before it was ready
        loading.cancel()
        _flush()
        os._exit(0)
    try:
        loaded = loading.result()
    except BaseException:
        server.should_exit = True
        await running
        raise
    return await _answer_until_the_end(server, front, loaded, running, announce)


async def _answer_until_the_end(
    server: Server, front: Front, loaded: Loaded, running: asyncio.Task[None], announce: Announce
) -> int:
    life = server.life
    async with AsyncExitStack() as stack:
        if loaded.lifespan is not None:
            await stack.enter_async_context(loaded.lifespan())
        life.connections = fitting_connections(life.options.connections)
        front.app, life.on_refused = loaded.app, loaded.on_refused
        server.catch_signals()
        if not life.draining:
            life.status = "ok"
            announce(loaded.facts)
        looking = asyncio.create_task(_end_when_hopeless(server, loaded.hopeless))
        await running
        looking.cancel()
        left = max(1.0, server.until - time.monotonic())
        drained = [await admission.drain(left) for admission in loaded.admissions]
        if server.unfinished or not all(drained):
            log.error("after %g s (--grace-seconds) requests under way were dropped", life.options.grace_seconds)
            _flush()
            os._exit(UnavailableError.exit_code)  # their threads would be waited for
    if server.hopeless:
        with suppress(Exception):  # who is gone may be asked while things are closed, and not answer
            await asyncio.wait_for(asyncio.to_thread(loaded.close), CLOSE_SECONDS)
        _flush()
        os._exit(UnavailableError.exit_code)
    await asyncio.to_thread(loaded.close)
    return 0


async def _end_when_hopeless(server: Server, hopeless: Callable[[], str | None]) -> None:
    """Ask for the end, as a signal does: whoever starts this process again lets it find what is there then."""
    while (why := hopeless()) is None:
        await asyncio.sleep(LOOK_SECONDS)
    log.error("%s", why)
    server.hopeless = True
    server.life.drain()
    server.should_exit = True


def _in_a_thread(load: Load) -> asyncio.Future[Loaded]:
    """Not one of asyncio's threads: those are waited for at the end of the process."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Loaded] = loop.create_future()

    def tell(result: Loaded | None, error: BaseException | None) -> None:
        if not future.done():
            if error is not None:
                future.set_exception(error)
            elif result is not None:
                future.set_result(result)

    def work() -> None:
        result, error = None, None
        try:
            result = load()
        except BaseException as raised:  # told where it is awaited
            error = raised
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(tell, result, error)

    threading.Thread(target=work, name="limerank-load", daemon=True).start()
    return future


def _flush() -> None:
    end_all()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
