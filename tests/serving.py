"""A real service for tests: a real host on a copy of a store, behind uvicorn, on a port of its own."""

from __future__ import annotations

import asyncio
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI

from limerank.serve.hosting.host import Host
from limerank.service.admission import Admission
from limerank.service.app import create_app
from limerank.service.calls import Service
from limerank.service.options import ServiceOptions

SECONDS = 60.0
"""No answer takes so long; a test that waits longer has failed."""


@dataclass(frozen=True)
class RunningService:
    """A service that answers at `url`, and what is behind it."""

    url: str
    store: Path
    host: Host
    app: FastAPI
    http: httpx.Client
    """A client with keep-alive, for tests that need no other."""

    @property
    def service(self) -> Service:
        """What handlers work with."""
        service: Service = self.app.state.service
        return service

    @property
    def address(self) -> tuple[str, int]:
        """For sockets."""
        url = httpx.URL(self.url)
        return url.host, url.port or 80

    def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        """Send a body as JSON."""
        return self.http.post(path, json=body, headers=headers)


@contextmanager
def serving(
    store: Path,
    options: ServiceOptions | None = None,
    *,
    slots: int = 2,
    host: Host | None = None,
    warmup_requests: int = 2,
    **app_options: Any,
) -> Iterator[RunningService]:
    """Serve a store, which nobody else may serve meanwhile."""
    options = options or ServiceOptions(deadline_ms=20_000)
    opened = host or Host.open(
        store,
        threads=1,
        warmup_requests=warmup_requests,
        history_cap=options.history_cap,
        retention_days=options.retention_days,
        max_age_hours=options.max_bundle_age_hours,
    )
    try:
        app = create_app(opened, options, admission=Admission(slots, options.queue), **app_options)
        with listening(app) as url, httpx.Client(base_url=url, timeout=SECONDS, trust_env=False) as client:
            yield RunningService(url, store, opened, app, client)
    finally:
        if host is None:
            opened.close()


@contextmanager
def listening(app: Any) -> Iterator[str]:
    """Any application behind uvicorn in a thread; its address."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # or asyncio leaves Nagle on
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, lifespan="on", http="h11"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])), name="uvicorn")
    thread.start()
    try:
        while not server.started and thread.is_alive():
            thread.join(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(SECONDS)
        listener.close()


def copied(store: Path, folder: Path) -> Path:
    """A store like another one, without what belongs to whoever serves that."""
    shutil.copytree(store, folder / "store", ignore=shutil.ignore_patterns("owner.lock"))
    return folder / "store"
