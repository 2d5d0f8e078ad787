"""F1: the service is killed while events arrive; what it had acknowledged is there after a restart, and once only."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from limerank.bench.serving.connection import Address, Blocking, Waiting
from limerank.bench.serving.service_process import ServiceProcess

CALLERS, EVENTS_PER_CALL, USERS = 3, 5, 40
LEAST, MOST = 0.02, 0.25
"""Seconds of storing before a kill."""
CALL_SIZE = 500


@dataclass
class Killed:
    """What came of the cycles."""

    cycles: int = 0
    acknowledged: int = 0
    in_flight: int = 0
    """Sent, but not acknowledged when the service was killed: they may be there or not."""
    kept_in_flight: int = 0
    lost: list[str] = field(default_factory=list)
    stored: int = 0
    distinct: int = 0
    """Event ids that were ever sent; all are sent again after a restart, so each must be stored, once."""
    errors: list[str] = field(default_factory=list)
    ready_seconds: list[float] = field(default_factory=list)


Event = dict[str, Any]


def kill_cycles(start: Callable[[], ServiceProcess], items: Sequence[str], *, cycles: int, seed: int = 0) -> Killed:
    """Store, kill at a random time, start again, and send everything of the cycle again: no event may be new twice."""
    draw, found = random.Random(seed), Killed()
    service = start()
    service.wait_until_ready()
    try:
        for cycle in range(cycles):
            found.ready_seconds.append(service.start_seconds)
            after = draw.uniform(LEAST, MOST)
            acknowledged, sent = asyncio.run(_store_until_killed(service, found, draw, items, cycle, after))
            service.output.close()
            service = start()
            service.wait_until_ready()
            unsure = [event for event in sent if event["event_id"] not in acknowledged]
            sure = [event for event in sent if event["event_id"] in acknowledged]
            new = _send_again(service.address, sure, found)
            if new:
                found.lost.append(f"cycle {cycle}: {new} of {len(sure)} acknowledged events were not there")
            found.kept_in_flight += len(unsure) - _send_again(service.address, unsure, found)
            found.cycles += 1
            found.acknowledged += len(sure)
            found.in_flight += len(unsure)
            found.distinct += len(sent)
        found.stored = _stored(service.address)
    finally:
        service.end()
        service.output.close()
    return found


async def _store_until_killed(
    service: ServiceProcess, found: Killed, draw: random.Random, items: Sequence[str], cycle: int, after: float
) -> tuple[set[str], list[Event]]:
    """Ids that were acknowledged, and all events that were sent."""
    acknowledged: set[str] = set()
    sent: list[Event] = []

    async def caller(number: int) -> None:
        connection, call = await Waiting.open(service.address), 0
        while True:
            events: list[Event] = [
                {
                    "event_id": f"{cycle}-{number}-{call}-{which}",
                    "user_id": f"killed-{draw.randrange(USERS)}",
                    "item_id": draw.choice(items),
                    "timestamp": time.time_ns() // 1_000_000,
                }
                for which in range(EVENTS_PER_CALL)
            ]
            sent.extend(events)
            try:
                answer = await connection.ask(service.address.request("POST", "/v1/events", {"events": events}))
            except OSError:
                return  # killed
            if answer.status != 200 or answer.json()["accepted"] != len(events):
                found.errors.append(f"{answer.status} {answer.body[:300]!r}")
                return
            acknowledged.update(event["event_id"] for event in events)
            call += 1

    callers = [asyncio.get_running_loop().create_task(caller(number)) for number in range(CALLERS)]
    await asyncio.sleep(after)
    service.kill()
    await asyncio.gather(*callers)
    return acknowledged, sent


def _send_again(address: Address, events: Sequence[Event], found: Killed) -> int:
    """How many of these were new to the service."""
    new = 0
    with Blocking(address) as connection:
        for first in range(0, len(events), CALL_SIZE):
            part = list(events[first : first + CALL_SIZE])
            answer = connection.call("POST", "/v1/events", {"events": part})
            told = answer.json()
            if answer.status != 200 or told["accepted"] + told["duplicates"] != len(part):
                found.errors.append(f"{answer.status} {answer.body[:300]!r}")
            else:
                new += told["accepted"]
    return new


def _stored(address: Address) -> int:
    """Events of all users, as the service counts them."""
    with Blocking(address) as connection:
        users = (connection.call("GET", f"/v1/users/killed-{number}").json() for number in range(USERS))
        return sum(user["events_stored"] for user in users)
