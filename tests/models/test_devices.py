"""Every ranker can run on another device than the CPU; no GPU is needed to see that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from limerank.data.batches import RequestLoader
from limerank.data.eventlog import EventLog
from limerank.data.splits import Part
from limerank.models import Ranker

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


def test_no_tensor_is_made_on_the_cpu_by_default(ranker: Ranker, log: EventLog) -> None:
    """Several requests, in training and predicting."""
    loader = RequestLoader(log, Part.TRAIN, batch_requests=8, max_history=20)
    batch = loader.assemble(loader.requests[:8])
    with DeviceIsNamed():
        ranker.loss(batch).backward()
        with torch.no_grad():
            ranker(batch)


def test_a_request_runs_where_its_tensors_are(ranker: Ranker, log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the meta device, which refuses to mix with the CPU and has no values that Python could ask for."""
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: False)  # it does not know this device
    loader = RequestLoader(log, Part.TEST, batch_requests=1, max_history=20)
    batch = loader.assemble(loader.requests[:1])
    elsewhere = batch.map(lambda tensor: tensor.to("meta"))
    logits = ranker.to("meta")(elsewhere)
    assert logits.device.type == "meta"
    assert logits.shape == batch.labels.shape
