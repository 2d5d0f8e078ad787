"""A run as people use it: its metrics, new rows scored, a store to serve from."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl

from limerank.api.dataset import Dataset
from limerank.api.evaluating import PartName, named_ranker, opened
from limerank.api.prediction import RowScorer, Scored
from limerank.data.raw.log import EventFile
from limerank.data.sources.given import Table, open_tables, read_one
from limerank.data.sources.table.write import check_target, write_blocks
from limerank.data.store.dataset import StoredDataset
from limerank.errors import if_interrupted
from limerank.evaluation.evaluation import Evaluation
from limerank.evaluation.part import evaluate_part
from limerank.evaluation.scores import check_scores_path
from limerank.files import AnyPath
from limerank.metrics import Metrics
from limerank.progress import Progress
from limerank.serve.bundles.bundle import Bundle
from limerank.serve.bundles.offline import Exported, RowType, export_bundle
from limerank.serve.bundles.on_ray.engine_name import fleet_named
from limerank.serve.bundles.store import BundleStore
from limerank.splits import Part, part_named
from limerank.tables import number_text
from limerank.training.configuration import overridden_distribution, overridden_training
from limerank.training.records.curves import read_curves
from limerank.training.records.page import write_report
from limerank.training.run import EPOCHS, REPORT, FinishedRun
from limerank.training.steps.device import device_named
from limerank.training.trainer import continue_run, resume


class Run(FinishedRun):
    """A finished training: what was asked (`config`), what happened (`record`, `history`), what came out (`metrics`).

    `lr.train` leaves one, `open` finds it again:

        run = lr.train(lr.LimeMHA(links=16), data, out="runs/mine")
        run = lr.Run.open("runs/mine")
    """

    @classmethod
    def of(cls, finished: FinishedRun) -> Run:
        """A finished run with all that can be done with it."""
        return cls(finished.path, finished.config, finished.record)

    @classmethod
    def resume(cls, path: AnyPath, *, overrides: Sequence[str] = (), quiet: bool = False) -> Run:
        """Go on with a training that was interrupted or killed, from its last checkpoint; returns the finished run.

        On a CPU and as many threads the result is, to the last bit, that of a training that was never stopped.
        Overrides may change how several processes hold tables: `["distributed.embeddings=torchrec"]`.
        """
        distributed = overridden_distribution(overrides) if overrides else None
        return cls.of(resume(Path(path), Progress(quiet=quiet), distributed=distributed))

    def continue_on_new_events(
        self, out: AnyPath, *, overrides: Sequence[str] = (), overwrite: bool = False, quiet: bool = False
    ) -> Run:
        """A new run at `out` that starts from this one's weights and trains on what was appended to its dataset since.

        Overrides change single keys of the training: `["train.epochs=1"]`. `record.continued` has what this run scores
        on the new events, so that drift shows.
        """
        config = overridden_training(self.config, overrides)
        return type(self).of(continue_run(self, config, Path(out), Progress(quiet=quiet), overwrite=overwrite))

    @property
    def metrics(self) -> dict[str, dict[str, Metrics]]:
        """By part and task, as they were when the run was trained: `run.metrics["test"]["click"].auc`."""
        selecting = {self.record.selected_on: self.record.validation}  # the test part, if the dataset selects on it
        return {**selecting, Part.TEST.value: self.record.test}

    @property
    def evaluation(self) -> Evaluation:
        """The test metrics of the training beside the counting floor and the oracle, as they were then."""
        return Evaluation(Part.TEST, self.record.test, self.record.floor, self.record.oracle)

    @property
    def history(self) -> pl.DataFrame:
        """How training went: a row per epoch and task, with the training loss and the metrics that chose the epoch."""
        return pl.DataFrame(list(self._epochs()))

    def dataset(self) -> Dataset:
        """The dataset of this run, verified; refused when it is not the one it was trained on, maybe grown since."""
        return Dataset.of(super().dataset())

    def evaluate(
        self,
        part: PartName = "test",
        *,
        dataset: StoredDataset | AnyPath | None = None,
        by: Sequence[str] = (),
        against: FinishedRun | AnyPath | None = None,
        intervals: bool = False,
        scores: AnyPath | None = None,
        device: str | None = None,
        quiet: bool = False,
    ) -> Evaluation:
        """The metrics computed anew, from the weights and the dataset as it is now.

        `dataset` is another one that this run can read: one that grew from its own, or has the same encoders. Segments
        are `by` "history", "new_users", "new_items" and columns of users, items or requests. `against` is a run to be
        compared on the same rows, with intervals of the differences; `intervals` are those of this run's metrics. With
        `scores`, a Parquet file of every candidate's scores is written.
        """
        progress, chosen = Progress(quiet=quiet), part_named(part)
        where = None if device is None else device_named(device, "device")
        out = None if scores is None else Path(scores)
        if out is not None:
            check_scores_path(out)
        other = FinishedRun.open(against) if isinstance(against, str | os.PathLike) else against
        learned = [one.record.trained_until for one in (self, other) if one is not None]
        measured = self.dataset() if dataset is None else opened(dataset)
        return evaluate_part(
            named_ranker(self, measured, progress),
            measured,
            chosen,
            progress,
            by=by,
            against=None if other is None else named_ranker(other, measured, progress),
            intervals=intervals,
            scores=out,
            device=where,
            later_than=max((until for until in learned if until is not None), default=None),
        )

    def predict(
        self, rows: Table, *, items: Table | None = None, users: Table | None = None, quiet: bool = False
    ) -> pl.DataFrame:
        """New rows with a probability per task beside them, in a column `predicted_TASK`.

        Rows are raw, as in the log, without labels: user, item, context columns, and the time for which the history is
        wanted (without it all of the history counts). `items` and `users` describe ids that the dataset does not know;
        columns of the rows may do so too. Rows are no events of the log: of events that it has already, score whole
        requests, or their own labels may be in the history.
        """
        progress = Progress(quiet=quiet)
        scorer = RowScorer(self, self._dataset(progress), items, users)
        asked = read_one(rows, "rows", scorer.reader.dataset.manifest.origin.get("csv"))
        scorer.check_columns(asked.columns)
        with progress.bar("scoring", asked.height) as bar:
            scored = scorer.score(asked, bar)
        if note := scorer.done.note():
            progress.say(f"note: {note}")
        return scored

    def predict_file(
        self,
        rows: AnyPath | Sequence[AnyPath],
        out: AnyPath,
        *,
        items: Table | None = None,
        users: Table | None = None,
        overwrite: bool = False,
        quiet: bool = False,
    ) -> Scored:
        """The same from files of any length to a file, whole or not at all: CSV (also .gz, .zst) or Parquet.

        Rows are read, scored and written block by block, in their order: memory does not grow with the file, but by 16
        bytes for every request that has an id. What `predict` says holds; rows of one request may be far apart if the
        first of them has the earliest time.
        """
        progress, target = Progress(quiet=quiet), Path(out)
        check_target(target)
        scorer, files = self.row_scorer(rows, progress, items=items, users=users)
        with progress.bar("scoring", sum(file.rows or 0 for file in files)) as bar:
            write_blocks(scorer.score_files(files, bar), target, overwrite=overwrite)
        if note := scorer.done.note():
            progress.say(f"note: {note}")
        return scorer.done

    def row_scorer(
        self,
        rows: AnyPath | Sequence[AnyPath],
        progress: Progress,
        *,
        items: Table | None = None,
        users: Table | None = None,
    ) -> tuple[RowScorer, tuple[EventFile, ...]]:
        """What `predict_file` works with: a scorer, and files of rows that it can score."""
        dataset = self._dataset(progress)
        named = [rows] if isinstance(rows, str | os.PathLike) else list(rows)
        files, notes = open_tables(named, "--rows", dataset.manifest.origin.get("csv"))
        scorer = RowScorer(self, dataset, items, users)
        scorer.check_columns(files[0].columns, files[0].name)
        for note in notes:
            progress.say(f"note: {note}")
        return scorer, files

    def report(self) -> Path:
        """Write the page of this run again, `report.html`: curves, metrics, configuration, times; returns its path."""
        return write_report(self.path)

    def export(
        self,
        store: AnyPath,
        *,
        rows: RowType = "fp16",
        activate: bool = True,
        engine: str | None = None,
        quiet: bool = False,
    ) -> BundleStore:
        """Run the offline item stage and publish a verified bundle, active unless told otherwise; returns the store.

        `engine="ray"` or `"ray:ADDRESS"` has the rows computed by a Ray cluster; the bundle is the same, byte for byte.
        """
        self.publish(store, rows=rows, activate=activate, engine=engine, quiet=quiet)
        return BundleStore.open(store)

    def publish(
        self,
        store: AnyPath,
        *,
        rows: RowType = "fp16",
        activate: bool = True,
        engine: str | None = None,
        quiet: bool = False,
    ) -> Bundle:
        """The same as `export`, and returns the bundle that was published, opened: `lr.Engine(run.publish(store))`."""
        return self.exported(store, rows=rows, activate=activate, engine=engine, quiet=quiet).bundle

    def exported(
        self,
        store: AnyPath,
        *,
        rows: RowType = "fp16",
        activate: bool = True,
        threads: int | None = None,
        engine: str | None = None,
        quiet: bool = False,
    ) -> Exported:
        """The same as `export`, and returns the bundle with what it took: rows copied, rows kept, seconds, bytes.

        An export that was interrupted is gone on with, by the same engine or another. Rows of items that have not
        changed are copied from an earlier bundle of the store if the weights of the item side are the same. `threads`
        compute side by side, by default one per core; with `engine="ray"` they are processes.
        """
        progress = Progress(quiet=quiet)
        told = f"interrupted; nothing was activated, {store} ranks as before; the same export again goes on from here"
        with if_interrupted(told), fleet_named(engine, threads, progress.say) as fleet:
            dataset = self._dataset(progress)
            exported = export_bundle(
                self.ranker(dataset),
                self.config.model,
                dataset,
                Path(store),
                max_history=self.config.train.max_history,
                row_type=rows,
                metrics={name: metric.model_dump() for name, metric in self.record.test.items()},
                progress=progress,
                threads=threads,
                fleet=fleet,
                report=report if (report := self.path / REPORT).is_file() else None,
            )
        if activate:
            BundleStore(Path(store)).make_active(exported.bundle)
        return exported

    def __repr__(self) -> str:
        record = self.record
        scores = ", ".join(
            f"{task} AUC {number_text(one.auc)} NE {number_text(one.ne)}" for task, one in record.test.items()
        )
        return f"<Run {self.path}: {record.model}, {record.parameters:,} parameters, test {scores}>"

    def _dataset(self, progress: Progress) -> Dataset:
        dataset = self.dataset()
        if note := self.growth_note(dataset):
            progress.say(f"note: {note}")
        return dataset

    def _epochs(self) -> Iterator[dict[str, object]]:
        for line in read_curves(self.path / EPOCHS).epochs:
            for task, metrics in line.metrics.items():
                yield {
                    "epoch": line.epoch,
                    "train_loss": line.train_loss,
                    "part": self.record.selected_on,
                    "task": task,
                    **metrics,
                }
