"""The application: every operation of the table behind its handler, and nothing else."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec
from fastapi import FastAPI
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.routing import Route

from limerank.serve.deadline import Deadline
from limerank.serve.experiments.shadow import Shadows
from limerank.serve.hosting.host import Host
from limerank.serve.inspection.link_usage import LinkUsage
from limerank.service.admission import Admission
from limerank.service.bodies import LARGE, check_length, check_type, chunks, decoded, disconnected, read_body
from limerank.service.calls import ALL_SCOPES, HANDLERS, Call, Handler, Reply, Service
from limerank.service.metrics import Metrics
from limerank.service.observing import ASGI, KEY, Observation, Observed, Receive, Scope, Send
from limerank.service.operations import ANY_TEXT, OPERATIONS, Operation, allowed_methods
from limerank.service.options import ServiceOptions
from limerank.service.problems import ClientGoneError, RefusalError, invalid
from limerank.service.routes import load_handlers
from limerank.service.tracing import Tracing
from limerank.wire.body import MOST_ID_CHARACTERS

ERRANDS, WAITING_ERRANDS = 16, 256
"""Calls that store or look something up, at a time and waiting: events that wait together are committed together."""
UPLOAD_BYTES = 64 * 2**30
"""The largest bundle that can be published."""
TAR, JSON = "application/x-tar", "application/json"


def create_app(
    host: Host,
    options: ServiceOptions,
    *,
    admission: Admission,
    layers: Sequence[Callable[[ASGI], ASGI]] = (),
    authenticated: Callable[[], bool] = lambda: False,
    tracing: Tracing | None = None,
) -> FastAPI:
    """The service of one host. `layers` stand between the outermost one and the routes: the gate that checks keys.

    What answers is at `app.state.service`: its `status` is what /readyz says, and its `drain` ends the service.
    """
    load_handlers()
    lacking = [operation.name for operation in OPERATIONS if operation.name not in HANDLERS]
    if lacking:
        raise LookupError(f"operations without a handler: {', '.join(lacking)}")
    metrics = Metrics()
    service = Service(
        host=host,
        options=options,
        admission=admission,
        errands=Admission(ERRANDS, WAITING_ERRANDS, "limerank-errand"),
        metrics=metrics,
        shadows=Shadows(host, host.log, idle=lambda: _idle(admission), on_agreement=metrics.agreed),
        links=LinkUsage(host, idle=lambda: _idle(admission)),
        tracing=Tracing.configured() if tracing is None else tracing,
        authenticated=authenticated,
    )

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.get_running_loop().run_in_executor(None, service.close)

    app = FastAPI(
        title="limerank", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False, lifespan=lifespan
    )
    app.state.service = service
    app.router.routes.extend(OperationRoute(operation, Endpoint(service, operation)) for operation in OPERATIONS)
    app.add_exception_handler(HTTPException, _no_such_route)
    for layer in reversed(layers):
        app.add_middleware(partial(_layered, layer))
    app.add_middleware(partial(Observed, metrics=service.metrics))
    return app


def _idle(admission: Admission) -> bool:
    """Whether shadows would keep nobody waiting; the request that a shadow follows may still have its slot."""
    return not admission.waiting and admission.running <= max(1, admission.slots - 1)


def _layered(layer: Callable[[ASGI], ASGI], app: ASGI) -> ASGI:
    return layer(app)


async def _no_such_route(request: Any, error: Exception) -> Any:
    path = request.scope["path"]
    allowed = allowed_methods(path)
    if allowed:
        listed = ", ".join(allowed)
        detail = f"{request.method} {path}: this path takes {listed}"
        raise RefusalError("method-not-allowed", detail, headers=[("Allow", listed)])
    raise RefusalError("no-such-path", f"{path}: there is no such path; /docs lists all")


class OperationRoute(Route):
    """A route whose paths are those that the table says, so that the gate and the router never disagree."""

    def __init__(self, operation: Operation, endpoint: Endpoint) -> None:
        super().__init__(operation.path, endpoint, methods=[operation.method], name=operation.name)
        self.path_regex = operation.pattern


class Endpoint:
    """One operation: reads the request, has its handler work in a thread, sends what that answers."""

    def __init__(self, service: Service, operation: Operation) -> None:
        self.service = service
        self.operation = operation
        self.handler: Handler = HANDLERS[operation.name]
        typed = operation.body not in (None, bytes)
        self.decoder = msgspec.json.Decoder(operation.read_as or operation.body) if typed else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        seen: Observation = scope[KEY]
        seen.route = self.operation.path
        call = Call(
            self.operation,
            seen.request_id,
            seen.arrived,
            seen.arrived_at,
            _checked_parameters(scope),
            QueryParams(scope["query_string"]),
            scopes=scope.get("state", {}).get("scopes", ALL_SCOPES),
        )
        with self.service.tracing.request(call, scope["headers"]), self.service.room.for_a_body() as grown:
            try:
                await self._read(call, scope, receive, grown)
                reply = await self._worked(call, receive)
            finally:
                self.service.metrics.staged(call.stages)
                if self.operation.queued:
                    self.service.metrics.recent.staged(call.stages)
                scope["state"].update(call.said)
        if reply.etag and reply.etag in dict(scope["headers"]).get(b"if-none-match", b""):
            reply = Reply(b"", reply.media_type, 304, reply.headers, reply.etag)
        await _send(send, reply, call)

    async def _worked(self, call: Call, receive: Receive) -> Reply:
        """What the handler answers. While all slots are taken, a client that goes away is not worked for any more."""
        work = self.service.work(call, self.handler)
        if not self.operation.queued or self.service.admission.running < self.service.admission.slots:
            return await work
        working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(disconnected(receive))
        try:
            await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise ClientGoneError
            return working.result()
        finally:
            leaving.cancel()
            working.cancel()

    async def _read(self, call: Call, scope: Scope, receive: Receive, grown: Callable[[int], None]) -> None:
        options, headers = self.service.options, dict(scope["headers"])
        if self.operation.body is bytes:
            check_type(headers, TAR)
            check_length(headers, UPLOAD_BYTES, "the largest bundle")
            pieces = chunks(receive, UPLOAD_BYTES, options.body_seconds, "the largest bundle")
            call.pieces = _in_a_thread(pieces, asyncio.get_running_loop())
            return
        if self.decoder is None:
            return
        check_type(headers, JSON)
        check_length(headers, options.body_bytes, "body_bytes")
        body = await read_body(receive, options.body_bytes, options.body_seconds, grown)
        started = call.since_arrival()
        if len(body) > LARGE:
            decode = partial(decoded, self.decoder, body)
            call.body = await asyncio.get_running_loop().run_in_executor(self.service.helpers, decode)
        else:
            call.body = decoded(self.decoder, body)
        call.took("parse", started)
        if self.operation.queued:
            chosen = getattr(call.body, "options", None)
            milliseconds = getattr(chosen, "deadline_ms", None) or options.deadline_ms or math.inf
            call.deadline = Deadline(milliseconds, started=call.arrived)


def _checked_parameters(scope: Scope) -> dict[str, str]:
    """Parameters of the path; ids that no log could hold are refused."""
    parameters: dict[str, str] = scope["path_params"]
    if not parameters:
        return parameters
    try:
        unquote_to_bytes(scope.get("raw_path") or scope["path"]).decode()
    except UnicodeDecodeError:
        raise RefusalError("malformed-request", "the path is not UTF-8 when its %XX are read") from None
    for name, value in parameters.items():
        if name in ANY_TEXT and not 1 <= len(value) <= MOST_ID_CHARACTERS:
            raise invalid(name, f"{name} has {len(value)} characters; ids have 1 to {MOST_ID_CHARACTERS}")
    return parameters


def _in_a_thread(pieces: AsyncIterator[bytes], loop: asyncio.AbstractEventLoop) -> Iterator[bytes]:
    """The pieces of an upload for a thread, which asks the event loop for each."""

    async def following() -> bytes | None:
        return await anext(pieces, None)

    while (piece := asyncio.run_coroutine_threadsafe(following(), loop).result()) is not None:
        yield piece


async def _send(send: Send, reply: Reply, call: Call) -> None:
    headers = [
        (b"content-type", reply.media_type),
        (b"content-length", str(len(reply.content)).encode()),
        (b"x-content-type-options", b"nosniff"),
        *reply.headers,
        (b"etag", reply.etag) if reply.etag else (b"cache-control", b"no-store"),
    ]
    if call.operation.queued:
        headers.append((b"server-timing", _server_timing(call.stages)))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.content})


def _server_timing(stages: dict[str, float]) -> bytes:
    return ", ".join(f"{stage};dur={milliseconds:.3f}" for stage, milliseconds in stages.items()).encode()
