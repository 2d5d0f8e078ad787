"""Measure several datasets; without any, the evaluation logs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from limerank.data.build.prepare import prepare
from limerank.data.sources.simulation.evaluation import EVALUATION_LOGS, evaluation_log
from limerank.data.store.dataset import StoredDataset
from limerank.data.store.manifest import MANIFEST
from limerank.progress import Progress
from limerank.study.logs.properties import properties
from limerank.study.logs.results import LogsStudy
from limerank.study.results import making

CAVEATS = [
    "Floors are smoothed and count on the train part; rates counted on all that is not tested score a little more.",
    "Drift is of one attribute of the items and knows nothing of tastes that it does not tell.",
]


def evaluation_datasets(out: Path, *, quick: bool = False, overwrite: bool = False) -> list[StoredDataset]:
    """The three evaluation logs below OUT/datasets, of which the quick mode needs the first; what is there is kept."""
    found = []
    for name in list(EVALUATION_LOGS)[: 1 if quick else None]:
        path = out / "datasets" / name
        there = (path / MANIFEST).is_file() and not overwrite
        found.append(StoredDataset.open(path) if there else prepare(evaluation_log(name), path, overwrite=overwrite))
    return found


def run_logs(datasets: Sequence[StoredDataset], progress: Progress, *, quick: bool = False) -> LogsStudy:
    """Measure them in the order given."""
    names = _names([dataset.path for dataset in datasets])
    with making(quick=quick) as made, progress.bar("logs", len(datasets)) as bar:
        measured = []
        for name, dataset in zip(names, datasets, strict=True):
            measured.append(properties(dataset, name))
            bar.advance()
        return LogsStudy(study="logs", made=made(), caveats=CAVEATS, logs=measured)


def _names(paths: Sequence[Path]) -> list[str]:
    """The folders' names, or their paths where two are called the same."""
    counts = Counter(path.name for path in paths)
    return [path.name if counts[path.name] == 1 else str(path) for path in paths]
