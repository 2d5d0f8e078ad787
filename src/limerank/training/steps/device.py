"""Where a ranker computes: `train.device` and `train.precision`, and batches that follow the ranker there."""

from __future__ import annotations

import torch

from limerank.batch import RequestBatch
from limerank.config import TrainConfig
from limerank.errors import UnavailableError, UsageError
from limerank.training.distributed.ranks import Ranks

FIX = "set it to auto, cpu, or cuda where there is a GPU"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def device_of(config: TrainConfig, ranks: Ranks | None = None) -> torch.device:
    """The device that a training asks for, if it is there and can compute in the precision that is asked for.

    Several processes on a machine have a GPU each.
    """
    device = device_named(config.device, "train.device")
    if ranks is not None and ranks.size > 1 and device.type == "cuda":
        device = _gpu_of(ranks, device)
    if config.precision == "fp16" and device.type == "cpu":
        raise UsageError("train.precision: fp16 needs a GPU; on a CPU use bf16 or fp32")
    if config.precision == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported():
        raise UnavailableError("train.precision: this GPU has no bf16; use fp16 or fp32")
    return device


def _gpu_of(ranks: Ranks, asked: torch.device) -> torch.device:
    there = torch.cuda.device_count()
    if asked.index is not None or ranks.number_here >= there:
        raise UsageError(
            f"train.device: {asked} is for one process, and this machine has {there} GPUs; with torchrun set it to "
            f"cuda, and --nproc-per-node to at most {there}"
        )
    torch.cuda.set_device(ranks.number_here)
    return torch.device("cuda", ranks.number_here)


def device_named(name: str, key: str) -> torch.device:
    """A device that is there, `auto` being a GPU if there is one; an error names the `key` that asked for it."""
    chosen = ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name
    try:
        device = torch.device(chosen)
    except RuntimeError:
        raise UsageError(f"{key}: there is no device '{name}'; {FIX}") from None
    try:
        torch.empty(0).to(device)
    except (RuntimeError, AssertionError, NotImplementedError) as refused:  # which of them is a matter of the device
        reason = str(refused).splitlines()[0]
        raise UnavailableError(f"{key}: {name} is not there ({reason}); {FIX}") from None
    return device


def moved(batch: RequestBatch, device: torch.device) -> RequestBatch:
    """A batch on a device; the copy of a pinned one does not wait."""
    if device.type == "cpu":
        return batch
    return batch.map(lambda tensor: tensor.to(device, non_blocking=True))
