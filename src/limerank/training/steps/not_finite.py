"""A training that diverged: the batch is kept, its requests are named, and what to try is said."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor

from limerank import files
from limerank.batch import RequestBatch
from limerank.data.batches import RequestLoader
from limerank.errors import DataError
from limerank.times import time_text

FAILED_BATCH = "failed-batch.safetensors"
MOST_NAMED = 5


def diverged(
    loader: RequestLoader, batch_number: int, step: int, reason: str, folder: Path | None, kept: str
) -> DataError:
    """Save the batch that a step failed on, unless another process does, and the error to raise.

    `kept` says what there is to go back to.
    """
    requests = loader.plan()[batch_number]
    if folder is not None:
        save_batch(loader.assemble(requests), requests, folder / FAILED_BATCH)
    where = "with the first process" if folder is None else f"in {folder / FAILED_BATCH}"
    return DataError(
        f"step {step:,}: {reason}. The batch is {where}; its requests: {_named(loader, requests)}. Train anew "
        f"(--overwrite) with a lower train.learning_rate or with train.clip_norm=1, and look at these requests; {kept}"
    )


def save_batch(batch: RequestBatch, requests: NDArray[np.int64], path: Path) -> None:
    """Write every tensor of a batch, by its name, and the numbers of its requests; whole or not at all."""
    tensors = {name: tensor.cpu().clone() for name, tensor in _named_tensors(batch, "")}
    numbers = ",".join(map(str, requests.tolist()))
    with files.replaced_file(path) as aside:
        save_file(tensors, aside, metadata={"requests": numbers})


def _named(loader: RequestLoader, requests: NDArray[np.int64]) -> str:
    """`12 (user u7, 2025-01-03 10:00)`; the first few."""
    dataset = loader.dataset
    shown = requests[:MOST_NAMED]
    users = dataset.user_ids.gather(dataset.column("requests/user")[shown].astype(np.int64)).to_list()
    times: list[Any] = [None] * len(shown)
    if dataset.schema.time is not None:
        times = list(np.asarray(dataset.column("events/time")[dataset.column("requests/start")[shown]]))
    named = [
        f"{request} (user {user}{'' if time is None else f', {time_text(int(time))}'})"
        for request, user, time in zip(shown.tolist(), users, times, strict=True)
    ]
    more = len(requests) - len(shown)
    return ", ".join(named) + (f" and {more} more" if more else "")


def _named_tensors(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, tuple):
        for number, one in enumerate(value):
            yield from _named_tensors(one, f"{name}.{number}")
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _named_tensors(getattr(value, field.name), f"{name}.{field.name}".lstrip("."))
