"""The tower runs once per distinct pair of item and way, where that is less work: the same numbers."""

from __future__ import annotations

import pytest
import torch

from limerank.data.batches import RequestLoader
from limerank.data.store.dataset import StoredDataset
from limerank.models import build_ranker
from limerank.nn import features
from limerank.splits import Part


@pytest.mark.parametrize("shortcut", [True, False])
@pytest.mark.parametrize("with_events", [True, False])
def test_each_pair_once_equals_each_event(
    dataset: StoredDataset, shortcut: bool, with_events: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E and the gradients of every parameter of the tower in fp64; histories with and without event features."""
    torch.manual_seed(0)
    space = dataset.encoders.space()
    space = space if with_events else space.model_copy(update={"event": ()})
    ranker = build_ranker({"name": "ttsn", "tower_shortcut": shortcut}, space, 1, "test")
    tower = ranker.double().eval().item_tower
    loader = RequestLoader(dataset, Part.TEST, batch_requests=40, max_history=20)
    history = loader.user_inputs(loader.requests[:40]).history
    monkeypatch.setattr(features, "EVENTS_PER_WAY", 0)
    found = []
    for events_per_pair in (0.0, 1e9):
        monkeypatch.setattr(features, "EVENTS_PER_PAIR", events_per_pair)
        gathered = tower.distinct_history(history)
        assert (gathered.index is not None) is (events_per_pair == 0)
        assert events_per_pair or len(gathered.rows) < len(history.item_of_event)
        embedded = gathered.all()
        torch.testing.assert_close(embedded, tower.history(history), rtol=0, atol=0)
        gradients = torch.autograd.grad(embedded.square().sum(), list(tower.parameters()), allow_unused=True)
        found.append([embedded.detach(), *(g for g in gradients if g is not None)])
    assert len(found[0]) == len(found[1])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
