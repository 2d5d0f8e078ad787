"""The parts of `make soak` that offer load on a schedule: what is held, and what becomes of too much."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from limerank.bench.serving.asking import made_up_store
from limerank.bench.serving.connection import Address, Waiting
from limerank.bench.serving.load import Kind, LoadProcess, summary
from limerank.bench.serving.service_process import ServiceProcess
from soak.parts import SEED, seconds_of
from soak.verdicts import Part, Verdict, none_of

CALLERS = 16


def load_held(folder: Path) -> Part:
    """L1 and L2: 1,000 candidates at 50 per second, 10,000 at 5 per second and core."""
    part = Part("load_held")
    cores = len(os.sched_getaffinity(0))
    store, sized = made_up_store(folder / "made", "lime-mha", 100_000, (256,), SEED)
    with LoadProcess(folder, SEED) as generator, ServiceProcess(store) as service:
        for name, candidates, rate, p50, p99 in (("L1", 1_000, 50.0, 10, 40), ("L2", 10_000, 5.0 * cores, 50, 150)):
            kind = sized.kind(service.address, candidates, 256, "cached")
            generator.fire(service.address, kind.requests, rate, 2.0)
            row = generator.row(service.address, kind, rate, seconds_of(60))
            part.figures[name] = row.model_dump()
            what = f"{candidates:,} candidates, {rate:g} per second"
            measured = f"p50 {row.p50_ms:.1f} ms, p99 {row.p99_ms:.1f} ms"
            held = row.p50_ms <= p50 and row.p99_ms <= p99
            part.verdicts.append(Verdict(what, f"p50 at most {p50} ms, p99 {p99} ms", measured, held, timed=True))
            failed = row.errors + row.refused + row.degraded
            part.verdicts.append(none_of(f"{what}: errors", failed, row.requests))
    return part


def overload(folder: Path) -> Part:
    """L4: five times as much as it can answer: refusals are 429 and say when to try again; then all is well again."""
    part = Part("overload")
    store, sized = made_up_store(folder / "made", "lime-mha", 100_000, (256,), SEED)
    with LoadProcess(folder, SEED) as generator, ServiceProcess(store) as service:
        address = service.address
        kind = sized.kind(address, 1_000, 256, "cached")
        quiet = generator.row(address, kind, 20.0, seconds_of(10))
        capacity = capacity_of(address, kind)
        shots = generator.fire(address, kind.requests, 5 * capacity, seconds_of(30))
        flooded = summary(kind, 5 * capacity, seconds_of(30), shots)
        time.sleep(5.0)
        after = generator.row(address, kind, 20.0, seconds_of(10))
    part.figures = {name: row.model_dump() for name, row in (("quiet", quiet), ("flooded", flooded), ("after", after))}
    part.figures["capacity"] = capacity
    tail, back = flooded.p99_ms / quiet.p99_ms, after.p99_ms / quiet.p99_ms
    failed = after.errors + after.refused
    part.verdicts = [
        none_of("overload: answers other than 200 and 429", flooded.errors, flooded.requests - flooded.unsent),
        Verdict("overload: requests that were refused", "some", f"{flooded.refused:,}", flooded.refused > 0),
        none_of("refusals without Retry-After", shots.without_advice, flooded.refused),
        _times("p99 of what was accepted against unloaded", tail, 3),
        none_of("five seconds later: requests that failed", failed, after.requests),
        _times("five seconds later: p99 against unloaded", back, 1.5),
    ]
    return part


def capacity_of(address: Address, kind: Kind, seconds: float = 3.0) -> float:
    """Answers per second when some callers ask again as soon as they are answered."""
    return asyncio.run(_ask_again_and_again(address, kind, seconds)) / seconds


async def _ask_again_and_again(address: Address, kind: Kind, seconds: float) -> int:
    answered, ends = 0, time.perf_counter() + seconds

    async def caller(number: int) -> None:
        nonlocal answered
        connection = await Waiting.open(address)
        while time.perf_counter() < ends:
            answer = await connection.ask(kind.requests[number % len(kind.requests)])
            answered += answer.status == 200  # not in one line: what others added while it waited would be lost
        connection.close()

    await asyncio.gather(*(caller(number) for number in range(CALLERS)))
    return answered


def _times(name: str, times: float, most: float) -> Verdict:
    return Verdict(name, f"at most {most:g} times", f"{times:.2f} times", times <= most, timed=True)
