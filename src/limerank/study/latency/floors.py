"""The least time a request can take: counted matrix products at the GEMM peak, or the least bytes at the copy peak.

The larger of the two is the floor of a stage. Formulas count what a stage computes at best (the cheapest order of
products that is exact, in fp32); elementwise work, exponentials, ids and calls are not counted, so no fp32 program is
faster. Item rows and events that are tables are read, not computed, for
skylines as for LIME. Per event and per candidate, with a = QK width, H heads, l links, h the head's hidden width:

    lime-mha   pool the history: min(2 l (a + d), 4 H l d); a candidate: min(2 H l h, 2 l d + 2 d h)
    lime-xor   per layer 4 d^2 + 2 l d + 3 min(2 H l d, 2 d a + 2 l a); the last layer is read by links only
    mha        nothing per event; a candidate reads all of them: 2 N (a + d)
    hstu       per layer 2 d (2 d + 2 a) + N (a + d) + 2 d^2 of an event (half of all pairs), the last one keys and
               values only; a candidate 2 d (2 d + 2 a) + 2 (N + 1) (a + d) + 2 d^2 per layer

Other rankers are counted by running them (`torch.utils.flop_counter`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode

from limerank.batch import UserInputs
from limerank.models import ItemState, Ranker
from limerank.ops.candidate import RowStore
from limerank.study.latency.results import MachinePeaks
from limerank.study.zoo import state_bytes

FP32 = 4
FEW = 64
"""Candidates that are counted for rankers without a formula; the work is linear in them."""


@dataclass(frozen=True)
class Shape:
    """One request to one ranker; letters as in the formulas."""

    history: int
    candidates: int
    width: int
    qk: int
    heads: int
    links: int
    hidden: int
    layers: int
    row_bytes: int
    """Stored per item."""


@dataclass(frozen=True)
class Work:
    """Of one stage: FLOP of matrix products, and bytes."""

    flops: float
    bytes: float

    def least_ms(self, peaks: MachinePeaks) -> float:
        """At the machine's peaks."""
        seconds = max(self.flops / (1e9 * peaks.gemm_gflops), self.bytes / (1e9 * peaks.copy_gbytes_per_second))
        return 1000 * seconds


def user_work(model: str, shape: Shape) -> Work | None:
    """The user stage from nothing; None for rankers without a formula."""
    n, d, a, links = shape.history, shape.width, shape.qk, shape.links
    rows = shape.heads * links  # H * l
    if model == "lime-mha":
        cached = Work(2 * links * (a + d) * n, FP32 * (a + d) * n)
        absorbed = Work(4 * rows * d * n, FP32 * d * n)
        return cached if cached.flops <= absorbed.flops else absorbed
    if model == "lime-xor":
        projection = min(2 * rows * d, 2 * d * a + 2 * links * a)
        full = 4 * d * d + 2 * links * d + 3 * projection
        once = shape.layers * 2 * links * d * (3 * d + 2 * a)
        return Work(n * ((shape.layers - 1) * full + 2 * projection) + once, FP32 * d * n * (2 * shape.layers - 1))
    if model == "mha":
        return Work(0, FP32 * (a + d) * n)
    if model == "hstu":
        layer = n * (4 * d * (d + a) + 2 * d * d) + n * n * (a + d)
        last = 2 * d * (a + d) * n
        return Work((shape.layers - 1) * layer + last, FP32 * n * (d + shape.layers * (a + d)))
    return None


def interact_work(model: str, shape: Shape, *, head: bool) -> Work | None:
    """All candidates, with the head's later layers or without any head; None for rankers without a formula."""
    d, a, links, h = shape.width, shape.qk, shape.links, shape.hidden
    rows = shape.row_bytes * shape.candidates
    later = 2 * h if head else 0
    if model in ("lime-mha", "lime-xor"):
        each = min(2 * shape.heads * links * h, 2 * links * d + 2 * d * h) if head else 2 * links * d
        return Work((each + later) * shape.candidates, rows)
    first = 2 * d * h + later if head else 0
    if model == "mha":
        each = 2 * shape.history * (a + d) + first
        return Work(each * shape.candidates, rows + FP32 * shape.history * (a + d))
    if model == "hstu":
        layer = 4 * d * (d + a) + 2 * (shape.history + 1) * (a + d) + 2 * d * d
        return Work(
            (shape.layers * layer + first) * shape.candidates, rows + FP32 * shape.layers * shape.history * (a + d)
        )
    return None


@torch.no_grad()
def counted_work(ranker: Ranker, inputs: UserInputs, store: RowStore, shape: Shape) -> tuple[Work, Work]:
    """Both stages of a ranker without a formula, counted while it runs; its head is not."""
    with FlopCounterMode(display=False) as user_counter:
        user = ranker.encode_user(inputs)
    rows, _ = store.widened(torch.arange(FEW) % len(store))
    with FlopCounterMode(display=False) as counter:
        ranker.interact(user, ItemState(rows, rows.new_zeros(FEW, 0)), torch.tensor([0, FEW]))
    state = state_bytes(user)
    return (
        Work(user_counter.get_total_flops(), state),
        Work(counter.get_total_flops() / FEW * shape.candidates, state + shape.row_bytes * shape.candidates),
    )
