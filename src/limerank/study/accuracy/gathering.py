"""From finished runs to the table: metrics over seeds, differences with intervals, what it all cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from limerank.data.store.dataset import StoredDataset
from limerank.metrics import Metrics
from limerank.metrics.resampling import LEVEL, RESAMPLES
from limerank.models import complete_model
from limerank.progress import Progress
from limerank.study.accuracy.caveats import caveats_of
from limerank.study.accuracy.costs import costs_of
from limerank.study.accuracy.gaps import BASELINE, gap_closed, skyline_of
from limerank.study.accuracy.paired import Resampled, gap_interval, paired, resample
from limerank.study.accuracy.results import (
    SHOWN,
    AccuracyStudy,
    Gap,
    RowComparison,
    RowResult,
    Search,
    SeedRun,
    StudiedDataset,
    spread_of,
)
from limerank.study.accuracy.rows import LIME, PEERS, TABLE_B, StudyRow
from limerank.study.accuracy.scores import TestPart
from limerank.study.paper import leaderboard, public_table
from limerank.study.results import Failure, Made
from limerank.training.run import FinishedRun


@dataclass(frozen=True)
class Gathering:
    """Everything that is finished, about to become a result."""

    part: TestPart
    task: str
    rows: Sequence[StudyRow]
    runs: Mapping[tuple[str, int], FinishedRun]
    """By (row, seed)."""
    search: Search | None

    def study(self, made: Callable[[], Made], failures: Sequence[Failure], progress: Progress) -> AccuracyStudy:
        """The result."""
        part = self.part
        number = [task.name for task in self.dataset.schema.tasks].index(self.task)
        labels = part.labels(self.task)
        tested: dict[tuple[str, int], dict[str, Metrics]] = {}
        drawn: dict[str, dict[int, Resampled]] = {}
        with progress.bar("resampling users", len(self.runs)) as bar:
            for (name, seed), run in self.runs.items():
                tested[name, seed] = part.metrics(run)
                scores = part.scores(run)[:, number]
                drawn.setdefault(name, {})[seed] = resample(labels, scores, part.user, part.request)
                bar.advance()
        rows = [self._row(row, tested, drawn) for row in self.rows if row.name in drawn]
        comparisons = [one for row in rows for one in self._comparisons(row, drawn)]
        study = AccuracyStudy(
            study="accuracy",
            made=made(),
            task=self.task,
            dataset=self._dataset(),
            rows=rows,
            oracle=part.oracle.get(self.task),
            floor=part.floor.get(self.task),
            comparisons=comparisons,
            level=LEVEL,
            resamples=RESAMPLES,
            search=self.search,
            failures=list(failures),
            rivals=[
                _compared(first, second, "rival", drawn) for first, second in rival_pairs(list(drawn), comparisons)
            ],
        )
        return study.model_copy(update={"caveats": caveats_of(study)})

    @property
    def dataset(self) -> StoredDataset:
        """What was learned from."""
        return self.part.dataset

    def _dataset(self) -> StudiedDataset:
        part, manifest = self.part, self.dataset.manifest
        table = public_table(manifest)
        return StudiedDataset(
            name=self.dataset.path.absolute().name,
            fingerprint=self.dataset.fingerprint,
            source=str(manifest.origin.get("source", "unknown")),
            origin=manifest.origin,
            counts=manifest.counts,
            test_rows=len(part.rows),
            test_users=len(np.unique(part.user)),
            test_requests=len(np.unique(part.request)),
            select_on_test=self.dataset.schema.split.select_on_test,
            published=None if table is None else table.name,
        )

    def _row(
        self,
        row: StudyRow,
        tested: Mapping[tuple[str, int], dict[str, Metrics]],
        drawn: Mapping[str, Mapping[int, Resampled]],
    ) -> RowResult:
        seeds = sorted(drawn[row.name])
        runs = [self.runs[row.name, seed] for seed in seeds]
        config = runs[0].config
        own = {seed: tested[row.name, seed][self.task] for seed in seeds}
        baseline = {seed: tested[BASELINE, seed][self.task] for seed in drawn.get(BASELINE, {})}
        metrics = {
            name: spread
            for name in SHOWN
            if (spread := spread_of([getattr(own[seed], name) for seed in seeds])) is not None
        }
        base_auc = spread_of([one.auc for one in baseline.values()])
        auc = metrics.get("auc")
        table = public_table(self.dataset.manifest)
        published = leaderboard(table, select_on_test=self.dataset.schema.split.select_on_test)
        of_paper = table is not None and table.task == self.task and row.name == row.ranker
        return RowResult(
            name=row.name,
            ranker=row.ranker,
            model=complete_model(config.model, "study"),
            train=config.train.model_dump(mode="json"),
            chosen={} if self.search is None else self.search.rows[row.name].parameters(),
            runs=[
                SeedRun(
                    seed=seed,
                    run=run.path.name,
                    test=tested[row.name, seed],
                    validation=run.record.validation,
                    epochs=run.record.epochs,
                    best_epoch=run.record.best_epoch,
                    seconds=run.record.train_seconds,
                    revision=run.record.revision,
                )
                for seed, run in zip(seeds, runs, strict=True)
            ],
            metrics=metrics,
            auc_change_percent=None if auc is None or base_auc is None else 100 * (auc.mean / base_auc.mean - 1),
            gap=self._gap(row, own, tested, drawn),
            better_than_baseline=_better(own, baseline) if row.name != BASELINE else None,
            **costs_of(config.model, self.dataset, config.train.max_history)._asdict(),
            paper_auc=table.auc.get(row.ranker) if of_paper and table is not None else None,
            leaderboard_auc=published.get(row.ranker) if of_paper else None,
        )

    def _gap(
        self,
        row: StudyRow,
        own: Mapping[int, Metrics],
        tested: Mapping[tuple[str, int], dict[str, Metrics]],
        drawn: Mapping[str, Mapping[int, Resampled]],
    ) -> Gap | None:
        skyline = skyline_of(row.ranker, list(drawn))
        if skyline is None or BASELINE not in drawn or row.name == skyline:
            return None
        seeds = [seed for seed in own if seed in drawn[BASELINE] and seed in drawn[skyline]]
        if not seeds:
            return None
        ends = {seed: (tested[BASELINE, seed][self.task], tested[skyline, seed][self.task]) for seed in seeds}
        base, sky, mine = (
            spread_of([one.ne for one in some])
            for some in ([ends[s][0] for s in seeds], [ends[s][1] for s in seeds], [own[s] for s in seeds])
        )
        of_means = None
        if base is not None and sky is not None and mine is not None and base.mean > sky.mean:
            of_means = (base.mean - mine.mean) / (base.mean - sky.mean)
        between = gap_interval(drawn[BASELINE], drawn[skyline], drawn[row.name])
        return Gap(
            skyline=skyline,
            by_seed=[gap_closed(*ends[seed], own[seed]) for seed in seeds],
            of_means=of_means,
            low=None if between is None else between[0],
            high=None if between is None else between[1],
        )

    def _comparisons(self, row: RowResult, drawn: Mapping[str, Mapping[int, Resampled]]) -> list[RowComparison]:
        """Against the baseline, the skyline, and of a variant the row that has its ranker's name."""
        others = {
            "baseline": BASELINE if row.name != BASELINE else None,
            "skyline": skyline_of(row.ranker, list(drawn)),
            "ranker": row.ranker if row.ranker != row.name else None,
        }
        return [
            _compared(row.name, other, role, drawn)
            for role, other in others.items()
            if other is not None and other in drawn
        ]


def rival_pairs(rows: Sequence[str], comparisons: Sequence[RowComparison]) -> list[tuple[str, str]]:
    """LIME and every row of table (b) or peer beside it, without pairs that are compared in either order."""
    found = {frozenset((one.first, one.second)) for one in comparisons}
    pairs = []
    for pair in ((lime, other) for lime in LIME for other in (*TABLE_B, *PEERS) if lime != other):
        if frozenset(pair) not in found and set(pair) <= set(rows):
            found.add(frozenset(pair))
            pairs.append(pair)
    return pairs


def _compared(first: str, second: str, role: str, drawn: Mapping[str, Mapping[int, Resampled]]) -> RowComparison:
    return RowComparison.model_validate(
        {"first": first, "second": second, "role": role, "metrics": paired(drawn[first], drawn[second])}
    )


def _better(own: Mapping[int, Metrics], baseline: Mapping[int, Metrics]) -> int | None:
    """In how many seeds NE is less than the baseline's; None without a baseline."""
    pairs = [(own[seed].ne, baseline[seed].ne) for seed in own if seed in baseline]
    if not pairs:
        return None
    return sum(mine is not None and limit is not None and mine < limit for mine, limit in pairs)
