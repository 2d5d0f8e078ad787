"""What rankers of equal rank cost in serving: milliseconds, bytes, and one event more."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from limerank.batch import UserInputs
from limerank.bench.machine import interleaved_times
from limerank.bench.made_up import random_request
from limerank.data.store.dataset import StoredDataset
from limerank.models import Ranker, UserState
from limerank.models.incremental import Events, IncrementalUser, incremental_user
from limerank.ops.candidate import RowStore
from limerank.serve.bundles.offline import compute_rows
from limerank.serve.scorer import choose_path, score_candidates
from limerank.study.ablation.results import Cost
from limerank.study.zoo import served_row_type, state_bytes

HISTORY, CANDIDATES = 1024, 4096


@dataclass(frozen=True)
class _Served:
    """A ranker with its rows, one request, and the request's user state."""

    ranker: Ranker
    rows: RowStore
    inputs: UserInputs
    one_more: UserInputs
    """A history that is the appended event alone."""
    index: torch.Tensor

    def user_stage(self) -> UserState:
        return self.ranker.encode_user(self.inputs)


def measure_costs(
    rankers: Mapping[str, Ranker],
    dataset: StoredDataset,
    *,
    history: int = HISTORY,
    candidates: int = CANDIDATES,
    repeats: int = 9,
) -> list[Cost]:
    """All rankers at one size, in turns, medians of CPU time; on one thread, which a worker of the engine has."""
    space, before = dataset.encoders.space(), torch.get_num_threads()
    generator = torch.Generator().manual_seed(1)
    index = torch.randint(1, len(dataset.item_table), (candidates,), generator=generator)
    inputs, one_more = random_request(space, history), random_request(space, 1, seed=1)
    served = {
        name: _Served(ranker.eval(), _rows(ranker, dataset), inputs, one_more, index)
        for name, ranker in rankers.items()
    }
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            states = {name: one.user_stage() for name, one in served.items()}
            growing = {name: incremental_user(one.ranker) for name, one in served.items()}
            users = _medians([one.user_stage for one in served.values()], repeats)
            scores = _medians([_candidate_stage(one, states[name]) for name, one in served.items()], repeats)
            appended = {name: _appending(served[name], user) for name, user in growing.items() if user is not None}
            appends = dict(zip(appended, _medians([append for append, _ in appended.values()], repeats), strict=True))
    finally:
        torch.set_num_threads(before)
    return [
        Cost(
            model=name,
            history=history,
            candidates=candidates,
            user_ms=1000 * user,
            us_per_candidate=1e6 * score / candidates,
            path=choose_path(one.ranker, candidates),
            bytes_per_item=one.rows.row_bytes,
            bytes_per_user=state_bytes(states[name]),
            kept_bytes=appended[name][1] if name in appended else None,
            append_us=1e6 * appends.get(name, user),
            appended=name in appended,
            row_type=served_row_type(one.ranker),
        )
        for (name, one), user, score in zip(served.items(), users, scores, strict=True)
    ]


def _medians(contestants: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Of the CPU time: on one thread that is the time that passes, without what others took of the core."""
    return [median(times) for times in interleaved_times(contestants, repeats, time.process_time)]


def _rows(ranker: Ranker, dataset: StoredDataset) -> RowStore:
    return compute_rows(ranker, dataset.item_table, served_row_type(ranker))


def _candidate_stage(one: _Served, state: UserState) -> Callable[[], object]:
    return lambda: score_candidates(one.ranker, state, one.rows, one.index)


def _appending(one: _Served, user: IncrementalUser) -> tuple[Callable[[], object], int]:
    """From one event more to what candidates read, and the bytes that are kept meanwhile."""
    context = one.ranker.context_tower(one.inputs.users, one.inputs.context)
    reading = user.start(Events(one.ranker.history(one.inputs), one.inputs.history.times), context)
    kept = reading.bytes

    def append() -> UserState:
        reading.append(Events(one.ranker.history(one.one_more), one.one_more.history.times))
        return user.finish(reading, context)

    return append, kept
