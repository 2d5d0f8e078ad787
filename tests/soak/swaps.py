"""S1 and L7: bundles are activated and rolled back while requests arrive on a schedule; every answer is checked."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from limerank.bench.serving.connection import Answer, Waiting
from limerank.bench.serving.generator import departures
from limerank.bench.serving.service_process import ServiceProcess
from soak.stores import SoakStore, agrees, references
from soak.verdicts import Sample, sample

ASKED, CANDIDATES = 8, 50


@dataclass
class Swapped:
    """What was answered, by which bundle, and what was wrong with it."""

    requests: int = 0
    not_answered: Counter[str] = field(default_factory=Counter)
    """By status, or by what broke."""
    mixed: int = 0
    """Answers whose scores are not those of the bundle that they name."""
    by_bundle: Counter[str] = field(default_factory=Counter)
    swaps: int = 0
    failed_swaps: list[str] = field(default_factory=list)
    flip_ms: list[float] = field(default_factory=list)
    took_ms: list[float] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    """After each swap."""

    def figures(self) -> dict[str, Any]:
        """For the record."""
        return {
            "requests": self.requests,
            "not_answered": dict(self.not_answered),
            "mixed": self.mixed,
            "by_bundle": dict(self.by_bundle),
            "swaps": self.swaps,
            "failed_swaps": self.failed_swaps,
            "flip_ms": max(self.flip_ms, default=0.0),
            "took_ms": median(self.took_ms or [0.0]),
            "samples": [asdict(one) for one in self.samples],
        }


def swap_under_load(
    service: ServiceProcess, store: SoakStore, *, rate: float, seconds: float, swaps: int, seed: int = 0
) -> Swapped:
    """So many swaps, evenly in the time, between activation of the other bundle and rolling back."""
    draw = random.Random(seed)
    asked = [(draw.choice(store.users), draw.sample(store.items, CANDIDATES)) for _ in range(ASKED)]
    wanted = references(store, asked)
    first, second = (wanted[bundle][0] for bundle in store.bundles[:2])
    assert not agrees(first, second), "the bundles must differ, or no mix could be seen"
    return asyncio.run(_swap(service, store, asked, wanted, departures(rate, seconds, seed), swaps, seconds))


async def _swap(
    service: ServiceProcess,
    store: SoakStore,
    asked: Sequence[tuple[str, list[str]]],
    wanted: dict[str, list[dict[str, float]]],
    times: Sequence[float],
    swaps: int,
    seconds: float,
) -> Swapped:
    address, found, free = service.address, Swapped(), list[Waiting]()
    bodies = [{"user_id": user, "item_ids": items, "options": {"deadline_ms": 30_000}} for user, items in asked]
    requests = [address.request("POST", "/v1/rank", body) for body in bodies]
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def send(number: int) -> None:
        connection = free.pop() if free else await Waiting.open(address)
        try:
            answer = await connection.ask(requests[number])
        except OSError as error:
            found.not_answered[type(error).__name__] += 1
            return
        if connection.usable:
            free.append(connection)
        _judge(found, answer, wanted, number)

    async def swap() -> None:
        connection = await Waiting.open(address)
        for number in range(swaps):
            await asyncio.sleep(max(0.0, began + (number + 0.5) * seconds / swaps - loop.time()))
            path = "/v1/bundles/rollback" if number % 2 else f"/v1/bundles/{store.bundles[1]}/activate"
            answer = await connection.ask(address.request("POST", path, {}))
            if answer.status != 200:
                found.failed_swaps.append(f"{path}: {answer.status} {answer.body[:300]!r}")
                continue
            told = answer.json()
            found.swaps += 1
            found.flip_ms.append(told["flip_ms"])
            found.took_ms.append(told["took_ms"])
            found.samples.append(sample(service.pid, loop.time() - began))
        connection.close()

    swapping = loop.create_task(swap())
    sent = []
    for number, after in enumerate(times):
        await asyncio.sleep(max(0.0, began + after - loop.time()))
        sent.append(loop.create_task(send(number % len(requests))))
    await asyncio.gather(*sent, swapping)
    for connection in free:
        connection.close()
    found.requests = len(sent)
    return found


def _judge(found: Swapped, answer: Answer, wanted: dict[str, list[dict[str, float]]], number: int) -> None:
    if answer.status != 200:
        found.not_answered[str(answer.status)] += 1
        return
    told = answer.json()
    found.by_bundle[told["bundle"]] += 1
    scores = {item["id"]: item["score"] for item in told["items"]}
    found.mixed += not agrees(scores, wanted[told["bundle"]][number])
