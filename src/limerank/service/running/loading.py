"""From a store to an application that answers: what takes seconds, and happens while probes are answered already."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from limerank.service.admission import Admission
from limerank.service.app import create_app
from limerank.service.options import ServiceOptions
from limerank.service.running.access_log import Logs
from limerank.service.running.listening import address_of
from limerank.service.running.process import Announce, Loaded, serve
from limerank.service.running.started import store_facts
from limerank.service.security.gate import Gate
from limerank.service.security.keys import KeyRing
from limerank.threads import available_cores

if TYPE_CHECKING:
    from limerank.serve.hosting.host import Host
    from limerank.serve.sharded.engine import ShardedEngines

MEGABYTE = 2**20
WAITING_PER_CORE = 4
HOPELESS_SECONDS = 120.0
"""For which no item could be ranked: scorers that died are back sooner, if whoever looks after them is there."""


def run_on(
    listener: socket.socket,
    store: Path,
    options: ServiceOptions,
    announce: Announce,
    *,
    owner: bool = True,
    load_first: bool = False,
) -> int:
    """Serve on a socket that listens already; with `load_first` accept nothing before it can be answered."""
    logs = Logs()
    access = logs.begin()
    address = address_of(listener)
    try:
        return serve(
            listener,
            options,
            loading(store, options, address, owner=owner),
            announce=announce,
            access=access if options.access_log else None,
            load_first=load_first,
        )
    finally:
        logs.end()


def loading(store: Path, options: ServiceOptions, address: str, *, owner: bool) -> Callable[[], Loaded]:
    """What opens the store and makes the application; it takes seconds, and runs in a thread."""

    def load() -> Loaded:
        from limerank.serve.engine import Engine
        from limerank.serve.hosting.host import Host

        keys = KeyRing(store)
        threads = threads_each(options)
        with ExitStack() as ends:
            engines = sharded_engines(options)
            if engines is not None:
                ends.callback(engines.close)
            host = Host.open(
                store,
                threads=threads,
                states_bytes=options.states_mb * MEGABYTE,
                warmup_requests=options.warmup_requests,
                history_cap=options.history_cap,
                retention_days=options.retention_days,
                histories=options.histories,
                max_age_hours=options.max_bundle_age_hours,
                owner=owner,
                open_engine=engines or Engine.open,
            )
            ends.callback(host.close)
            close = ends.pop_all().close
        admission = Admission(options.concurrency or threads, options.queue)
        app = create_app(
            host,
            options,
            admission=admission,
            layers=[lambda app: Gate(app, keys, options)],
            authenticated=lambda: keys.needed,
        )
        with host.lease() as lease:
            facts: dict[str, Any] = store_facts(store, lease.engine, options, keys.needed)
        return Loaded(
            app,
            [admission, app.state.service.errands],
            close=close,
            on_refused=app.state.service.metrics.refused_early,
            lifespan=lambda: app.router.lifespan_context(app),
            hopeless=lambda: hopeless(host),
            facts={**facts, "address": address},
        )

    return load


def hopeless(host: Host) -> str | None:
    """Why this process had better end; None as long as it ranks something, or may soon."""
    missing = host.missing()
    if missing is None or missing.all_for is None or missing.all_for < HOPELESS_SECONDS:
        return None
    return f"nothing was ranked for {missing.all_for:.0f} seconds, so this process ends: {missing.said}"


def sharded_engines(options: ServiceOptions) -> ShardedEngines | None:
    """What opens engines whose rows are on Ray, if that is asked for."""
    if options.shards is None:
        return None
    from limerank.serve.sharded.asking import Patience
    from limerank.serve.sharded.engine import ShardedEngines

    patience = Patience(options.hedge_ms, options.patience_ms)
    return ShardedEngines(shards=options.shards, replicas=options.replicas, ray=options.ray, patience=patience)


def threads_each(options: ServiceOptions) -> int:
    """Workers of each process; those that wait for shards need no core of their own."""
    waiting = 1 if options.shards is None else WAITING_PER_CORE
    return options.threads or max(1, waiting * available_cores() // options.processes)
