"""A call as handlers see it, what they answer, and what all of them work with."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeVar

import msgspec

from limerank.serve.deadline import Deadline
from limerank.serve.experiments.shadow import Shadows
from limerank.serve.hosting.host import Host
from limerank.serve.inspection.finding import Indexes
from limerank.serve.inspection.link_usage import LinkUsage
from limerank.service.admission import Admission
from limerank.service.bodies import LARGE_AT_A_TIME, Room
from limerank.service.metrics import Metrics
from limerank.service.operations import OPERATIONS, Operation
from limerank.service.options import ServiceOptions
from limerank.service.tracing import Tracing

JSON = b"application/json"
ENCODER = msgspec.json.Encoder()
ALL_SCOPES = ("rank", "write", "admin")
Status = Literal["starting", "ok", "draining"]


@dataclass(slots=True)
class Call:
    """One request: what was asked, and how long each stage took so far."""

    operation: Operation
    request_id: str
    arrived: float
    """On the clock that never goes back."""
    arrived_at: int
    """In milliseconds since 1970."""
    parameters: Mapping[str, str]
    """Of the path."""
    query: Mapping[str, str]
    body: Any = None
    deadline: Deadline = field(default_factory=lambda: Deadline(math.inf))
    stages: dict[str, float] = field(default_factory=dict)
    """Milliseconds by stage; they become Server-Timing and metrics."""
    spans: list[tuple[str, float, float]] = field(default_factory=list)
    """The stages on a time line: name, start and end in milliseconds since the arrival."""
    said: dict[str, Any] = field(default_factory=dict)
    """For the access log: bundle, arm, user."""
    answered: int = 0
    """Items in the answer so far."""
    pieces: Iterator[bytes] = field(default_factory=lambda: iter(()))
    """The body of an upload, as it comes in."""
    scopes: Sequence[str] = ()
    """What the caller may do."""

    def since_arrival(self) -> float:
        """Milliseconds."""
        return (time.perf_counter() - self.arrived) * 1000

    def took(self, stage: str, started_ms: float) -> float:
        """A stage ends now that began some milliseconds after the arrival; returns now, counted alike."""
        ended = self.since_arrival()
        self.stages[stage] = self.stages.get(stage, 0.0) + ended - started_ms
        self.spans.append((stage, started_ms, ended))
        return ended


@dataclass(slots=True)
class Reply:
    """What a call is answered with."""

    content: bytes
    media_type: bytes = JSON
    status: int = 200
    headers: Sequence[tuple[bytes, bytes]] = ()
    etag: bytes = b""
    """Of what may be kept by whoever asked: its fingerprint; `headers` say for how long."""

    @classmethod
    def of(cls, body: msgspec.Struct, status: int = 200) -> Reply:
        """A typed body as JSON."""
        return cls(ENCODER.encode(body), status=status)


@dataclass
class Service:
    """What handlers work with; one per process."""

    host: Host
    options: ServiceOptions
    admission: Admission
    """For requests that compute."""
    errands: Admission
    """For all others, which mostly wait for the disk: a flood of events must not fill the memory."""
    metrics: Metrics
    shadows: Shadows
    tracing: Tracing
    links: LinkUsage
    authenticated: Callable[[], bool] = lambda: False
    """Whether keys are asked for, which may begin while the service runs."""
    status: Status = "ok"
    """What the probes say; whoever runs the service changes it."""
    started: float = field(default_factory=time.monotonic)
    room: Room = field(init=False)
    helpers: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(HELPERS, "limerank-helper"))
    """For bodies that are large, and for metrics and documents, which are answered however many errands there are."""

    indexes: Indexes = field(default_factory=Indexes)
    """Of ids, for who looks for users and items by their beginnings."""

    def __post_init__(self) -> None:
        self.room = Room(LARGE_AT_A_TIME * self.options.body_bytes)

    async def work(self, call: Call, handler: Handler) -> Reply:
        """Run a handler in a thread, as soon as there is a slot for it."""
        if call.operation.name in AT_ONCE:
            return handler(self, call)
        work = partial(self._begin, call, handler, call.since_arrival())
        if call.operation.scope in ("public", "metrics"):
            return await asyncio.get_running_loop().run_in_executor(self.helpers, work)
        admission = self.admission if call.operation.queued else self.errands
        self._note_queue()
        return (await admission.run(work, call.deadline)).result

    def _begin(self, call: Call, handler: Handler, asked_ms: float) -> Reply:
        call.took("queue", asked_ms)
        self._note_queue()
        return handler(self, call)

    def _note_queue(self) -> None:
        self.metrics.queue.set(self.admission.waiting)
        self.metrics.recent.waits(self.admission.waiting)

    async def drain(self, seconds: float | None = None) -> bool:
        """Take no new work, say so to probes, and wait for what is under way; False if that takes longer."""
        self.status = "draining"
        return all(await asyncio.gather(self.admission.drain(seconds), self.errands.drain(seconds)))

    def close(self) -> None:
        """End the threads, when what they do is done."""
        self.shadows.close()
        self.links.close()
        self.admission.close()
        self.errands.close()
        self.helpers.shutdown()
        self.tracing.close()


Handler = Callable[[Service, Call], Reply]
AT_ONCE = ("live", "ready")
"""Probes that look at nothing but memory: they need no thread, and are answered whatever all threads do."""
HELPERS = 2
HANDLERS: dict[str, Handler] = {}
"""By the name of the operation; files of `routes` fill it."""
SomeHandler = TypeVar("SomeHandler", bound=Handler)


def handles(operation: str) -> Callable[[SomeHandler], SomeHandler]:
    """Make a function the handler of an operation; it runs in a thread."""
    if operation not in {one.name for one in OPERATIONS}:
        raise KeyError(f"no operation '{operation}'")

    def register(handler: SomeHandler) -> SomeHandler:
        HANDLERS[operation] = handler
        return handler

    return register
