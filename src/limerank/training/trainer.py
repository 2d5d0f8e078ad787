"""The trainer: from a configuration to a run folder, or from a checkpoint to the end of its training."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import torch

from limerank import files
from limerank.config import DistributedConfig, RunConfig, load_run_config
from limerank.data.batches import RequestLoader
from limerank.data.store.dataset import StoredDataset
from limerank.data.store.new_day import Ints, new_day
from limerank.evaluation.evaluate import evaluation_loader, oracle
from limerank.evaluation.floor import counting_floor
from limerank.metrics import Metrics
from limerank.models import build_ranker, complete_model
from limerank.progress import Progress
from limerank.splits import Part
from limerank.threads import warn_if_spinning
from limerank.training import run
from limerank.training.checkpoint import LAST, Header, TrainingState, comparable
from limerank.training.distributed.evaluating import evaluate_together
from limerank.training.distributed.ranks import Ranks
from limerank.training.distributed.together import check_agreed, check_shared
from limerank.training.loop import TrainingLoop, Watch
from limerank.training.records.page import report_if_possible
from limerank.training.records.revision import revision
from limerank.training.records.stages import StageTimes, utc_now
from limerank.training.steps.device import device_of
from limerank.training.steps.labels import check_labels
from limerank.training.steps.start import start_from_items
from limerank.training.steps.step import TrainingStep
from limerank.training.stopped import CONTINUED, Stopped
from limerank.training.unfinished import begun, clear, finished_folder, is_done, publish, reopened, unfinished_folder


def train(
    config: RunConfig,
    out: Path,
    progress: Progress,
    *,
    overwrite: bool = False,
    where: str = "run configuration",
    watch: Watch | None = None,
    test: bool = True,
) -> run.FinishedRun:
    """Train one ranker as configured and leave a run folder at `out`, whole or not at all.

    `where` is what an error in the configuration calls it: usually its file. An exception that `watch` raises ends the
    training, and nothing of it is kept. Without `test` the test part is not looked at, and the record has no metrics of
    it. A training that is interrupted or killed can be resumed from its last checkpoint.

    Where a process group of torch.distributed is open, its processes train together, and the first one writes. When
    torchrun has started them again (--max-restarts), they go on from the last checkpoint.
    """
    ranks = Ranks.here()
    config = config.model_copy(update={"model": complete_model(config.model, where)})
    if ranks.any(ranks.is_first and ranks.started_again and is_of(out, config))[0]:
        return resume(out, progress, test=test)
    device = device_of(config.train, ranks)
    with begun(out, overwrite=overwrite) if ranks.is_first else nullcontext(unfinished_folder(out)) as folder:
        training = _Training(config, folder, out, progress, device, where, fresh=True)
        if ranks.is_first:
            clear(folder, overwrite=overwrite)
            run.write_config(folder, config, final=out)
        finished = training.finish(watch=watch, test=test)
    if test and ranks.is_first:  # trials of a search are many, and nobody looks at their pages
        report_if_possible(out, progress)
    return finished


def resume(
    out: Path, progress: Progress, *, test: bool = True, distributed: DistributedConfig | None = None
) -> run.FinishedRun:
    """Go on with a training that was stopped, from its last checkpoint, exactly as it would have gone on.

    Another number of processes may go on with it, and hold its tables another way.
    """
    out, ranks = finished_folder(out), Ranks.here()
    with reopened(out) if ranks.is_first else nullcontext(unfinished_folder(out)) as folder:
        finished = _resumed(folder, out, progress, test, distributed)
    if test and ranks.is_first:
        report_if_possible(out, progress)
    return finished


def _resumed(
    folder: Path, out: Path, progress: Progress, test: bool, distributed: DistributedConfig | None
) -> run.FinishedRun:
    ranks = Ranks.here()
    if ranks.any(ranks.is_first and is_done(folder))[0]:
        if ranks.is_first:
            publish(folder, out)
        return _told(run.FinishedRun.open(out) if ranks.is_first else None, out, ranks)
    where = folder / run.CONFIG
    stopped = Stopped.read(folder) if ranks.is_first else None
    stopped = Stopped.model_validate_json(ranks.told("" if stopped is None else stopped.model_dump_json()))
    config = stopped.config.model_copy(update={"distributed": distributed or stopped.config.distributed})
    device = device_of(config.train, ranks)
    progress.say(f"going on with {out} at step {stopped.header.state.step:,}")
    training = _Training(config, folder, out, progress, device, str(where), stopped.header)
    if stopped.continued is not None:
        training.continue_from(stopped.continued)
    return training.finish(test=test)


def is_of(out: Path, config: RunConfig) -> bool:
    """Whether an unfinished training can be resumed at `out`, and is of this configuration."""
    folder = unfinished_folder(out)
    if not (folder / LAST).is_file():
        return False
    complete = config.model_copy(update={"model": complete_model(config.model, "run configuration")})
    return comparable(load_run_config(folder / run.CONFIG)) == comparable(complete)


def continue_run(
    before: run.FinishedRun, config: RunConfig, out: Path, progress: Progress, *, overwrite: bool = False
) -> run.FinishedRun:
    """Train on what was appended to the dataset of a run since, starting from its weights, and measure the drift.

    New requests are cut by time: the first train, later ones select, the last measure both runs (`new_day`).
    """
    where, ranks = str(before.path / run.CONFIG), Ranks.here()
    config = config.model_copy(update={"model": complete_model(config.model, where)})
    if ranks.any(ranks.is_first and ranks.started_again and is_of(out, config))[0]:
        return resume(out, progress)
    device = device_of(config.train, ranks)
    with begun(out, overwrite=overwrite) if ranks.is_first else nullcontext(unfinished_folder(out)) as folder:
        training = _Training(config, folder, out, progress, device, where)
        day = new_day(training.dataset, before.record.data_fingerprint)
        if ranks.is_first:
            clear(folder, overwrite=overwrite)
            run.write_config(folder, config, final=out)
        progress.say(day.text)
        run.load_weights(training.ranker, before.path / run.WEIGHTS, training.step.state.load_weights)
        on_all, on_test = (training.evaluate(requests) for requests in (day.requests, day.test_requests))
        continued = run.Continued(
            run=before.path.absolute().name,
            since=before.record.data_fingerprint,
            trained_until=day.trained_until,
            requests={
                "train": len(day.train_requests),
                "validation": len(day.validation_requests),
                "test": len(day.test_requests),
            },
            before_on_all=on_all,
            before_on_test=on_test,
        )
        if ranks.is_first:
            files.write_json(folder / CONTINUED, continued.model_dump())
        training.continue_from(continued)
        finished = training.finish()
    if ranks.is_first:
        report_if_possible(out, progress)
    return finished


def _told(finished: run.FinishedRun | None, out: Path, ranks: Ranks) -> run.FinishedRun:
    """The finished run as the first rank opened it; others may not see its folder."""
    if ranks.size == 1 and finished is not None:
        return finished
    config = ranks.told("" if finished is None else finished.config.model_dump_json())
    record = ranks.told("" if finished is None else finished.record.model_dump_json())
    return run.FinishedRun(out, RunConfig.model_validate_json(config), run.RunRecord.model_validate_json(record))


class _Training:
    """Everything one training needs, opened: dataset, ranker and step, and which requests it uses for what."""

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        out: Path,
        progress: Progress,
        device: torch.device,
        where: str,
        header: Header | None = None,
        *,
        fresh: bool = False,
    ) -> None:
        warn_if_spinning()
        self.config, self.folder, self.out, self.progress = config, folder, out, progress
        self.device = device
        self.header = header
        self.ranks = Ranks.here()
        check_shared(config, self.ranks)
        self.times = StageTimes(header.state.stage_seconds if header else None)
        with self.times.stage("loading"):
            self.dataset = StoredDataset.open(config.dataset, check_hashes=self.ranks.number_here == 0)
            check_agreed(config, self.dataset.fingerprint, self.ranks)
            check_labels(self.dataset, progress)
        torch.manual_seed(config.seed)
        with self.times.stage("building"):
            tasks = tuple(task.name for task in self.dataset.schema.tasks)
            self.ranker = build_ranker(config.model, self.dataset.encoders.space(), len(tasks), where)
            if fresh:  # no weights to go on from
                start_from_items(self.ranker, self.dataset, self.dataset.requests_in(Part.TRAIN), config.seed)
            self.ranks.same_start(self.ranker)
            self.parameters = run.count_parameters(self.ranker)
            self.step = TrainingStep(
                self.ranker, config.train, tasks, device, ranks=self.ranks, distributed=config.distributed
            )
        self.selecting = Part.TEST if self.dataset.schema.split.select_on_test else Part.VALIDATION
        self.requests = {part: self.dataset.requests_in(part) for part in (Part.TRAIN, self.selecting, Part.TEST)}
        self.continued: run.Continued | None = None

    def continue_from(self, continued: run.Continued) -> None:
        """Use the requests of the new day for what they are for."""
        day = new_day(self.dataset, continued.since)
        self.selecting = Part.VALIDATION
        self.requests = {
            Part.TRAIN: day.train_requests,
            Part.VALIDATION: day.validation_requests,
            Part.TEST: day.test_requests,
        }
        self.continued = continued

    def loader(self, requests: Ints) -> RequestLoader:
        """What evaluation reads."""
        loader = evaluation_loader(self.dataset, requests, self.config.train.max_history, self.ranker.needs_times)
        loader.portion = self.ranks.portion
        return loader

    def evaluate(self, requests: Ints) -> dict[str, Metrics]:
        """Metrics of the ranker as it is."""
        return evaluate_together(self.ranker, self.loader(requests), self.ranks, self.device)

    def finish(self, *, watch: Watch | None = None, test: bool = True) -> run.FinishedRun:
        """Train to the end, measure, and make the folder the run."""
        loop = self._loop(watch)
        loop.run()
        testing, first = self.loader(self.requests[Part.TEST]) if test else None, self.ranks.is_first
        with self.times.stage("testing"):
            tested = {} if testing is None else self.evaluate(self.requests[Part.TEST])
            counted = counting_floor(testing) if testing is not None and first else {}
            true = oracle(testing) if testing is not None and first else {}
        with self.times.stage("saving"):
            weights = self.step.state.weights()
        if first:
            with loop.room():
                with self.times.stage("saving"):
                    run.save_weights(weights, self.folder / run.WEIGHTS)
                record = self._record(loop.state, tested, counted, true)
                files.write_json(self.folder / run.RECORD, record.model_dump())
            (self.folder / CONTINUED).unlink(missing_ok=True)
            publish(self.folder, self.out)
        return _told(run.FinishedRun.open(self.out) if first else None, self.out, self.ranks)

    def _loop(self, watch: Watch | None) -> TrainingLoop:
        training, progress, requests = self.config.train, self.progress, self.requests
        loader = RequestLoader(
            self.dataset,
            requests[Part.TRAIN],
            batch_requests=training.batch_requests,
            max_history=training.max_history,
            seed=self.config.seed,
            order=training.order,
            prefetch=training.prefetch,
            with_times=self.ranker.needs_times,
            portion=self.ranks.portion,
        )
        if self.selecting is Part.TEST:
            progress.say("note: this dataset selects on its test part, as leaderboards do; the run records it")
        passes = training.passes
        progress.say(
            f"training {self.ranker.name} ({self.parameters:,} parameters"
            f"{f', {self.ranks.size} processes' * (self.ranks.size > 1)}): "
            f"{len(loader.requests):,} requests, {len(loader):,} steps an epoch, at most {passes} epoch"
            f"{'s' * (passes > 1)}"
        )
        loop = TrainingLoop(
            self.config,
            self.step,
            loader,
            self.loader(requests[self.selecting]),
            selecting=self.selecting,
            folder=self.folder,
            out=self.out,
            progress=progress,
            times=self.times,
            watch=watch,
        )
        if self.header is None:
            loop.state.started = utc_now()
        else:
            loop.restore(self.header)
        return loop

    def _record(
        self,
        state: TrainingState,
        tested: dict[str, Metrics],
        counted: dict[str, Metrics],
        true: dict[str, Metrics],
    ) -> run.RunRecord:
        seconds = self.times.seconds
        return run.RunRecord(
            model=self.ranker.name,
            parameters=self.parameters,
            seed=self.config.seed,
            data_fingerprint=self.dataset.fingerprint,
            versions=run.versions(),
            machine=run.machine() | ({"processes": self.ranks.size} if self.ranks.size > 1 else {}),
            selected_on=self.selecting.value,
            epochs=state.epochs,
            best_epoch=state.best_epoch,
            train_seconds=round(seconds["training"] + seconds["validating"], 3),
            validation=state.best_metrics,
            test=tested,
            oracle=true,
            floor=counted,
            started=state.started,
            finished=utc_now(),
            revision=revision(),
            steps=state.step,
            stage_seconds=seconds,
            rows_per_second=round(state.rows / max(seconds["training"], 1e-3), 1),
            device=str(self.device),
            deterministic=torch.are_deterministic_algorithms_enabled(),
            continued=self.continued,
        )
