"""Logs that studies draw where they are, and what must be said of those that LIME's results have shaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from limerank.data.build.prepare import prepare
from limerank.data.raw.log import RawLog
from limerank.data.sources.simulated import SimulatedConfig, simulate
from limerank.data.sources.simulation.evaluation import evaluation_log
from limerank.data.store.dataset import StoredDataset
from limerank.data.store.manifest import MANIFEST
from limerank.errors import UsageError

COMPARED_ON = "medium"
"""The evaluation log on which rankers are compared where none is named."""


def evaluation_dataset(folder: Path, *, overwrite: bool = False) -> Path:
    """The evaluation log on which rankers are compared, as `limerank prepare evaluation` makes it, below a folder."""
    return _kept_or_made(evaluation_log(COMPARED_ON), folder / COMPARED_ON, overwrite)


def simulated_dataset(config: SimulatedConfig, folder: Path, *, overwrite: bool = False) -> Path:
    """The dataset of a simulated log; one that is there is kept if it is of the same log, and refused if not."""
    return _kept_or_made(simulate(config), folder, overwrite)


def shaped_by_lime(origin: Mapping[str, Any]) -> list[str]:
    """A caveat, of a simulated log that is no evaluation log."""
    if origin.get("source") != "simulated" or "evaluation_log" in origin:
        return []
    known = [name for name in ("users", "items", "topics", "sessions") if name in origin]
    sizes = ", ".join(f"{_size(origin[name])} {name}" for name in known)
    return [
        f"The log is the simulator's with the quickstart's strengths ({sizes}), which were shaped by looking at test "
        "results of LIME-MHA: it may flatter LIME. The evaluation logs are fixed by properties of real logs."
    ]


def _size(value: int | Sequence[int]) -> str:
    return f"{value:,}" if isinstance(value, int) else " or ".join(map(str, value))


def _kept_or_made(log: RawLog, folder: Path, overwrite: bool) -> Path:
    if (folder / MANIFEST).is_file() and not overwrite:
        origin = StoredDataset.open(folder).manifest.origin
        if any(origin.get(key) != value for key, value in log.origin.items()):
            raise UsageError(f"{folder}: holds another log; pass another --out, or --overwrite")
        return folder
    return prepare(log, folder, overwrite=overwrite).path
