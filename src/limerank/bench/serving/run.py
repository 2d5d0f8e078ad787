"""All of `limerank bench serve`: real services, load from another process, next to the machine's own peaks."""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

import limerank
from limerank.bench.machine import copy_gbytes, gemm_gflops
from limerank.bench.serving.asking import Sized, known_of_service, made_up_store, own_store
from limerank.bench.serving.connection import Address, Blocking
from limerank.bench.serving.goals import judge
from limerank.bench.serving.knee import find_knee
from limerank.bench.serving.load import Kind, LoadProcess
from limerank.bench.serving.results import (
    EventRate,
    EventThenRank,
    Knee,
    Overhead,
    ServeBench,
    ServeRow,
    Start,
)
from limerank.bench.serving.service_process import ServiceProcess, resident_mb
from limerank.bench.serving.turns import asked, measure_event_rate, measure_event_then_rank, measure_overhead
from limerank.progress import Progress
from limerank.serve.bundles.bundle import read_manifest
from limerank.serve.bundles.store import BundleStore
from limerank.threads import available_cores

CANDIDATES = (100, 1_000, 10_000, 32_768)
HISTORIES = (16, 256, 1_024, 4_096, 16_384)
KNEE_CANDIDATES, USUAL_HISTORY = 1_000, 256
KEPT_MB = 256
LOW_LOAD, MOST_LOW_RATE = 0.25, 100.0
"""Rows are measured at so much of what one caller after the other could ask for."""
SEQUENTIAL = 12
LONGER = 3
"""Times longer, where a tail is judged."""
EVENTS_PER_CALL = 100
MADE_UP_EVENT = {"clicked": 1}
"""What an event of the made-up log says."""


@dataclass(frozen=True)
class Asked:
    """What to measure."""

    models: Sequence[str] = ("lime-mha",)
    items: int = 100_000
    candidates: Sequence[int] = CANDIDATES
    histories: Sequence[int] = HISTORIES
    rate: float | None = None
    """Requests per second of every row; None: a quarter of what one caller alone could ask for."""
    seconds: float = 3.0
    repeats: int = 25
    """Rounds of what is measured in turns."""
    searches: int = 2
    """Of the knee."""
    refinements: int = 3
    threads: int | None = None
    seed: int = 0
    store: Path | None = None
    url: str | None = None
    key: str | None = None
    start: Callable[[Path, Sequence[str]], ServiceProcess] = ServiceProcess
    """Starts a service of a store with options of `limerank serve`."""

    def quick(self) -> Asked:
        """The same with so little of everything that figures mean nothing."""
        few = replace(self, items=5_000, candidates=self.candidates[:2], histories=self.histories[:2])
        return replace(few, seconds=0.5, repeats=5, searches=1, refinements=1)


@dataclass
class Found:
    """What was measured so far."""

    starts: list[Start] = field(default_factory=list)
    rows: list[ServeRow] = field(default_factory=list)
    overhead: list[Overhead] = field(default_factory=list)
    knees: list[Knee] = field(default_factory=list)
    event_then_rank: list[EventThenRank] = field(default_factory=list)
    event_rates: list[EventRate] = field(default_factory=list)


def run_serve_bench(progress: Progress, wanted: Asked) -> ServeBench:
    """Measure everything in a temporary folder."""
    load, found, items = os.getloadavg(), Found(), wanted.items
    with tempfile.TemporaryDirectory(prefix="limerank-bench-") as name:
        folder = Path(name)
        with LoadProcess(folder, wanted.seed) as generator:
            bench = _Bench(wanted, found, generator, progress)
            if wanted.url is not None:
                address = Address.of(wanted.url, wanted.key)
                sized = known_of_service(address, max(wanted.candidates), wanted.seed)
                items = len(sized.item_ids)
                lengths = [length for length in wanted.histories if length <= sized.longest] or [sized.longest]
                bench.grid(address, sized, lengths, "computed")
                bench.knee(address, sized, "computed", min(USUAL_HISTORY, sized.longest))
            elif wanted.store is not None:
                store, sized = own_store(folder, wanted.store, wanted.histories, wanted.seed)
                items = len(sized.item_ids)
                bench.whole(store, sized, {})
            else:
                for model in wanted.models:
                    progress.say(f"making a catalog of {wanted.items:,} items and a bundle of {model}")
                    lengths = sorted({*wanted.histories, USUAL_HISTORY})
                    store, sized = made_up_store(folder / model, model, wanted.items, lengths, wanted.seed)
                    bench.whole(store, sized, MADE_UP_EVENT)
    return ServeBench(
        limerank=limerank.__version__,
        python=platform.python_version(),
        torch=torch.__version__,
        processor=platform.processor() or platform.machine(),
        cores=available_cores(),
        load_average=[*load, *os.getloadavg()],
        gemm_gflops=gemm_gflops(),
        copy_gbytes_per_second=copy_gbytes(),
        items=items,
        seconds=wanted.seconds,
        seed=wanted.seed,
        threads=wanted.threads,
        target="url" if wanted.url else "store" if wanted.store else "made up",
        **{name: getattr(found, name) for name in Found.__dataclass_fields__},
        goals=judge(found.rows, found.overhead, found.knees, found.event_then_rank, found.event_rates),
    )


