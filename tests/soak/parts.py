"""The parts of `make soak`, each of which starts services of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from limerank.bench.serving.service_process import COMMAND, ServiceProcess
from soak.kills import kill_cycles
from soak.stores import made_up_soak_store
from soak.swaps import swap_under_load
from soak.traffic import Traffic, mixed_traffic
from soak.verdicts import Part, Verdict, drift_verdict, memory_verdicts, none_of

TESTS = Path(__file__).parent.parent
CALLERS, ACTIVATE_EVERY = 20, 30.0
KEPT = ("--states-mb", "16", "--history-cap", "64", "--deadline-ms", "30000")
"""Services of the soak keep little of users, so that it is soon full and growth after that is a leak; and callers who
never pause may wait for each other."""
CONTROL_SECONDS, LEAST_CONTROL = 90.0, 30.0
MINUTES = float(os.environ.get("SOAK_MINUTES", "60"))
KILLS = int(os.environ.get("SOAK_KILLS", "500"))
SEED = int(os.environ.get("SOAK_SEED", "0"))
SHORT = MINUTES < 10
"""A trial of the soak itself: parts of fixed length are shorter, too."""


def seconds_of(usual: float) -> float:
    """How long a part takes."""
    return max(5.0, usual * MINUTES / 10) if SHORT else usual


def _soak(folder: Path, seconds: float, *, command: Sequence[str] = COMMAND) -> Traffic:
    store = made_up_soak_store(folder)
    with ServiceProcess(store.path, KEPT, command=command) as service:
        every = min(ACTIVATE_EVERY, seconds / 8)
        return mixed_traffic(service, store, seconds=seconds, callers=CALLERS, activate_every=every, seed=SEED)


def memory(folder: Path) -> Part:
    """L6, L8: memory and files stay flat under mixed traffic, and nothing fails."""
    found = _soak(folder, 60 * MINUTES)
    part = Part("memory", figures=_traffic_figures(found), verdicts=memory_verdicts(found.samples))
    failed = sum(found.errors.values())
    calls = sum(found.calls.values())
    part.verdicts.append(none_of("calls that failed", failed, calls))
    part.verdicts.append(drift_verdict(found.rank_ms))
    return part


def leak_control(folder: Path) -> Part:
    """The same harness must find a leak of memory and one of files that were planted."""
    part = Part("leak_control")
    for kind, about in (("memory", "memory"), ("files", "open files")):
        command = (sys.executable, str(TESTS / "soak" / "leaking.py"), kind)
        found = _soak(folder / kind, max(LEAST_CONTROL, seconds_of(CONTROL_SECONDS)), command=command)
        judged = [one for one in memory_verdicts(found.samples) if about in one.name]
        part.figures[kind] = _traffic_figures(found) | {"verdicts": [asdict(one) for one in judged]}
        told = ", ".join(f"{one.name} {one.measured}" for one in judged)
        caught = not any(one.reached for one in judged)
        part.verdicts.append(Verdict(f"a planted leak of {kind}", "is found", told, caught))
    return part


def swaps(folder: Path) -> Part:
    """S1: 20 swaps under 50 requests per second."""
    seconds = seconds_of(60)
    store = made_up_soak_store(folder)
    with ServiceProcess(store.path) as service:
        found = swap_under_load(service, store, rate=50, seconds=seconds, swaps=20, seed=SEED)
    part = Part("swaps", figures=found.figures())
    wrong = sum(found.not_answered.values())
    slowest = max(found.flip_ms, default=0.0)
    part.verdicts = [
        none_of("answers other than 200 while swapping", wrong, found.requests),
        none_of("answers that mix bundles", found.mixed, found.requests),
        Verdict("swaps", "20", f"{found.swaps}", found.swaps == 20),
        Verdict("a swap, pointer flipped", "below 1 s", f"{slowest:.1f} ms at most", slowest < 1000, timed=True),
    ]
    return part


def activations(folder: Path) -> Part:
    """L7: 50 activations under load."""
    store = made_up_soak_store(folder)
    with ServiceProcess(store.path) as service:
        found = swap_under_load(service, store, rate=20, seconds=seconds_of(100), swaps=50, seed=SEED)
    fifth, last = found.samples[4], found.samples[-1]
    grown = last.rss_mb / fifth.rss_mb - 1
    part = Part("activations", figures=found.figures())
    more = (last.files - last.sockets) - (fifth.files - fifth.sockets)  # connections come and go with the load
    part.verdicts = [
        Verdict("memory after 50 activations against 5", "at most 5 % more", f"{grown:+.1%}", grown <= 0.05),
        Verdict("open files after 50 activations against 5", "one more at most", f"{more:+d}", more <= 1),
        Verdict("activations", "50", f"{found.swaps}", found.swaps == 50),
    ]
    return part


def kills(folder: Path) -> Part:
    """F1: `kill -9` while events arrive."""
    store = made_up_soak_store(folder, items=500, bundles=1)
    found = kill_cycles(
        lambda: ServiceProcess(store.path, ("--warmup-requests", "1")), store.items, cycles=KILLS, seed=SEED
    )
    part = Part("kills", figures=asdict(found) | {"ready_seconds": float(np.median(found.ready_seconds))})
    slowest = max(found.ready_seconds)
    twice = found.stored - found.distinct
    part.verdicts = [
        none_of(f"acknowledged events lost in {found.cycles} kills", len(found.lost), found.acknowledged),
        Verdict("events stored twice or not at all", "none", f"{twice:+d} of {found.distinct:,}", twice == 0),
        none_of("errors", len(found.errors), found.cycles),
        Verdict("start after a kill", "at most 5 s", f"{slowest:.1f} s at most", slowest <= 5, timed=True),
    ]
    return part


def _traffic_figures(found: Traffic) -> dict[str, object]:
    samples = found.samples[:: max(1, len(found.samples) // 120)]
    return {
        "calls": dict(found.calls),
        "errors": dict(found.errors),
        "examples": found.examples,
        "activations": found.activations,
        "rank_p50_ms": float(np.percentile(found.rank_ms, 50)) if found.rank_ms else None,
        "rank_p99_ms": float(np.percentile(found.rank_ms, 99)) if found.rank_ms else None,
        "samples": [asdict(one) for one in samples],
    }
