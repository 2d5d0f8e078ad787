"""Checkpoints: all that a training needs to go on as if it had never stopped, in one file that is whole or not there.

`checkpoints/last.safetensors` holds weights, the optimizer's moments and the random state, and in its header, as JSON,
the numbers (`TrainingState`), the configuration and the fingerprint of the data. The best weights so far are in a file
of their own, named after their epoch, which the header names: a crash between the two leaves a pair that fits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from limerank import files
from limerank.config import RunConfig, TrainConfig
from limerank.errors import DataError
from limerank.metrics import Metrics
from limerank.typed import validate

LAST = Path("checkpoints/last.safetensors")
FORMAT = "limerank-checkpoint-1"
FIX = "train anew with --overwrite"


class TrainingState(BaseModel):
    """How far a training is, besides its tensors."""

    model_config = ConfigDict(extra="forbid")

    step: int = 0
    """Updates done."""
    passes: int = 0
    batches: int = 0
    """Where the loader stands after the last update (`limerank.data.batches.Position`)."""
    epochs: int = 0
    """Epochs that were measured, too."""
    epoch_loss: float = 0.0
    epoch_rows: int = 0
    """Sums over this epoch."""
    logged_loss: float = 0.0
    logged_rows: int = 0
    """Sums since the last line of the log."""
    best_epoch: int = 0
    best_value: float | None = None
    best_metrics: dict[str, Metrics] = {}
    log_bytes: int = 0
    """How much of `metrics.jsonl` there was."""
    rows: int = 0
    """Rows learned from, all in all."""
    stage_seconds: dict[str, float] = {}
    epochs_seconds: float = 0.0
    """What the epochs that were measured took."""
    started: str = ""
    scaler: dict[str, int | float] = {}
    """Of fp16's loss scaling."""


class Header(BaseModel):
    """What a checkpoint says of itself."""

    model_config = ConfigDict(extra="forbid")

    format: str
    data_fingerprint: str
    config: dict[str, Any]
    state: TrainingState


def best_weights(epoch: int) -> Path:
    """The weights of the best epoch so far, below the folder of the training."""
    return Path(f"checkpoints/best-of-epoch-{epoch}.safetensors")


def write_checkpoint(folder: Path, header: Header, tensors: Mapping[str, Tensor]) -> None:
    """Replace the last checkpoint; then best weights that it does not name are not needed any more."""
    with files.replaced_file(folder / LAST) as aside:
        save_file(dict(tensors), aside, metadata={"header": header.model_dump_json()})
    current = folder / best_weights(header.state.best_epoch)
    for path in (folder / LAST.parent).glob("best-of-epoch-*.safetensors"):
        if path != current:
            path.unlink()


def read_header(folder: Path, config: RunConfig, data_fingerprint: str) -> Header:
    """What the last checkpoint says; refused if it is damaged, or of another configuration or other data."""
    path = folder / LAST
    header = read_any_header(path)
    if header.data_fingerprint != data_fingerprint:
        raise DataError(
            f"{config.dataset}: fingerprint {data_fingerprint[:12]} is not that of the checkpoint {path} "
            f"({header.data_fingerprint[:12]}): the dataset was prepared anew or has grown; bring it back as it was "
            f"(limerank append --undo takes the last append back), or {FIX}"
        )
    before = {f"train.{key}": value for key, value in TrainConfig().model_dump(mode="json").items()} | header.config
    for key, value in comparable(config).items():
        if before.get(key) != value:
            raise DataError(
                f"{folder}: '{key}' is {value} in its configuration and {before.get(key)} in the checkpoint; a "
                f"training that is resumed keeps its configuration: change it back, or {FIX}"
            )
    return header


def read_any_header(path: Path) -> Header:
    """What a checkpoint says, whatever it belongs to; damaged ones are refused."""
    try:
        with safe_open(path, framework="pt") as opened:
            text = (opened.metadata() or {}).get("header", "")
        values = json.loads(text)
    except (OSError, SafetensorError, json.JSONDecodeError) as broken:
        raise _damaged(path, broken) from None
    if values.get("format") != FORMAT:
        raise DataError(f"{path}: has format {values.get('format')}, this version reads {FORMAT}; {FIX}")
    return validate(Header, values, str(path), DataError)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint, on the CPU."""
    try:
        with safe_open(path, framework="pt") as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (not a mapping)
    except (OSError, SafetensorError) as broken:
        raise _damaged(path, broken) from None


def comparable(config: RunConfig) -> dict[str, Any]:
    """A configuration as flat keys; where the dataset is does not matter, what is in it has a fingerprint.

    Nor does it matter on how many processes a training goes on, and which of them holds what.
    """
    values = config.model_dump(mode="json", exclude={"dataset", "distributed"})
    flat = {f"model.{key}": value for key, value in values.pop("model").items()}
    flat |= {f"train.{key}": value for key, value in values.pop("train").items()}
    return values | flat


def random_state(device: torch.device) -> dict[str, Tensor]:
    """The generators that a step draws from."""
    states = {"random.cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["random.cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_random_state(tensors: Mapping[str, Tensor], device: torch.device) -> None:
    """Draw as the training that wrote the checkpoint would have gone on drawing."""
    torch.set_rng_state(tensors["random.cpu"])
    if device.type == "cuda" and "random.cuda" in tensors:
        torch.cuda.set_rng_state(tensors["random.cuda"], device)


def _damaged(path: Path, broken: Exception) -> DataError:
    reason = str(broken).splitlines()[0] if str(broken) else type(broken).__name__
    return DataError(f"{path}: is damaged and cannot be resumed from ({reason}); {FIX}")
