"""Every ranker can run on another device than the CPU; no GPU is needed to see that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from limerank.data.batches import RequestLoader
from limerank.data.store.dataset import StoredDataset
from limerank.models import Ranker, build_ranker
from limerank.splits import Part

FACTORIES = {
    torch.arange, torch.as_tensor, torch.empty, torch.eye, torch.full, torch.linspace, torch.ones, torch.rand,
    torch.randint, torch.randn, torch.randperm, torch.tensor, torch.tril_indices, torch.triu_indices, torch.zeros,
}  # fmt: skip


class DeviceIsNamed(TorchFunctionMode):
    """Refuses a new tensor that is put nowhere in particular, which would be the CPU."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        assert func not in FACTORIES or kwargs.get("device") is not None, f"{func} without a device"
        return func(*args, **kwargs)


@pytest.mark.parametrize("training", [True, False])
def test_no_tensor_is_made_on_the_cpu_by_default(ranker: Ranker, dataset: StoredDataset, training: bool) -> None:
    """Several requests, in training (own losses, unknown values) and predicting."""
    loader = RequestLoader(dataset, Part.TRAIN, batch_requests=8, max_history=20)
    batch = loader.assemble(loader.requests[:8])
    ranker.train(training)
    with DeviceIsNamed():
        ranker.loss(batch).backward()
        with torch.no_grad():
            ranker(batch)


@pytest.mark.parametrize(
    "model",
    [
        {"name": "performer", "redraw": 1},
        {"name": "lime-xor", "dropout": 0.1, "select_from": 40, "context": "after"},
        {"name": "lime-mha", "coarse_links": 4, "encoding": "recent_position"},
        {"name": "din", "activation": "dice", "normalization": "softmax"},
        {"name": "sim", "search": "hard", "category": "topic"},
        {"name": "inttower", "gate": True, "contrastive": 0.1},
        {"name": "sasrec", "readout": "last"},
        {"name": "ttsn", "interaction": "dot"},
        {"name": "mamba", "readout": "state"},
    ],
    ids=lambda model: model["name"],
)
def test_nor_by_options(dataset: StoredDataset, model: dict[str, Any]) -> None:
    """The same for what is off by default."""
    loader = RequestLoader(dataset, Part.TRAIN, batch_requests=8, max_history=20)
    batch = loader.assemble(loader.requests[:8])
    ranker = build_ranker(model, dataset.encoders.space(), len(dataset.schema.tasks), "test").train()
    with DeviceIsNamed():
        ranker.loss(batch).backward()


def test_a_request_runs_where_its_tensors_are(
    ranker: Ranker, dataset: StoredDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the meta device, which refuses to mix with the CPU and has no values that Python could ask for."""
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: False)  # it does not know this device
    loader = RequestLoader(dataset, Part.TEST, batch_requests=1, max_history=20)
    batch = loader.assemble(loader.requests[:1])
    elsewhere = batch.map(lambda tensor: tensor.to("meta"))
    logits = ranker.to("meta")(elsewhere)
    assert logits.device.type == "meta"
    assert logits.shape == batch.labels.shape
