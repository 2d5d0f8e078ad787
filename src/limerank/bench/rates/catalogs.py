"""Exports of made-up catalogs by one core, and requests to real engines on what they published."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from limerank.bench.engine.made_up_store import MOST_EVENTS, made_up_dataset, user_with
from limerank.bench.machine import interleaved_times
from limerank.models import build_ranker
from limerank.models.serving import prepare_user_stage
from limerank.serve.bundles.bundle import Bundle
from limerank.serve.bundles.offline import export_bundle
from limerank.serve.engine import Engine
from limerank.serve.states import UserSource

TOP = 100
SHORT = 16
"""Events of the history beside which the rest of a request is measured."""


class Catalogs:
    """Bundles of one ranker by their number of items, made when they are first asked for."""

    def __init__(self, folder: Path, model: Mapping[str, Any], histories: Sequence[int], rounds: int) -> None:
        self.folder, self.model, self.rounds = folder, dict(model), rounds
        self.histories = sorted({SHORT, *histories})
        self._bundles: dict[int, Bundle] = {}
        self._seconds: dict[int, float] = {}

    def bundle(self, items: int) -> Bundle:
        """The bundle of a catalog with so many items."""
        if items not in self._bundles:
            self._make(items)
        return self._bundles[items]

    def export_seconds(self, items: int) -> float:
        """Core-seconds of its export: the least of some."""
        self.bundle(items)
        return self._seconds[items]

    def _make(self, items: int) -> None:
        dataset = made_up_dataset(self.folder / f"log-{items}", items, self.histories)
        torch.manual_seed(0)
        ranker = build_ranker(self.model, dataset.encoders.space(), len(dataset.schema.tasks), "model").eval()
        times = []
        for number in range(self.rounds):  # to a store of its own each: rows of an earlier bundle would be copied
            store = self.folder / f"store-{items}-{number}"
            started = time.process_time()
            made = export_bundle(ranker, self.model, dataset, store, max_history=MOST_EVENTS, threads=1)
            times.append(time.process_time() - started)
        self._bundles[items], self._seconds[items] = made.bundle, min(times)


def user_seconds(bundle: Bundle, histories: Sequence[int], repeats: int, *, known: bool) -> list[float]:
    """Core-seconds of the user stage of histories of these lengths.

    `known`: what the ranker reads of each event was kept since an earlier request, as engines do for catalogs of
    some millions of items; else it is computed, as for larger ones.
    """
    with Engine(bundle, threads=1, states=0, histories=None) as engine:
        if not known:
            stages = engine.stages
            stage = prepare_user_stage(bundle.ranker, bundle.item_table, bytes_allowed=0, deal=engine.workers.deal)
            stages.users = UserSource(
                bundle.manifest.id,
                stage.ranker,
                stages.requests,
                encode=stage,
                embed=stage.history,
                deal=engine.workers.deal,
            )
        works = [partial(engine.encode_user, user_with(history)) for history in histories]
        return [median(times) for times in interleaved_times(works, repeats, time.process_time)]


def interaction_seconds(bundle: Bundle, candidates: Sequence[int], repeats: int) -> list[float]:
    """Core-seconds of a request behind its user stage: ids to rows, scores, the best of them; named candidates."""
    draw, items = np.random.default_rng(1), bundle.manifest.items - 1
    names = [bundle.item_ids.names_of(draw.choice(items, count, replace=False) + 1) for count in candidates]
    user = user_with(SHORT)
    with Engine(bundle, threads=1, states=0, histories=None) as engine:
        works = [partial(engine.answer, user, chosen, limit=min(TOP, len(chosen))) for chosen in names]
        user_stage, *times = interleaved_times([partial(engine.encode_user, user), *works], repeats, time.process_time)
    return [_beside(record, user_stage) for record in times]


def scan_seconds(bundles: Sequence[Bundle], repeats: int) -> list[float]:
    """The same for whole catalogs."""
    user = user_with(SHORT)
    with ExitStack() as stack:
        engines = [stack.enter_context(Engine(one, threads=1, states=0, histories=None)) for one in bundles]
        works = [partial(engine.answer, user, limit=TOP) for engine in engines]
        user_stage, *times = interleaved_times(
            [partial(engines[0].encode_user, user), *works], repeats, time.process_time
        )
    return [_beside(record, user_stage) for record in times]


def _beside(whole: Sequence[float], user_stage: Sequence[float]) -> float:
    """What a request took besides its user stage; never less than a tenth, however the clock jumped."""
    return max(median(whole) - median(user_stage), median(whole) / 10)
