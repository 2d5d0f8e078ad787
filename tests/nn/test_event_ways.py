"""What happened with an item is projected once per way it can happen, where that is less work: the same numbers."""

from __future__ import annotations

import pytest
import torch

from limerank.data.batches import RequestLoader
from limerank.data.store.dataset import StoredDataset
from limerank.models import build_ranker
from limerank.nn import features
from limerank.splits import Part


def test_each_way_once_equals_each_event(dataset: StoredDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """E and the gradients of every parameter of the tower, over all combinations of two event features."""
    torch.manual_seed(0)
    tower = build_ranker({"name": "ttsn"}, dataset.encoders.space(), 1, "test").eval().item_tower
    loader = RequestLoader(dataset, Part.TEST, batch_requests=20, max_history=20)
    history = loader.user_inputs(loader.requests[:20]).history
    assert len(tower.event_sizes) == 2
    found = []
    for events_per_way, each_way_once in ((0, True), (10**9, False)):
        monkeypatch.setattr(features, "EVENTS_PER_WAY", events_per_way)
        assert tower.event_embedding is not None
        rows: list[int] = []
        hook = tower.event_embedding.register_forward_hook(lambda _, given, __, rows=rows: rows.append(len(given[0])))
        embedded = tower.history(history)
        hook.remove()
        assert (rows == [len(history.item_of_event)]) is not each_way_once
        gradients = torch.autograd.grad(embedded.square().sum(), list(tower.parameters()))
        found.append([embedded.detach(), *gradients])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
