"""Mixed traffic as applications make it: rankings, recommendations, explanations, events, upserts, erasures, swaps."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from limerank.bench.serving.connection import Waiting
from limerank.bench.serving.service_process import ServiceProcess
from soak.stores import SoakStore
from soak.verdicts import Sample, sample

MIX = {"rank": 62, "recommend": 8, "explain": 5, "events": 20, "upsert": 4, "erase": 1}
USERS, UPSERTED, CANDIDATES, DEADLINE_MS = 32, 100, 500, 30_000
"""Few users and few changed items: what is kept of them is soon as large as it may get."""


@dataclass
class Traffic:
    """What became of it."""

    calls: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    rank_ms: list[float] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    activations: int = 0


def mixed_traffic(
    service: ServiceProcess, store: SoakStore, *, seconds: float, callers: int, activate_every: float, seed: int
) -> Traffic:
    """So many callers, each of which asks again when it is answered; a bundle is activated now and then."""
    return asyncio.run(_Mixed(service, store, seed).run(seconds, callers, activate_every))


class _Mixed:
    def __init__(self, service: ServiceProcess, store: SoakStore, seed: int) -> None:
        self.service, self.store, self.address = service, store, service.address
        self.draw, self.found, self.serial = random.Random(seed), Traffic(), 0
        self.users = [*store.users[: USERS // 2], *(f"soak-{number}" for number in range(USERS // 2))]

    async def run(self, seconds: float, callers: int, activate_every: float) -> Traffic:
        began = time.perf_counter()
        ends = began + seconds
        tasks = [asyncio.create_task(self._caller(ends)) for _ in range(callers)]
        tasks.append(asyncio.create_task(self._activating(ends, activate_every)))
        every = max(0.2, min(5.0, seconds / 600))
        while time.perf_counter() < ends and not all(task.done() for task in tasks):
            self.found.samples.append(sample(self.service.pid, time.perf_counter() - began))
            await asyncio.sleep(every)
        await asyncio.gather(*tasks)
        return self.found

    async def _caller(self, ends: float) -> None:
        connection = await Waiting.open(self.address)
        kinds, weights = list(MIX), list(MIX.values())
        while time.perf_counter() < ends:
            (kind,) = self.draw.choices(kinds, weights)
            connection = await self._ask(connection, kind, getattr(self, f"_{kind}")())
        connection.close()

    async def _ask(self, connection: Waiting, kind: str, request: bytes) -> Waiting:
        started = time.perf_counter()
        try:
            answer = await connection.ask(request)
        except OSError as error:
            self._failed(kind, type(error).__name__, "")
            return await Waiting.open(self.address)
        self.found.calls[kind] += 1
        if answer.status != 200:
            self._failed(kind, str(answer.status), repr(answer.body[:300]))
        elif kind == "rank":
            self.found.rank_ms.append(1000 * (time.perf_counter() - started))
        return connection

    def _failed(self, kind: str, what: str, said: str) -> None:
        self.found.errors[f"{kind}: {what}"] += 1
        if len(self.found.examples) < 10:
            self.found.examples.append(f"{kind}: {what} {said}")

    async def _activating(self, ends: float, every: float) -> None:
        number = 0
        while (left := ends - time.perf_counter()) > 0:
            await asyncio.sleep(min(every, left))
            number += 1
            bundle = self.store.bundles[number % len(self.store.bundles)]
            path = f"/v1/bundles/{bundle}/activate"
            opened = await Waiting.open(self.address)  # the service closes those that say nothing for long
            (await self._ask(opened, "activate", self.address.request("POST", path, {}))).close()
            self.found.activations += 1

    def _rank(self) -> bytes:
        options = {"deadline_ms": DEADLINE_MS}
        body = {"user_id": self._user(), "item_ids": self.draw.sample(self.store.items, CANDIDATES), "options": options}
        return self.address.request("POST", "/v1/rank", body)

    def _recommend(self) -> bytes:
        body = {"user_id": self._user(), "options": {"deadline_ms": DEADLINE_MS, "exclude_seen": True}}
        return self.address.request("POST", "/v1/recommend", body)

    def _explain(self) -> bytes:
        return self.address.request(
            "POST", "/v1/explain", {"user_id": self._user(), "item_ids": self.draw.sample(self.store.items, 3)}
        )

    def _events(self) -> bytes:
        events = []
        for _ in range(self.draw.randint(1, 5)):
            self.serial += 1
            event = {"user_id": self._user(), "item_id": self.draw.choice(self.store.items), "features": {"clicked": 1}}
            events.append({**event, "event_id": f"soak-{self.serial}"})
        return self.address.request("POST", "/v1/events", {"events": events})

    def _upsert(self) -> bytes:
        item: dict[str, Any] = {"id": f"new-{self.draw.randrange(UPSERTED)}"}
        item["features"] = {"topic": str(self.draw.randrange(64)), "vector": [self.draw.random() for _ in range(16)]}
        return self.address.request("PUT", "/v1/items", {"items": [item]})

    def _erase(self) -> bytes:
        return self.address.request("DELETE", f"/v1/users/soak-{self.draw.randrange(USERS // 2)}")

    def _user(self) -> str:
        return self.draw.choice(self.users)
