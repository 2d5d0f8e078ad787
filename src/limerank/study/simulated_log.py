"""A simulated log of other sizes than the quickstart's, made where a study is."""

from __future__ import annotations

from pathlib import Path

from limerank.data.build.prepare import prepare
from limerank.data.sources.simulated import SimulatedConfig, simulate
from limerank.data.store.dataset import StoredDataset
from limerank.data.store.manifest import MANIFEST
from limerank.errors import UsageError


def simulated_dataset(config: SimulatedConfig, folder: Path, *, overwrite: bool = False) -> Path:
    """The dataset of a simulated log; one that is there is kept if it is of the same log, and refused if not."""
    if (folder / MANIFEST).is_file() and not overwrite:
        origin = StoredDataset.open(folder).manifest.origin
        wanted = simulate(config).origin
        if any(origin.get(key) != value for key, value in wanted.items()):
            raise UsageError(f"{folder}: holds another log; pass another --out, or --overwrite")
        return folder
    return prepare(simulate(config), folder, overwrite=overwrite).path
