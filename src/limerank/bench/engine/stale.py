"""`limerank bench states`: what LIME-XOR's approximate user states cost in accuracy, and how often they are read anew.

A LIME-XOR ranker is trained on a simulated log for a little while. Some users then act at random, event by event; after
each event the state that was kept and grown against stale links is compared with one computed from nothing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from pydantic import BaseModel
from torch import Tensor

from limerank.api.dataset import Dataset
from limerank.api.training import train
from limerank.data.sources.simulated import SimulatedConfig, simulate
from limerank.models import UserState
from limerank.models.lime_xor import LimeXOR
from limerank.progress import Progress
from limerank.serve.bundles.bundle import Bundle
from limerank.serve.requests import Event, RequestReader
from limerank.serve.scorer import score_candidates
from limerank.serve.states import UserSource, UserStates

Activation = Literal["silu", "softmax"]
ACTIVATIONS: tuple[Activation, ...] = ("silu", "softmax")
BUDGETS = (0.01, 0.03, 0.1, 0.3)
TOP = 20
KEPT = 2**30
WINDOW = 4096
"""Longer than any history here: a full window is read anew in any case."""


class StaleRow(BaseModel):
    """One activation with one budget."""

    activation: str
    budget: float
    requests: int
    """Requests with at least one new event."""
    appended_fraction: float
    """Of these, how many were answered without reading the history anew."""
    mean_change: float
    """Of a logit, against the exact one, over all items and appended requests."""
    largest_change: float
    logit_deviation: float
    top_kept: float
    """How many of the best 20 stay among the best 20, as a fraction."""


class StateBench(BaseModel):
    """All figures of one run; nothing in it depends on how fast the machine is."""

    torch: str
    users: int
    events: int
    """New events per user."""
    histories: list[float]
    """Shortest, median and longest history at the start."""
    width: int
    links: int
    layers: int
    epochs: int
    seed: int
    rows: list[StaleRow]


def run_state_bench(
    progress: Progress,
    *,
    users: int = 40,
    events: int = 40,
    epochs: int = 2,
    seed: int = 3,
    budgets: Sequence[float] = BUDGETS,
    config: SimulatedConfig | None = None,
) -> StateBench:
    """Train, then replay random events, for each activation and budget."""
    log = config or SimulatedConfig(users=120, items=400, topics=8, sessions=60, slots=6, seed=seed)
    rows: list[StaleRow] = []
    with tempfile.TemporaryDirectory(prefix="limerank-bench-") as folder:
        dataset = Dataset.build(simulate(log), out=Path(folder) / "data", quiet=True)
        with progress.bar("replaying events", len(ACTIVATIONS) * len(budgets)) as bar:
            for activation in ACTIVATIONS:
                options = LimeXOR(links=16, activation=activation)
                run = train(
                    options,
                    dataset,
                    out=Path(folder) / activation,
                    epochs=epochs,
                    batch_requests=32,
                    max_history=WINDOW,
                    seed=seed,
                    quiet=True,
                )
                bundle = run.publish(Path(folder) / f"{activation}-store", rows="fp32", quiet=True)
                for budget in budgets:
                    rows.append(_replay(bundle, activation, budget, users, events, seed))
                    bar.advance()
    lengths = np.diff(bundle.histories["offsets"].numpy())[1 : users + 1]
    return StateBench(
        torch=torch.__version__,
        users=users,
        events=events,
        histories=np.percentile(lengths, [0, 50, 100]).tolist(),
        width=options.width,
        links=options.links,
        layers=options.layers,
        epochs=epochs,
        seed=seed,
        rows=rows,
    )


@dataclass
class _Seen:
    changes: list[float] = field(default_factory=list)
    largest: float = 0.0
    deviations: list[float] = field(default_factory=list)
    kept: list[float] = field(default_factory=list)

    def compare(self, approximate: Tensor, exact: Tensor) -> None:
        """Logits [items] of both."""
        change = (approximate - exact).abs()
        self.changes.append(float(change.mean()))
        self.largest = max(self.largest, float(change.max()))
        self.deviations.append(float(exact.std()))
        best, found = (set(logits.topk(TOP).indices.tolist()) for logits in (exact, approximate))
        self.kept.append(len(best & found) / TOP)


@torch.inference_mode()
def _replay(bundle: Bundle, activation: str, budget: float, users: int, events: int, seed: int) -> StaleRow:
    draw, reader, seen = np.random.default_rng(seed), RequestReader(bundle), _Seen()
    source, states = UserSource("approximate", bundle.ranker, reader, stale_budget=budget), UserStates(KEPT)
    source.least_events = 0

    def logits(state: UserState) -> Tensor:
        return score_candidates(bundle.ranker, state, bundle.rows)[:, 0]

    for user in bundle.user_ids.names_of(np.arange(1, users + 1)):
        done: list[Event] = []
        for number in range(events + 1):
            asked = reader.ask(user, {}, done)
            found = states.encode(source, asked)
            if number and found.how == "appended":
                seen.compare(logits(found.state), logits(bundle.ranker.encode_user(reader.inputs(asked))))
            item = bundle.item_ids.names_of([int(draw.integers(1, bundle.manifest.items))])[0]
            features = {"clicked": int(draw.integers(2)), "watched_fraction": float(draw.random())}
            done.append(Event(item, features))
    return StaleRow(
        activation=activation,
        budget=budget,
        requests=users * events,
        appended_fraction=len(seen.changes) / (users * events),
        mean_change=float(np.mean(seen.changes)) if seen.changes else 0.0,
        largest_change=seen.largest,
        logit_deviation=float(np.mean(seen.deviations)) if seen.deviations else 0.0,
        top_kept=float(np.mean(seen.kept)) if seen.kept else 1.0,
    )