@dataclass
class _Bench:
    """The parts of a run, on one service after the other."""

    wanted: Asked
    found: Found
    generator: LoadProcess
    progress: Progress

    def whole(self, store: Path, sized: Sized, event: dict[str, Any]) -> None:
        """Everything a store allows: without kept states, so that histories matter, and as services usually run."""
        wanted, found = self.wanted, self.found
        usual = min(sized.users, key=lambda length: abs(length - USUAL_HISTORY))
        lengths = [length for length in sized.users if length in wanted.histories or wanted.store is not None]
        sizes = sized.sizes(wanted.candidates)
        with self._service(store, sized, usual, 0) as address:
            self.grid(address, sized, lengths, "computed")
            found.overhead += measure_overhead(store, address, sized, sizes, usual, kept=False, repeats=wanted.repeats)
            self.knee(address, sized, "computed", usual)
        with self._service(store, sized, usual, KEPT_MB) as address:
            self.grid(address, sized, [max(lengths)], "cached")
            found.overhead += measure_overhead(store, address, sized, sizes, usual, kept=True, repeats=wanted.repeats)
            found.event_then_rank.append(
                measure_event_then_rank(
                    address, sized, min(KNEE_CANDIDATES, max(sizes)), usual, features=event, repeats=wanted.repeats
                )
            )
            found.event_rates.append(
                measure_event_rate(
                    address, sized, events_per_call=EVENTS_PER_CALL, seconds=wanted.seconds, features=event
                )
            )

    def grid(self, address: Address, sized: Sized, histories: Sequence[int], user_state: str) -> None:
        """A row for every number of candidates and every length of history, at a low rate."""
        sizes = sized.sizes(self.wanted.candidates)
        with self.progress.bar(f"{sized.model}, {user_state} states", len(sizes) * len(histories)) as bar:
            for history in histories:
                for size in sizes:
                    kind = sized.kind(address, size, history, user_state)
                    rate = self.wanted.rate or low_rate(address, kind)
                    self.found.rows.append(self.generator.row(address, kind, rate, self.wanted.seconds))
                    bar.advance()

    def knee(self, address: Address, sized: Sized, user_state: str, history: int) -> None:
        """Where latency breaks away, at the usual size."""
        wanted = self.wanted
        self.progress.say(f"looking for the knee of {sized.model}")
        kind = sized.kind(address, min(KNEE_CANDIDATES, max(wanted.candidates)), history, user_state)
        rate = low_rate(address, kind)
        self.found.knees.append(
            find_knee(
                lambda rate: self.generator.row(address, kind, rate, wanted.seconds),
                lambda rate: self.generator.row(address, kind, rate, LONGER * wanted.seconds),
                rate,
                searches=wanted.searches,
                refinements=wanted.refinements,
            )
        )

    @contextmanager
    def _service(self, store: Path, sized: Sized, history: int, states_mb: int) -> Iterator[Address]:
        """A service that runs as long as it is measured; how it started is noted."""
        options = ["--states-mb", str(states_mb)]
        if self.wanted.threads is not None:
            options += ["--threads", str(self.wanted.threads)]
        self.progress.say(f"starting a service of {sized.model} with {states_mb} MB of user states")
        with self.wanted.start(store, options) as service:
            kind = sized.kind(service.address, KNEE_CANDIDATES, history, "")
            first, *others = sequential_ms(service.address, kind)
            self.found.starts.append(
                Start(
                    states_mb=states_mb,
                    ready_seconds=service.start_seconds,
                    first_ms=first,
                    warm_ms=median(others),
                    resident_mb=resident_mb(service.pid),
                    bundle_mb=_bundle_mb(store),
                )
            )
            yield service.address


def sequential_ms(address: Address, kind: Kind) -> list[float]:
    """Milliseconds of some requests, one after the other."""
    taken = []
    with Blocking(address) as connection:
        for number in range(SEQUENTIAL):
            started = time.perf_counter()
            asked(connection, kind.requests[number % len(kind.requests)])
            taken.append(1000 * (time.perf_counter() - started))
    return taken


def low_rate(address: Address, kind: Kind) -> float:
    """A rate at which requests seldom meet."""
    return min(MOST_LOW_RATE, LOW_LOAD * 1000 / median(sequential_ms(address, kind)))


def _bundle_mb(store: Path) -> float:
    """The files of a store's active bundle."""
    opened = BundleStore.open(store)
    return sum(record.bytes for record in read_manifest(opened.bundle_path(str(opened.current_id()))).files) / 2**20
