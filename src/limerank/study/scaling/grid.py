"""The grid: history length by links, and layers, on one log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from limerank.config import TrainConfig
from limerank.data.batches import RequestLoader
from limerank.data.store.dataset import StoredDataset
from limerank.errors import ArgumentError, DataError, UsageError
from limerank.models import complete_model
from limerank.progress import Progress
from limerank.splits import Part
from limerank.study.scaling.fit import Fit, fit_logarithms
from limerank.study.scaling.results import Cell, usual_depth
from limerank.study.trainings import Failures, Variant, train_variants
from limerank.training.run import FinishedRun

MODELS = ("lime-xor", "lime-mha")
DEEP = "lime-xor"


def grid_variants(
    histories: Sequence[int], links: Sequence[int], layers: Sequence[int], train: dict[str, Any]
) -> list[Variant]:
    """Every history with every number of links for both rankers; other depths of LIME-XOR at the largest of both."""
    variants = [
        Variant(f"{model}-n{history}-l{count}", {"name": model, "links": count}, _train(train, history))
        for history in histories
        for count in links
        for model in MODELS
    ]
    usual = complete_model({"name": DEEP}, "study scaling")["layers"]
    history, count = max(histories), max(links)
    variants += [
        Variant(
            f"{DEEP}-n{history}-l{count}-layers{number}",
            {"name": DEEP, "links": count, "layers": number},
            _train(train, history),
        )
        for number in layers
        if number != usual
    ]
    return variants


def check_histories(dataset: StoredDataset, histories: Sequence[int]) -> None:
    """Refuse lengths that no request has: such a cell would be another one under a name of its own."""
    most = max(histories)
    loader = RequestLoader(dataset, Part.TEST, batch_requests=1, max_history=most)
    longest = max(int(loader.history_lengths(dataset.requests_in(part)).max(initial=0)) for part in Part)
    if longest < most:
        raise UsageError(
            f"--history {most}: the longest history of {dataset.path} has {longest:,} events; pass smaller lengths"
        )


def run_grid(
    dataset: Path,
    variants: Sequence[Variant],
    seeds: Sequence[int],
    out: Path,
    progress: Progress,
    *,
    overwrite: bool,
    workers: int | None,
    failures: Failures,
) -> tuple[str, list[Cell]]:
    """The task, and a cell for every variant and seed that could be finished."""
    runs = train_variants(
        dataset, variants, seeds, out, progress, overwrite=overwrite, workers=workers, failed=failures
    )
    failures.unless_all(runs, out)
    task = next(iter(next(iter(runs.values())).record.test))
    return task, [_cell(run, task) for run in runs.values()]


def fits_of(cells: Sequence[Cell], model: str) -> list[Fit]:
    """By links and history, the same with their product, and by layers; those that the sizes allow."""
    own = [cell for cell in cells if cell.model == model]
    if not own:
        return []
    grid = [cell for cell in own if cell.layers == usual_depth(own)]
    sizes = {"l": [cell.links for cell in grid], "N": [cell.history for cell in grid]}
    values = [cell.ne for cell in grid]
    varied = {name: given for name, given in sizes.items() if len(set(given)) > 1}
    fits = _fitted(varied, values) if varied else []
    if len(varied) == 2:
        fits += _fitted(varied, values, interaction=True)
    largest = max((cell.history, cell.links) for cell in grid)
    deep = [cell for cell in own if (cell.history, cell.links) == largest and cell.layers is not None]
    if len({cell.layers for cell in deep}) > 1:
        fits += _fitted({"n": [float(cell.layers or 1) for cell in deep]}, [cell.ne for cell in deep])
    return fits


def _fitted(sizes: Mapping[str, Sequence[float]], values: Sequence[float], *, interaction: bool = False) -> list[Fit]:
    """None where too few cells could be finished."""
    try:
        return [fit_logarithms(sizes, values, interaction=interaction)]
    except ArgumentError:
        return []


def _train(train: dict[str, Any], history: int) -> TrainConfig:
    return TrainConfig(**{**train, "max_history": history})


def _cell(run: FinishedRun, task: str) -> Cell:
    model, test = run.config.model, run.record.test[task]
    return Cell(
        model=run.record.model,
        history=run.config.train.max_history,
        links=int(model["links"]),
        layers=model.get("layers"),
        seed=run.record.seed,
        ne=defined(test.ne, run),
        auc=defined(test.auc, run),
        validation_ne=run.record.validation[task].ne,
        parameters=run.record.parameters,
        train_seconds=run.record.train_seconds,
    )


def defined(value: float | None, run: FinishedRun) -> float:
    """A metric that the log must define; a test part of one class has none."""
    if value is None:
        raise DataError(f"{run.path}: its test part has one class only, so NE and AUC are undefined; use a larger log")
    return value
