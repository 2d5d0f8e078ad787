"""How good a ranker is on one part of a dataset, beside what counting scores and what the true probabilities would."""

from __future__ import annotations

from dataclasses import dataclass

from limerank.data.store.dataset import StoredDataset
from limerank.errors import DataError
from limerank.metrics import Metrics
from limerank.models import Ranker
from limerank.progress import Progress
from limerank.splits import Part
from limerank.tables import html_table, number_text, text_table
from limerank.training.evaluate import evaluate, evaluation_loader, oracle
from limerank.training.floor import below_floor, counting_floor

COLUMNS = ("task", "AUC", "gAUC", "NE", "logloss", "rows")


@dataclass(frozen=True, repr=False)
class Evaluation:
    """Metrics per task: `evaluation["click"].auc`; it shows itself as a table."""

    part: Part
    metrics: dict[str, Metrics]
    floor: dict[str, Metrics]
    """What smoothed rates of items and users score (limerank.training.floor)."""
    oracle: dict[str, Metrics]
    """What the true probabilities score, of tasks whose true probability is known."""

    def __getitem__(self, task: str) -> Metrics:
        return self.metrics[task]

    @property
    def below_floor(self) -> list[str]:
        """Where counting orders better than the ranker does."""
        return below_floor(self.metrics, self.floor)

    def rows(self) -> list[list[object]]:
        """The cells of the table, a row per task, then its floor and its oracle."""
        rows: list[list[object]] = []
        for task, metrics in self.metrics.items():
            beside = {f"{task}, counting floor": self.floor.get(task), f"{task}, oracle": self.oracle.get(task)}
            for name, one in {task: metrics, **beside}.items():
                if one is not None:
                    values = (one.auc, one.gauc, one.ne, one.logloss)
                    rows.append([name, *map(number_text, values), one.rows])
        return rows

    def __repr__(self) -> str:
        return f"{self.part.value} part\n{text_table(COLUMNS, self.rows())}"

    def _repr_html_(self) -> str:
        return html_table(COLUMNS, self.rows())


def evaluate_part(
    ranker: Ranker, dataset: StoredDataset, part: Part, max_history: int, progress: Progress
) -> Evaluation:
    """Score every candidate of a part and measure it."""
    loader = evaluation_loader(dataset, part, max_history, ranker.needs_times)
    if not len(loader):
        raise DataError(f"{dataset.path}: has no {part.value} part (it selects on the test part); evaluate on test")
    with progress.bar("evaluating", len(loader)) as bar:
        metrics = evaluate(ranker, loader, bar)
    return Evaluation(part, metrics, counting_floor(loader), oracle(loader))
