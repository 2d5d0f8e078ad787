"""What a study has measured so far, in a file: one that was stopped goes on where it was, on the same machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from limerank import files
from limerank.errors import ConflictError
from limerank.study.latency.results import LatencyRow, MachinePeaks
from limerank.study.latency.sweeps import Plan
from limerank.study.results import processor
from limerank.training.records.revision import revision
from limerank.training.run import versions

ANEW = "measure anew with --overwrite, or choose another --out"


class SoFar(BaseModel):
    """Rows by size, and under which circumstances they were measured."""

    circumstances: dict[str, Any]
    peaks: list[MachinePeaks]
    points: dict[str, list[LatencyRow]]


def circumstances(cores: int) -> dict[str, Any]:
    """What must be the same for figures to stand in one table."""
    return {"processor": processor(), "cores": cores, "versions": versions(), "revision": revision()}


class KeptPoints:
    """The file of one plan in a folder."""

    def __init__(self, out: Path, plan: Plan, cores: int, *, overwrite: bool = False) -> None:
        described = json.dumps(asdict(plan), sort_keys=True)
        self.path = out / f"latency-points-{files.digest_of(described)[:8]}.json"
        self.now = circumstances(cores)
        self.so_far = SoFar(circumstances=self.now, peaks=[], points={})
        if self.path.exists() and not overwrite:
            self.so_far = self._read()

    def _read(self) -> SoFar:
        try:
            kept = SoFar.model_validate(files.read_json(self.path, ConflictError, ANEW))
        except ValidationError:
            raise ConflictError(f"{self.path}: not what this version writes; {ANEW}") from None
        for name, value in self.now.items():
            before = kept.circumstances.get(name)
            if before != value:
                raise ConflictError(
                    f"{self.path}: its points were measured with another {name} ({before}, now {value}), and figures "
                    f"of both would not compare; {ANEW}"
                )
        return kept

    def __contains__(self, key: str) -> bool:
        return key in self.so_far.points

    def add(self, key: str, rows: list[LatencyRow]) -> None:
        """One more size is measured."""
        self.so_far.points[key] = rows
        self._write()

    def peaks(self, measure: Callable[[], list[MachinePeaks]]) -> list[MachinePeaks]:
        """Those of whoever began: the floors of kept rows were counted by them."""
        if not self.so_far.points:
            self.so_far.peaks = measure()
        return self.so_far.peaks

    def rows(self, keys: list[str]) -> list[LatencyRow]:
        """All rows, in the order of the plan."""
        return [row for key in keys for row in self.so_far.points[key]]

    def _write(self) -> None:
        files.write_json(self.path, self.so_far.model_dump(mode="json"))
