"""What the folder of a training that was stopped says of it."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel

from limerank import files
from limerank.config import RunConfig, load_run_config
from limerank.data.store.dataset import StoredDataset
from limerank.errors import DataError
from limerank.training import run
from limerank.training.checkpoint import Header, read_header
from limerank.typed import validate

CONTINUED = "continued.json"
"""What a training that goes on from another run needs to be resumed, beside its checkpoint."""


class Stopped(BaseModel):
    """What the folder of a training that was stopped says; the first rank reads it to the others."""

    config: RunConfig
    header: Header
    continued: run.Continued | None

    @classmethod
    def read(cls, folder: Path) -> Stopped:
        """All of it; refused if it is damaged, or of another configuration or other data."""
        config = load_run_config(folder / run.CONFIG)
        header = read_header(folder, config, StoredDataset.open(config.dataset).fingerprint)
        continued = None
        if (folder / CONTINUED).is_file():
            values = files.read_json(folder / CONTINUED, DataError, run.FIX)
            continued = validate(run.Continued, values, str(folder / CONTINUED), DataError)
        return cls(config=config, header=header, continued=continued)
