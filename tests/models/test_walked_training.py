"""Rankers that walk long histories in training learn the same as with plain operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from limerank.batch import RequestBatch
from limerank.data.batches import RequestLoader
from limerank.data.store.dataset import StoredDataset
from limerank.models import Ranker, build_ranker
from limerank.nn import features
from limerank.ops.gathered import attend, weigh
from limerank.splits import Part

MODELS = [
    {"name": "mha"},
    {"name": "lime-mha"},
    {"name": "lime-mha", "links": 4, "context": "after"},
    {"name": "lime-mha", "select_from": 40},
    {"name": "lime-mha", "encoding": "position"},
    {"name": "lime-hstu", "layers": 1},
    {"name": "pma"},
    {"name": "din"},
    {"name": "din", "hidden": (9,), "normalization": "softmax"},
    {"name": "din", "hidden": (9, 7, 5), "encoding": "position"},
]


def ranker_and_batch(dataset: StoredDataset, model: dict[str, Any]) -> tuple[Ranker, RequestBatch]:
    """In fp64; histories of no event to twenty."""
    torch.manual_seed(0)
    ranker = build_ranker({**model, "unknown_rate": 0.0}, dataset.encoders.space(), 2, "test").double().train()
    loader = RequestLoader(dataset, Part.TRAIN, batch_requests=12, max_history=20)
    order = loader.history_lengths(loader.requests).argsort(kind="stable")[:: len(loader.requests) // 11]
    batch = loader.assemble(loader.requests[order])
    assert int(batch.inputs.history.offsets.diff().min()) == 0
    return ranker, batch.map(lambda tensor: tensor.double() if tensor.is_floating_point() else tensor)


def learned(ranker: Ranker, batch: RequestBatch) -> dict[str, Tensor]:
    ranker.zero_grad()
    loss = ranker.loss(batch)
    loss.backward()
    found = {
        name: parameter.grad.to_dense() for name, parameter in ranker.named_parameters() if parameter.grad is not None
    }
    return {"loss": loss.detach(), **found}


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "again"])
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_the_same_loss_and_gradients(
    dataset: StoredDataset, model: dict[str, Any], kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Walked and with rows held once, against neither: the loss and every parameter's gradient, in fp64."""
    ranker, batch = ranker_and_batch(dataset, model)
    found = []
    for walks in (True, False):
        for module in (attend, weigh):
            monkeypatch.setattr(module, "WORTHWHILE", 0 if walks else 10**9)
        monkeypatch.setattr(attend, "WIDEST", 16)
        monkeypatch.setattr(features, "EVENTS_PER_WAY", 0 if walks else 10**9)
        monkeypatch.setattr(features, "EVENTS_PER_PAIR", 0.0 if walks else 1e9)
        monkeypatch.setattr(weigh, "KEPT", 2**24 if kept else 0)
        monkeypatch.setattr(weigh, "PAIRS_PER_BLOCK", 2048 if kept else 30)
        found.append(learned(ranker, batch))
    assert found[0].keys() == found[1].keys()
    for name, value in found[0].items():
        assert torch.allclose(value, found[1][name], rtol=1e-8, atol=1e-11), name


@pytest.mark.parametrize(("name", "expected"), [("mha", "pool_rows"), ("lime-mha", "attend_by_head"), ("din", "apply")])
def test_walks_are_taken(dataset: StoredDataset, name: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above compares two ways: the walk is really the one that ran."""
    ranker, batch = ranker_and_batch(dataset, {"name": name})
    for module in (attend, weigh):
        monkeypatch.setattr(module, "WORTHWHILE", 0)
    ways: list[tuple[Any, str]] = [(attend, "attend_by_head"), (attend, "pool_rows"), (weigh._Weigh, "apply")]
    taken: list[str] = []
    for owner, way in ways:
        monkeypatch.setattr(owner, way, noting(taken, way, getattr(owner, way)))
    ranker.loss(batch)
    assert taken == [expected]


def noting(taken: list[str], name: str, original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The same function, which notes that it was called."""

    def called(*given: Any) -> Tensor:
        taken.append(name)
        return original(*given)

    return called
