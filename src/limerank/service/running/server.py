"""`limerank serve`: what must be true before anything is loaded, then one process or several."""

from __future__ import annotations

import os
from pathlib import Path

from limerank.errors import UsageError
from limerank.serve.bundles.store import BundleStore
from limerank.service.options import ServiceOptions
from limerank.service.running.listening import listen
from limerank.service.running.loading import run_on
from limerank.service.running.process import Announce
from limerank.service.running.processes import supervise
from limerank.service.security.keys import KeyRing


def run(store: Path, options: ServiceOptions, announce: Announce = lambda facts: None) -> int:
    """Serve a store until a signal comes; returns the exit code. What cannot work is an error before anything else."""
    opened = BundleStore.open(store)
    check_exposure(opened.path, options)
    if options.shards is not None:
        check_cluster(options)
    listener = listen(options)
    if options.processes > 1:
        return supervise(opened.path, options, listener, announce)
    return run_on(listener, opened.path, options, announce)


def check_cluster(options: ServiceOptions) -> None:
    """Ray is installed, and somebody answers at its address."""
    from limerank.serve.sharded.cluster import check_ray, check_reachable

    check_ray(options.ray)
    if options.ray is not None:
        check_reachable(options.ray)


def check_exposure(store: Path, options: ServiceOptions) -> None:
    """Refuse to let other machines in where no key is asked for, unless somebody spelled out that this is wanted."""
    if not options.loopback and not options.insecure and not KeyRing(store).needed:
        raise UsageError(
            f"--host {options.host}: other machines could reach this, and {store} has no keys; make one with "
            f"`limerank keys create {store} --scope rank`, or say --insecure"
        )
    os.environ.pop("PROMETHEUS_MULTIPROC_DIR", None)  # of another program, perhaps; several processes set their own
