"""Where a ranker trains: `train.device` and `train.precision`, and batches that follow the ranker there."""

from __future__ import annotations

import torch

from limerank.batch import RequestBatch
from limerank.config import TrainConfig
from limerank.errors import UnavailableError, UsageError

FIX = "set it to auto, cpu, or cuda where there is a GPU"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def device_of(config: TrainConfig) -> torch.device:
    """The device that is asked for; one that is not there, or that cannot compute so, is an error that says so."""
    try:
        device = torch.device(_name(config.device))
    except RuntimeError:
        raise UsageError(f"train.device: there is no device '{config.device}'; {FIX}") from None
    if device.type == "cuda":
        _check_gpu(device, config)
    elif config.precision == "fp16":
        raise UsageError("train.precision: fp16 needs a GPU; on a CPU use bf16 or fp32")
    try:
        torch.empty(0).to(device)
    except (RuntimeError, AssertionError) as refused:  # which of the two is a matter of the device
        reason = str(refused).splitlines()[0]
        raise UnavailableError(f"train.device: {config.device} is not there ({reason}); {FIX}") from None
    return device


def moved(batch: RequestBatch, device: torch.device) -> RequestBatch:
    """A batch on a device; the copy of a pinned one does not wait."""
    if device.type == "cpu":
        return batch
    return batch.map(lambda tensor: tensor.to(device, non_blocking=True))


def _name(asked: str) -> str:
    if asked != "auto":
        return asked
    return "cuda" if torch.cuda.is_available() else "cpu"


def _check_gpu(device: torch.device, config: TrainConfig) -> None:
    if not torch.cuda.is_available():
        built = "sees no GPU" if torch.backends.cuda.is_built() else f"{torch.__version__} is built without CUDA"
        raise UnavailableError(f"train.device: {config.device} is not there: torch {built}; {FIX}")
    if device.index is not None and device.index >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise UnavailableError(f"train.device: {config.device} is not there: the last of {count} is cuda:{count - 1}")
    if config.precision == "bf16" and not torch.cuda.is_bf16_supported():
        raise UnavailableError("train.precision: this GPU has no bf16; use fp16 or fp32")
