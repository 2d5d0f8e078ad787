"""The process that makes load: requests leave on a schedule that was drawn beforehand, whatever becomes of them.

    python -m limerank.bench.serving.generator

Reads a `Volley` as a line of JSON, answers with `Shots` as another, until the pipe is closed. Latency is counted from
the time a request should have left (its scheduled arrival), so a service that stalls cannot hide how many it kept
waiting. torch is not loaded here, and nothing is parsed while requests are under way but what is needed to tell where
an answer ends.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import selectors
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path

from limerank.bench.serving.connection import Address, Answer, Waiting

FAILED, UNSENT, WHOLE = 0, -1, b'"degraded":[]'
MOST_CONNECTIONS = 256
LAST_ANSWERS = 30.0
"""Seconds after the last departure until what is not answered counts as failed."""
GIVES_UP = 5.0
"""Seconds after which a request is not sent any more, because all connections wait for answers."""


@dataclass
class Volley:
    """What to send, how often, and for how long."""

    address: list[str | int | None]
    requests: list[str]
    """Files that hold a whole request each; they are sent in turn."""
    rate: float
    """Requests per second on average; the times between them are exponential, as of callers who know nothing of each
    other."""
    seconds: float
    seed: int
    connections: int = 16
    """Opened beforehand; more are opened when all are in use."""


@dataclass
class Shots:
    """What became of the requests, in the order of their schedule; milliseconds."""

    latency_ms: list[float] = field(default_factory=list)
    """From the scheduled departure to the last byte of the answer."""
    lag_ms: list[float] = field(default_factory=list)
    """From the scheduled departure to when the generator sent it: its own fault, unless all connections were busy."""
    status: list[int] = field(default_factory=list)
    """0 where the connection broke or no answer came; -1 where it was not sent, for all connections were busy."""
    whole: list[bool] = field(default_factory=list)
    """Whether nothing was left out of the answer."""
    stages: list[dict[str, float]] = field(default_factory=list)
    without_advice: int = 0
    """Refusals (429) that do not say when to try again."""
    seconds: float = 0.0
    """From the first departure to the last answer."""
    cpu_seconds: float = 0.0
    """Of the generator."""


@dataclass
class Shot:
    """One request under way."""

    scheduled: float
    sent: float = 0.0
    ended: float = 0.0
    connected: bool = False
    answer: Answer | None = None


def departures(rate: float, seconds: float, seed: int) -> list[float]:
    """Seconds from the start at which requests leave: a Poisson process, at least one."""
    draw = random.Random(seed)  # noqa: S311  # a schedule, not a secret
    times = [draw.expovariate(rate)]
    while times[-1] < seconds:
        times.append(times[-1] + draw.expovariate(rate))
    return times[:-1] or [0.0]


class Generator:
    """Connections to one service, and requests that leave on time."""

    def __init__(self, address: Address, payloads: list[bytes]) -> None:
        self.address, self.payloads = address, payloads
        self.free: list[Waiting] = []
        self.opened = 0
        self.returned = asyncio.Event()

    async def fire(self, times: list[float], connections: int) -> list[Shot]:
        """All of it."""
        self.free = [await Waiting.open(self.address) for _ in range(connections)]
        self.opened = connections
        loop = asyncio.get_running_loop()
        began = loop.time()
        shots = [Shot(began + after) for after in times]
        tasks = []
        for number, shot in enumerate(shots):
            wait = shot.scheduled - loop.time()
            if wait > 0:
                await asyncio.sleep(wait)
            tasks.append(loop.create_task(self._send(shot, self.payloads[number % len(self.payloads)])))
        _, late = await asyncio.wait(tasks, timeout=LAST_ANSWERS)
        for task in late:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in self.free:
            connection.close()
        return shots

    async def _send(self, shot: Shot, payload: bytes) -> None:
        loop = asyncio.get_running_loop()
        connection: Waiting | None = None
        try:
            connection = await self._connection(shot.scheduled + GIVES_UP)
            shot.connected, shot.sent = True, loop.time()
            shot.answer = await connection.ask(payload)
        except TimeoutError:  # an OSError, too
            pass
        except OSError:
            shot.connected = True
        finally:
            shot.ended = loop.time()
            shot.sent = shot.sent or shot.ended
            if connection is not None:
                self._give_back(connection)

    async def _connection(self, until: float) -> Waiting:
        """One that is free, or a new one; a TimeoutError if all are busy until then."""
        while True:
            while self.free:
                connection = self.free.pop()
                if connection.usable:
                    return connection
                self.opened -= 1
            if self.opened < MOST_CONNECTIONS:
                self.opened += 1
                try:
                    return await Waiting.open(self.address)
                except OSError:
                    self.opened -= 1
                    raise
            self.returned.clear()
            async with asyncio.timeout_at(until):
                await self.returned.wait()

    def _give_back(self, connection: Waiting) -> None:
        if connection.usable:
            self.free.append(connection)
        else:
            connection.close()
            self.opened -= 1
        self.returned.set()


def fire(volley: Volley) -> Shots:
    """Send a volley and tell what became of it."""
    payloads = [Path(path).read_bytes() for path in volley.requests]
    host, port, key = volley.address
    generator = Generator(Address(str(host), int(port or 0), None if key is None else str(key)), payloads)
    times = departures(volley.rate, volley.seconds, volley.seed)
    used = time.process_time()
    gc.disable()
    # epoll's timeouts are whole milliseconds, select's are not
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
    try:
        shots = loop.run_until_complete(generator.fire(times, volley.connections))
    finally:
        loop.close()
        gc.enable()
    result = Shots(cpu_seconds=time.process_time() - used)
    result.seconds = max(shot.ended for shot in shots) - shots[0].scheduled
    for shot in shots:
        result.latency_ms.append(1000 * (shot.ended - shot.scheduled))
        result.lag_ms.append(1000 * (shot.sent - shot.scheduled))
        failed = FAILED if shot.connected else UNSENT
        result.status.append(failed if shot.answer is None else shot.answer.status)
        result.whole.append(shot.answer is not None and WHOLE in shot.answer.body)
    refused = [shot.answer.head for shot in shots if shot.answer is not None and shot.answer.status == 429]
    result.without_advice = sum(b"\r\nretry-after:" not in head for head in refused)
    answered = (shot.answer for shot in shots if shot.answer is not None and shot.answer.status == 200)
    result.stages = [answer.stages() for answer in islice(answered, 1000)]
    return result


def main() -> None:
    """Serve the parent until it closes the pipe."""
    with suppress(OSError):  # only some may: a generator that waits for a core would charge the service with it
        os.nice(-10)
    for line in sys.stdin:
        sys.stdout.write(json.dumps(asdict(fire(Volley(**json.loads(line))))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
