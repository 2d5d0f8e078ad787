"""`limerank plan --check`: predictions at three sizes of each stage that rates were not fitted on, beside measurements.

Both are made in one process, stage by stage: a prediction is only as good as the machine is steady, so the load of the
machine is part of the result.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from limerank.bench.rates.probes import FEW, MANY, Probes
from limerank.bench.rates.run import Fits, one_thread, plannable
from limerank.bench.rates.sizes import STAGES, Scale
from limerank.planning.lines import Plane
from limerank.planning.rates import Rates
from limerank.progress import Progress

GOAL = 0.3
"""A prediction is good that is this near to what is measured, relative to it."""
UNITS = {
    "prepare": "events",
    "history store, write": "events in a transaction",
    "history store, read": "stored events",
    "history store, bytes": "stored events",
    "training": "events of a history",
    "offline item stage": "items",
    "user stage, events known": "events",
    "user stage, events computed": "events",
    "interaction": "candidates",
    "scan": "items",
}


class Checked(BaseModel):
    """One stage at one size."""

    stage: str
    size: int
    of: str
    """What the size counts."""
    fitted_up_to: int
    predicted: float
    """Core-seconds, or bytes."""
    measured: float
    error: float
    """(predicted - measured) / measured."""
    good: bool


class PlanCheck(BaseModel):
    """All sizes of all stages, and the rates that predicted them."""

    goal: float
    rates: Rates
    rows: list[Checked]
    good: int
    worst: float
    """The largest error, without its sign."""


def check_rates(progress: Progress, model: Mapping[str, Any], scale: Scale) -> PlanCheck:
    """Stage by stage: measure the sizes to fit, predict others from them, measure those."""
    model, load = plannable(model), list(os.getloadavg())
    rows: list[Checked] = []
    with (
        one_thread(),
        tempfile.TemporaryDirectory(prefix="limerank-plan-") as folder,
        progress.bar("measuring and checking rates", len(STAGES)) as bar,
    ):
        probes, fits = Probes(Path(folder), model, scale), Fits()
        for stage in STAGES:
            fits.add(probes, stage)
            rows += _training(probes, fits.planes[stage]) if stage == "training" else _line(probes, fits, stage)
            bar.advance()
    return PlanCheck(
        goal=GOAL,
        rates=fits.rates(model, scale, load),
        rows=rows,
        good=sum(row.good for row in rows),
        worst=max(abs(row.error) for row in rows),
    )


def _line(probes: Probes, fits: Fits, stage: str) -> Iterator[Checked]:
    line, measured = fits.lines[stage], probes.of[stage](probes.scale.of(stage).checked)
    for size, value in zip(measured.sizes, measured.values, strict=True):
        yield checked(stage, size, max(line.sizes), line.at(size), value)


def _training(probes: Probes, plane: Plane) -> Iterator[Checked]:
    """Steps with another number of candidates than those that were fitted, too."""
    scale, candidates = probes.scale, (FEW + MANY) // 2
    histories = scale.of("training").checked
    seconds = probes.training([(history, candidates) for history in histories])
    for history, value in zip(histories, seconds, strict=True):
        predicted = plane.at(scale.requests * history, scale.requests * candidates)
        fitted = max(first for first, _ in plane.sizes) // scale.requests
        yield checked("training", history, fitted, predicted, value)


def checked(stage: str, size: int, fitted_up_to: int, predicted: float, measured: float) -> Checked:
    """A prediction beside its measurement."""
    error = (predicted - measured) / measured
    return Checked(
        stage=stage,
        size=size,
        of=UNITS[stage],
        fitted_up_to=fitted_up_to,
        predicted=predicted,
        measured=measured,
        error=error,
        good=abs(error) <= GOAL,
    )
