"""What is measured one request after the other: HTTP against the engine, and events that rankings must see."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from limerank.bench.serving.asking import PATIENT_MS, TOP, Sized
from limerank.bench.serving.connection import Address, Answer, Blocking, Waiting
from limerank.bench.serving.results import EventRate, EventThenRank, Overhead
from limerank.bench.train.results import Spread
from limerank.errors import LimerankError
from limerank.serve.engine import STATES_BYTES, Engine

WARM = 3
CONNECTIONS = 2
"""Callers that store events at the same time: enough that commits can be shared."""


def asked(connection: Blocking, request: bytes) -> Answer:
    """An answer that is 200, or an error that says what it is."""
    answer = connection.ask(request)
    if answer.status != 200:
        raise LimerankError(f"{request.split(b' HTTP', 1)[0].decode()} answers {answer.status}: {answer.body[:300]!r}")
    return answer


def measure_overhead(
    store: Path, address: Address, sized: Sized, sizes: list[int], history: int, *, kept: bool, repeats: int
) -> list[Overhead]:
    """Each size over HTTP and by an engine of this process, in turns; candidates are new in every round."""
    rows = []
    with Engine.open(store, states=STATES_BYTES if kept else 0) as engine, Blocking(address) as connection:
        gc.collect()
        gc.freeze()  # what the bench holds is no garbage of a request's
        for size in sizes:
            by_engine, by_http, stages, length = [], [], [], 0
            for number in range(WARM + repeats):
                body = sized.body(size, history)
                request = address.request("POST", "/v1/rank", body)
                fresh = json.loads(json.dumps(body["item_ids"]))  # texts as a caller has them: just made
                ask_engine = partial(engine.answer, body["user_id"], fresh, limit=TOP, deadline_ms=PATIENT_MS)
                ask_service = partial(asked, connection, request)
                if number % 2:
                    taken, (_, answer) = _in_turn(ask_engine, ask_service)
                else:
                    taken, (answer, _) = _in_turn(ask_service, ask_engine)
                    taken.reverse()
                if number >= WARM:
                    by_engine.append(taken[0])
                    by_http.append(taken[1])
                    stages.append(answer.stages())
                length = len(request)
            rows.append(
                Overhead(
                    model=sized.model,
                    candidates=len(body["item_ids"]),
                    history=history,
                    user_state="cached" if kept else "computed",
                    engine_ms=Spread.of(by_engine),
                    http_ms=Spread.of(by_http),
                    http_overhead=median(by_http) / median(by_engine),
                    body_bytes=length,
                    stage_ms={name: median(one[name] for one in stages) for name in stages[0]},
                )
            )
        gc.unfreeze()
    return rows


def _in_turn(*works: Callable[[], Any]) -> tuple[list[float], list[Any]]:
    """What each takes, and what it gives."""
    times, results = [time.perf_counter()], []
    for work in works:
        results.append(work())
        times.append(time.perf_counter())
    return [later - earlier for earlier, later in pairwise(times)], results


def measure_event_then_rank(
    address: Address, sized: Sized, count: int, history: int, *, features: dict[str, Any], repeats: int
) -> EventThenRank:
    """In every round a ranking alone, then an event and a ranking that must have read one event more."""
    rank, event, rank_after, added, seen = [], [], [], [], 0
    user = sized.users[history]
    with Blocking(address) as connection:
        for number in range(WARM + repeats):
            alone = address.request("POST", "/v1/rank", sized.body(count, history))
            again = address.request("POST", "/v1/rank", sized.body(count, history))
            (item,) = sized.candidates(1)
            new = {"user_id": user, "item_id": item, "timestamp": time.time_ns() // 1_000_000, "features": features}
            store = address.request("POST", "/v1/events", {"events": [new]})
            taken, answers = _in_turn(*(partial(asked, connection, request) for request in (alone, store, again)))
            before, after = (_newest_event(answers[which]) for which in (0, 2))
            if number >= WARM:
                rank.append(taken[0])
                event.append(taken[1])
                rank_after.append(taken[2])
                added.append(taken[1] + taken[2] - taken[0])
                seen += before != after
    return EventThenRank(
        model=sized.model,
        candidates=count,
        history=history,
        rank_ms=Spread.of(rank),
        event_ms=Spread.of(event),
        rank_after_ms=Spread.of(rank_after),
        added_ms=1000 * median(added),
        seen=seen,
        rounds=repeats,
    )


def _newest_event(answer: Answer) -> tuple[int, str]:
    user = answer.json()["user"]
    return user["history_used"], user["history_as_of"]


def measure_event_rate(
    address: Address, sized: Sized, *, events_per_call: int, seconds: float, features: dict[str, Any]
) -> EventRate:
    """Calls one after the other on some connections; every event is new."""
    return asyncio.run(_store_events(address, sized, events_per_call, seconds, features))


async def _store_events(
    address: Address, sized: Sized, events_per_call: int, seconds: float, features: dict[str, Any]
) -> EventRate:
    taken: list[float] = []
    errors = 0
    items = sized.candidates(events_per_call)
    began = time.perf_counter()

    async def caller(number: int) -> None:
        nonlocal errors
        connection, call = await Waiting.open(address), 0
        while time.perf_counter() - began < seconds:
            events = [
                {
                    "user_id": f"limerank-bench-{number}-{which % 10}",
                    "item_id": item,
                    "timestamp": time.time_ns() // 1_000_000,
                    "event_id": f"{number}-{call}-{which}",
                    "features": features,
                }
                for which, item in enumerate(items)
            ]
            request = address.request("POST", "/v1/events", {"events": events})
            started = time.perf_counter()
            answer = await connection.ask(request)
            taken.append(1000 * (time.perf_counter() - started))
            errors += answer.status != 200 or answer.json()["accepted"] != events_per_call
            call += 1
        connection.close()

    await asyncio.gather(*(caller(number) for number in range(CONNECTIONS)))
    elapsed = time.perf_counter() - began
    return EventRate(
        events_per_call=events_per_call,
        connections=CONNECTIONS,
        seconds=elapsed,
        events_per_second=events_per_call * len(taken) / elapsed,
        call_p50_ms=float(np.percentile(taken, 50)),
        call_p99_ms=float(np.percentile(taken, 99)),
        errors=errors,
    )
