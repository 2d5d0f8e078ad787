"""Latency against candidates and history (paper, figure `main_latency_analysis`): ratios measured in one process.

Every ranker is served as well as we know how: item rows are precomputed for all of them (for the MHA skyline these are
its query projections, in fp32), candidates are scored in cache-sized blocks, softmax attention over the whole
history is PyTorch's fused kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from pydantic import BaseModel

from limerank.batch import Features, UserInputs
from limerank.bench.machine import copy_gbytes, gemm_gflops, interleaved_medians
from limerank.data.batches import make_history
from limerank.data.store.dataset import StoredDataset
from limerank.models import Ranker, UserState
from limerank.ops.candidate import RowStore
from limerank.schema import UNKNOWN_INDEX, Role
from limerank.serve.bundles.offline import compute_rows
from limerank.serve.scorer import choose_path, score_candidates
from limerank.study.zoo import served_row_type

MINUTE = 60_000


class Latency(BaseModel):
    """One ranker at one size; user stage and candidate stage apart, because the first hides behind retrieval."""

    model: str
    history: int
    candidates: int
    user_ms: float
    score_ms: float
    path: str

    @property
    def total_ms(self) -> float:
        """Both stages, one after the other."""
        return self.user_ms + self.score_ms

    @property
    def us_per_candidate(self) -> float:
        """Microseconds each candidate costs once the user stage is done."""
        return 1000 * self.score_ms / self.candidates


class Peaks(BaseModel):
    """What the machine could do at most, in the same process and with the same threads."""

    threads: int
    gemm_gflops: float
    copy_gbytes_per_second: float


@dataclass(frozen=True)
class Contestant:
    """A ranker with the item rows it is served from."""

    ranker: Ranker
    rows: RowStore


def measure_peaks() -> Peaks:
    """This machine's peaks, now."""
    return Peaks(threads=torch.get_num_threads(), gemm_gflops=gemm_gflops(), copy_gbytes_per_second=copy_gbytes())


def contestants(rankers: Mapping[str, Ranker], dataset: StoredDataset) -> dict[str, Contestant]:
    """Rankers with their rows."""
    return {
        name: Contestant(ranker.eval(), compute_rows(ranker, dataset.item_table, served_row_type(ranker)))
        for name, ranker in rankers.items()
    }


def random_inputs(dataset: StoredDataset, history: int, seed: int = 0) -> UserInputs:
    """A request with a random history of any length, an event a minute; timings do not depend on the values."""
    generator = np.random.default_rng(seed)
    items = generator.integers(1, len(dataset.item_table), history)
    events = [generator.integers(UNKNOWN_INDEX, encoder.size, history) for encoder in dataset.encoders.event]
    stacked = np.stack(events, axis=1) if events else np.zeros((history, 0), dtype=np.int64)
    context = torch.full((1, len(dataset.encoders.of(Role.CONTEXT))), UNKNOWN_INDEX)
    return UserInputs(
        users=dataset.user_table.take(torch.tensor([0])),
        context=Features(context),
        history=make_history(
            dataset.item_table,
            items,
            Features(torch.from_numpy(stacked.astype(np.int64))),
            np.array([0, history]),
            MINUTE * np.arange(history),
        ),
        times=torch.tensor([MINUTE * history]),
    )


def compare(
    entries: Mapping[str, Contestant], dataset: StoredDataset, *, history: int, candidates: int, repeats: int = 9
) -> list[Latency]:
    """All contestants at one size, interleaved, medians."""
    inputs = random_inputs(dataset, history)
    index = torch.from_numpy(np.random.default_rng(1).integers(1, len(dataset.item_table), candidates))
    with torch.inference_mode():
        users = {name: entry.ranker.encode_user(inputs) for name, entry in entries.items()}
        user_seconds = interleaved_medians([_user_stage(entry, inputs) for entry in entries.values()], repeats)
        score_seconds = interleaved_medians(
            [_candidate_stage(entry, users[name], index) for name, entry in entries.items()], repeats
        )
    return [
        Latency(
            model=name,
            history=history,
            candidates=candidates,
            user_ms=1000 * user,
            score_ms=1000 * score,
            path=choose_path(entry.ranker, candidates),
        )
        for (name, entry), user, score in zip(entries.items(), user_seconds, score_seconds, strict=True)
    ]


def sweep(
    entries: Mapping[str, Contestant],
    dataset: StoredDataset,
    *,
    candidates: Sequence[int],
    histories: Sequence[int],
    base_candidates: int,
    base_history: int,
    repeats: int,
    done: Callable[[], None],
) -> tuple[list[Latency], list[Latency]]:
    """Latency against candidates at the base history, and against history at the base number of candidates."""
    by_candidates: list[Latency] = []
    for count in candidates:
        by_candidates += compare(entries, dataset, history=base_history, candidates=count, repeats=repeats)
        done()
    by_history: list[Latency] = []
    for length in histories:
        by_history += compare(entries, dataset, history=length, candidates=base_candidates, repeats=repeats)
        done()
    return by_candidates, by_history


def _user_stage(entry: Contestant, inputs: UserInputs) -> Callable[[], object]:
    return lambda: entry.ranker.encode_user(inputs)


def _candidate_stage(entry: Contestant, user: UserState, index: torch.Tensor) -> Callable[[], object]:
    return lambda: score_candidates(entry.ranker, user, entry.rows, index)
