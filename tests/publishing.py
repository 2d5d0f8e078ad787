"""Runs published for tests."""

from __future__ import annotations

from pathlib import Path

from limerank.api.run import Run
from limerank.serve.bundle import Bundle
from limerank.serve.publish import RowType


def publish_run(run: Run, store: Path, *, row_type: RowType = "fp16", activate: bool = True) -> Bundle:
    """The bundle of a run, exported through the front door."""
    bundle = run.export(store, rows=row_type, activate=activate, quiet=True).published
    assert bundle is not None
    return bundle
