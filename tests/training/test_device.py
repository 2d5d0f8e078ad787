"""Training on another device than the CPU: everything moves there, nothing is lost on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from killing import Killed, KilledAt
from second_device import DEVICE, second_device

from limerank.api.dataset import Dataset
from limerank.config import RunConfig, TrainConfig
from limerank.data.sources.simulated import SimulatedConfig, simulate
from limerank.data.store.dataset import StoredDataset
from limerank.errors import UnavailableError, UsageError
from limerank.models import RANKERS
from limerank.progress import Progress
from limerank.training.steps.device import device_of
from limerank.training.trainer import resume, train

QUIET = Progress(quiet=True)
SETTINGS = TrainConfig(epochs=1, batch_requests=12, max_history=8, clip_norm=1.0, task_weights={"click": 2.0})


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    log = simulate(SimulatedConfig(users=16, items=60, topics=4, sessions=5, slots=5, seed=3))
    return Dataset.build(log, out=tmp_path_factory.mktemp("tiny") / "dataset", quiet=True)


def elsewhere(settings: TrainConfig = SETTINGS, **changes: Any) -> TrainConfig:
    """The second device is no choice for users."""
    return settings.model_copy(update={"device": str(DEVICE), **changes})


def test_the_second_device_is_one() -> None:
    """It computes, comes back, and refuses tensors of the CPU: the tests below could fail."""
    with second_device():
        there = torch.ones(3).to(DEVICE)
        assert there.device == DEVICE
        assert (there * 2 + torch.tensor(1.0)).cpu().tolist() == [3.0, 3.0, 3.0]
        with pytest.raises(RuntimeError, match="a tensor of the CPU meets one of the second device"):
            there + torch.ones(3)
        with pytest.raises(TypeError, match="call cpu"):
            there.numpy()


@pytest.mark.parametrize("name", sorted(RANKERS))
def test_every_ranker_trains_there_as_on_the_cpu(tiny: StoredDataset, tmp_path: Path, name: str) -> None:
    """Batches, weights, optimizer, clipping, task weights and evaluation; what is learned is the same."""
    here = train(RunConfig(dataset=tiny.path, model={"name": name}, train=SETTINGS), tmp_path / "cpu", QUIET)
    with second_device():
        config = RunConfig(dataset=tiny.path, model={"name": name}, train=SETTINGS)
        there = train(config.model_copy(update={"train": elsewhere()}), tmp_path / "there", QUIET)
    assert there.record.device == "meta"
    for part in ("validation", "test"):
        for task, metrics in getattr(here.record, part).items():
            assert getattr(there.record, part)[task].ne == pytest.approx(metrics.ne, abs=2e-3), (part, task)


@pytest.mark.parametrize("order", ["shuffled", "time"])
def test_a_checkpoint_written_there_is_resumed_there(tiny: StoredDataset, tmp_path: Path, order: str) -> None:
    settings = elsewhere(epochs=2, checkpoint_steps=1, order=order)
    config = RunConfig(dataset=tiny.path, model={"name": "lime-mha"}).model_copy(update={"train": settings})
    with second_device():
        whole = train(config, tmp_path / "whole", QUIET)
        with pytest.raises(Killed):
            train(config, tmp_path / "run", KilledAt(3))
        again = resume(tmp_path / "run", QUIET)
    assert (again.path / "model.safetensors").read_bytes() == (whole.path / "model.safetensors").read_bytes()


def test_a_gpu_that_is_not_there_is_said_before_anything_is_read(tmp_path: Path) -> None:
    """Where there is one, asking for the hundredth is the same mistake."""
    config = RunConfig(dataset=tmp_path / "none", model={"name": "mha"}, train=TrainConfig(device="cuda:99"))
    with pytest.raises(UnavailableError, match=r"train.device: cuda:99 is not there"):
        device_of(config.train)
    assert device_of(TrainConfig()).type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize(("asked", "said"), [("gpu", "there is no device 'gpu'"), ("xla", "xla is not there")])
def test_a_device_that_is_none_is_refused_by_its_name(asked: str, said: str) -> None:
    with pytest.raises((UsageError, UnavailableError), match=f"train.device: {said}"):
        device_of(TrainConfig(device=asked))


def test_half_precision_is_refused_where_it_cannot_be() -> None:
    with pytest.raises(UsageError, match="fp16 needs a GPU; on a CPU use bf16"):
        device_of(TrainConfig(device="cpu", precision="fp16"))
