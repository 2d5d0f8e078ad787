"""Bundles that no run made: chance weights, quick to have, without a report."""

from __future__ import annotations

from pathlib import Path

import torch

from limerank.data.store.dataset import StoredDataset
from limerank.models import build_ranker
from limerank.serve.bundles.bundle import Bundle
from limerank.serve.bundles.offline import export
from limerank.serve.bundles.store import BundleStore


def chance_bundle(name: str, dataset: StoredDataset, store: Path, max_history: int = 20, seed: int = 5) -> Bundle:
    """A bundle of a ranker with the weights it starts with, made active."""
    torch.manual_seed(seed)
    ranker = build_ranker({"name": name}, dataset.encoders.space(), len(dataset.schema.tasks), "test").eval()
    bundle = export(ranker, {"name": name}, dataset, store, max_history=max_history)
    BundleStore(store).make_active(bundle)
    return bundle
