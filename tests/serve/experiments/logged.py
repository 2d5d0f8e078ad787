"""An experiment whose truth is known: rankings and events by rule, in a real log."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from limerank.serve.experiments.log_file import LogFile
from limerank.serve.experiments.records import RankingRecord, ShadowRecord
from limerank.serve.experiments.routing import CONTROL, Arm, Routing, assign, write_routing
from limerank.serve.histories.past import Happened

EXPERIMENT = "exp7"


def routed(store: Path, percent: float = 50.0, bundle: str = "b-new") -> Routing:
    """An experiment with one arm."""
    return write_routing(store, Routing(experiment=EXPERIMENT, arms=(Arm(name="new", bundle=bundle, percent=percent),)))


@dataclass
class Made:
    """What was logged, and the events to it."""

    records: list[RankingRecord | ShadowRecord] = field(default_factory=list)
    events: list[Happened] = field(default_factory=list)

    def write(self, store: Path) -> None:
        """Into the log of a store."""
        with closing(LogFile.open(store)) as log:
            log.write(self.records)

    def since(self, oldest: int) -> list[Happened]:
        """As a history store gives them."""
        return [event for event in self.events if event.time >= oldest]


def simulated(routing: Routing, users: int, *, seed: int = 1, lift: float = 1.0, same_items: bool = True) -> Made:
    """Users with rankings and clicks: those of arms click `lift` times as often, and see other items if asked to."""
    chance, made = np.random.default_rng(seed), Made()
    now = (routing.since or 0) + 1
    for user in (f"u{number}" for number in range(users)):
        arm = assign(routing, user)
        taste = chance.beta(2, 8) * (1.0 if arm == CONTROL else lift)
        for number in range(1 + chance.poisson(3)):
            request = f"{user}-{number}"
            offset = 0 if arm == CONTROL or same_items else 500
            items = [f"i{item}" for item in (offset + chance.geometric(0.02, 60)) if item][:20]
            bundle = routing.bundle_of(arm) or "b-old"
            spent = {"user": 1.0, "total": 2.0 if arm == CONTROL else 3.0}
            made.records.append(
                RankingRecord(request, now, user, bundle, "rank", EXPERIMENT, arm, 100, items, spent, [])
            )
            made.events.append(impression(user, items[0], now, request))
            if chance.random() < taste:
                value = float(round(chance.exponential(10), 2))
                made.events.append(Happened(user, items[0], now + 5, type="click", request_id=request, value=value))
    return made


def impression(user: str, item: str, at: int, request: str) -> Happened:
    return Happened(user, item, at, type="impression", request_id=request, in_history=False)


def later(milliseconds: int = 2) -> None:
    """Let the clock go on, so that what follows has another time."""
    time.sleep(milliseconds / 1000)
