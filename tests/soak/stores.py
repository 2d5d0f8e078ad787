"""Stores for long runs: several bundles of one log, whose scores differ, and requests that every bundle can answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from limerank.bench.engine.made_up_store import made_up_dataset
from limerank.data.store.dataset import StoredDataset
from limerank.models import build_ranker
from limerank.serve.bundles.offline import export
from limerank.serve.bundles.store import BundleStore
from limerank.serve.engine import Engine

MODEL: dict[str, Any] = {"name": "lime-mha", "width": 32, "heads": 4, "links": 16}
SCALES = 1.4
"""Starting weights are small: scores of two bundles must differ by more than rounding."""
SAME = 1e-5
MAX_HISTORY = 256


@dataclass(frozen=True)
class SoakStore:
    """A store, its bundles, the first of which is active, and ids to ask with."""

    path: Path
    bundles: list[str]
    users: list[str]
    items: list[str]


def store_of(dataset: StoredDataset, path: Path, *, bundles: int = 2, model: dict[str, Any] = MODEL) -> SoakStore:
    """Bundles of chance weights, each of its own."""
    made = []
    for seed in range(bundles):
        torch.manual_seed(seed)
        ranker = build_ranker(model, dataset.encoders.space(), len(dataset.schema.tasks), "soak")
        with torch.no_grad():
            for parameter in ranker.parameters():
                parameter.mul_(SCALES)
        made.append(export(ranker.eval(), model, dataset, path, max_history=MAX_HISTORY))
    store = BundleStore(path)
    for bundle in reversed(made):
        store.make_active(bundle)
    first = made[0]
    return SoakStore(
        path,
        [bundle.manifest.id for bundle in made],
        first.user_ids.names_of(range(1, first.manifest.users)),
        first.item_ids.names_of(range(1, first.manifest.items)),
    )


def made_up_soak_store(folder: Path, *, items: int = 20_000, bundles: int = 3) -> SoakStore:
    """A larger one, from a made-up log."""
    return store_of(made_up_dataset(folder / "dataset", items, (16, 256), 0), folder / "store", bundles=bundles)


def references(store: SoakStore, requests: Sequence[tuple[str, list[str]]]) -> dict[str, list[dict[str, float]]]:
    """The scores of every request by every bundle, computed here; bundles are told apart by them."""
    scores = {}
    for bundle in store.bundles:
        with Engine.open(store.path, bundle, threads=1, states=0) as engine:
            answers = [engine.answer(user, items) for user, items in requests]
        scores[bundle] = [dict(zip(one.item_ids, one.probabilities[:, 0].tolist(), strict=True)) for one in answers]
    return scores


def agrees(found: dict[str, float], wanted: dict[str, float]) -> bool:
    """Whether two rankings have the same items with the same scores."""
    return found.keys() == wanted.keys() and all(abs(found[item] - wanted[item]) <= SAME for item in wanted)
