"""`limerank plan --measure`: all rates of one ranker on this machine, one core at a time."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import nn

from limerank import __version__
from limerank.bench.rates.probes import FEW, MANY, Probes
from limerank.bench.rates.sizes import STAGES, Scale
from limerank.bench.rates.training import ranker_of
from limerank.errors import UsageError
from limerank.models import Ranker, complete_model
from limerank.nn.features import FeatureEmbedding
from limerank.planning.lines import Line, Plane
from limerank.planning.rates import RankerRates, Rates, this_machine
from limerank.progress import Progress


@contextmanager
def one_thread() -> Iterator[None]:
    """Rates are of one core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def measure_rates(progress: Progress, model: Mapping[str, Any], scale: Scale | None = None) -> Rates:
    """Measure everything in a temporary folder, which takes some hundred megabytes."""
    scale, model = scale or Scale(), plannable(model)
    load = list(os.getloadavg())
    with (
        one_thread(),
        tempfile.TemporaryDirectory(prefix="limerank-plan-") as folder,
        progress.bar("measuring rates", len(STAGES)) as bar,
    ):
        probes, fits = Probes(Path(folder), model, scale), Fits()
        for stage in STAGES:
            fits.add(probes, stage)
            bar.advance()
    return fits.rates(model, scale, load)


def plannable(model: Mapping[str, Any]) -> dict[str, Any]:
    """A model section with every option, of a ranker that a plan can be made for."""
    complete = complete_model(model, "model")
    if not ranker_of(complete).factorized:
        raise UsageError(
            f"--ranker {complete['name']}: its candidates read the whole history, so there is no rate per candidate; "
            "plan with a factorized ranker such as lime-mha, `limerank study latency` measures this one"
        )
    return complete


@dataclass
class Fits:
    """What was fitted so far: a line for each stage, for training a plane."""

    lines: dict[str, Line] = field(default_factory=dict)
    planes: dict[str, Plane] = field(default_factory=dict)

    def add(self, probes: Probes, stage: str) -> None:
        """Measure a stage at the sizes to fit."""
        if stage == "training":
            self.planes[stage] = fit_training(probes)
        else:
            measured = probes.of[stage](probes.scale.of(stage).fitted)
            self.lines[stage] = Line.fit(measured.sizes, measured.values)

    def rates(self, model: dict[str, Any], scale: Scale, load: list[float]) -> Rates:
        """All of it as rates of this machine."""
        ranker = ranker_of(model).eval()
        return Rates(
            limerank=__version__,
            torch=torch.__version__,
            measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
            quick=scale.quick,
            machine=this_machine(),
            load_average=[*load, *os.getloadavg()],
            prepare=self.lines["prepare"],
            store_add=self.lines["history store, write"],
            store_read=self.lines["history store, read"],
            store_bytes=self.lines["history store, bytes"],
            rankers=[
                RankerRates(
                    model=model,
                    row_numbers=row_numbers(ranker),
                    hidden=ranker.options.head[0],
                    dense_parameters=dense_parameters(ranker),
                    embedding_width=ranker.options.embedding_width,
                    training=self.planes["training"],
                    export=self.lines["offline item stage"],
                    user=self.lines["user stage, events known"],
                    user_computed=self.lines["user stage, events computed"],
                    interaction=self.lines["interaction"],
                    scan=self.lines["scan"],
                )
            ],
        )


def fit_training(probes: Probes) -> Plane:
    """A step by events of all its histories and by its candidates: at two lengths and two numbers of candidates."""
    scale = probes.scale
    short, long = scale.of("training").fitted
    sizes = [(short, FEW), (long, FEW), (short, MANY), (long, MANY)]
    counted = [(scale.requests * history, scale.requests * candidates) for history, candidates in sizes]
    return Plane.fit(counted, probes.training(sizes))


def row_numbers(ranker: Ranker) -> int:
    """Numbers of an item row for the interaction."""
    with torch.inference_mode():
        return int(ranker.item_rows(torch.zeros(1, ranker.options.width)).shape[1])


def dense_parameters(module: nn.Module) -> int:
    """Parameters besides embedding tables."""
    tables = {id(one.table) for one in module.modules() if isinstance(one, FeatureEmbedding)}
    return sum(one.numel() for one in module.parameters() if id(one) not in tables)
