"""Contestants: untrained rankers, exported as bundles and asked through engines, each in the ways it can be served.

Everybody gets what the engine has: item rows that were computed offline (fp16 where rows are factorized, fp32 where
they would have to be widened first), events from tables, prepared user stages, workers. With several threads each
ranker is served in two ways, by the engine's workers and by one worker whose torch has the threads; its better one
counts.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from limerank.bench.engine.made_up_store import MOST_EVENTS, user_with
from limerank.data.store.dataset import StoredDataset
from limerank.errors import DataError
from limerank.models import ItemState, UserState, build_ranker
from limerank.ops.candidate import RowStore
from limerank.ops.candidate.rows import BlockBuffers
from limerank.ops.candidate.streaming import BLOCK
from limerank.serve.bundles.bundle import Bundle
from limerank.serve.bundles.offline import export
from limerank.serve.engine import Engine
from limerank.study.latency.results import Threading
from limerank.study.zoo import served_row_type

TOP = 100
"""Candidates that an answer names."""
KEPT = 2**30
"""Bytes for user states that are kept: those of skylines are large."""


@dataclass(frozen=True)
class Timed:
    """One answer: milliseconds by stage, and how it came about."""

    user_ms: float
    interact_ms: float
    total_ms: float
    path: str
    user_state: str


@dataclass(frozen=True)
class Contestant:
    """One ranker behind one engine."""

    model: str
    engine: Engine
    threading: Threading

    def ask(self, history: int, item_ids: Sequence[str] | None) -> Timed:
        """One request, as any other; a score that is no number is an error."""
        answer = self.engine.answer(user_with(history), item_ids, limit=TOP)
        if not np.isfinite(answer.probabilities).all():
            raise DataError(f"{self.model}: a served probability is not a number; the figures would mean nothing")
        spent = answer.milliseconds
        return Timed(spent["user"], spent["interact"], spent["total"], answer.path, answer.user_state)

    def state(self, history: int) -> UserState:
        """The user stage alone."""
        return self.engine.encode_user(user_with(history)).state

    def interact_ms(self, state: UserState, item_ids: Sequence[str] | None) -> float:
        """The interaction o_c of all candidates, without the head, in blocks that workers deal themselves."""
        rows = None if item_ids is None else torch.from_numpy(self.engine.catalog.rows_of(list(item_ids)))
        started = time.perf_counter()
        self.engine.workers.run(partial(interactions, self.engine, state, rows))
        return 1000 * (time.perf_counter() - started)


def interactions(engine: Engine, user: UserState, index: Tensor | None, keep: list[Tensor] | None = None) -> None:
    """o_c of the candidates that `index` names, or of all items; each block is dropped unless somebody keeps it."""
    stored = engine.bundle.rows
    store = RowStore(stored.rows, stored.head_part[:, :0], stored.scale)
    count = len(store) if index is None else len(index)
    spare: deque[BlockBuffers] = deque()

    def work(start: int) -> Tensor | None:
        try:
            buffers = spare.pop()
        except IndexError:  # as many are made as blocks are under way at once
            buffers = BlockBuffers(store, min(BLOCK, count))
        stop = min(start + BLOCK, count)
        chosen = None if index is None else index[start:stop]
        part = store.between(start, stop) if index is None else store
        made = None
        for _, last, rows, empty in part.blocks(chosen, BLOCK, buffers=buffers):
            made = engine.ranker.interact(user, ItemState(rows, empty), torch.tensor([0, len(rows)]))[:last]
        spare.append(buffers)
        return made if keep is not None else None

    made = engine.workers.deal([partial(work, start) for start in range(0, count, BLOCK)])
    if keep is not None:
        keep.extend(part for part in made if part is not None)


def export_untrained(dataset: StoredDataset, section: dict[str, Any], folder: Path) -> Bundle:
    """A ranker with the weights it starts with, as a bundle."""
    torch.manual_seed(0)
    ranker = build_ranker(section, dataset.encoders.space(), len(dataset.schema.tasks), "--models").eval()
    return export(ranker, section, dataset, folder, max_history=MOST_EVENTS, row_type=served_row_type(ranker))


@contextmanager
def open_contestants(
    bundles: dict[str, Bundle], threads: int, *, states: int = 0
) -> Iterator[Callable[[], list[Contestant]]]:
    """Every ranker in every way, opened when first asked for and closed together."""
    with ExitStack() as stack:
        opened: list[Contestant] = []

        def contestants() -> list[Contestant]:
            if not opened:
                for model, bundle in bundles.items():
                    engine = stack.enter_context(Engine(bundle, threads=threads, states=states))
                    opened.append(Contestant(model, engine, "workers"))
                    if threads > 1:
                        alone = stack.enter_context(Engine(bundle, threads=1, states=states))
                        alone.workers.run(partial(torch.set_num_threads, threads))
                        opened.append(Contestant(model, alone, "torch"))
            return opened

        yield contestants


def some_names(bundle: Bundle, count: int) -> list[str]:
    """So many items of a bundle, at random; all of them are named too."""
    items = bundle.manifest.items - 1
    return bundle.item_ids.names_of(np.random.default_rng(1).choice(items, min(count, items), replace=False) + 1)
