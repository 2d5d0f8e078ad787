"""The trainer: from a configuration to a run folder, or from a checkpoint to the end of its training."""

from __future__ import annotations

from pathlib import Path

import torch

from limerank import files
from limerank.config import RunConfig, load_run_config
from limerank.data.batches import RequestLoader
from limerank.data.describe.labels import count_labels
from limerank.data.store.dataset import StoredDataset
from limerank.errors import DataError
from limerank.evaluation.evaluate import evaluate, evaluation_loader, oracle
from limerank.evaluation.floor import counting_floor
from limerank.models import build_ranker, complete_model
from limerank.progress import Progress
from limerank.splits import Part
from limerank.threads import warn_if_spinning
from limerank.training import run
from limerank.training.checkpoint import Header, read_header
from limerank.training.loop import TrainingLoop, Watch
from limerank.training.records.page import report_if_possible
from limerank.training.records.revision import revision
from limerank.training.records.stages import StageTimes, utc_now
from limerank.training.steps.device import device_of
from limerank.training.steps.step import TrainingStep
from limerank.training.unfinished import begun, is_done, publish, reopened


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
    """
    config = config.model_copy(update={"model": complete_model(config.model, where)})
    with begun(out, overwrite=overwrite) as folder:
        run.write_config(folder, config, final=out)
        return _train(config, folder, out, progress, where=where, watch=watch, test=test)


def resume(out: Path, progress: Progress, *, watch: Watch | None = None, test: bool = True) -> run.FinishedRun:
    """Go on with a training that was stopped, from its last checkpoint, exactly as it would have gone on."""
    with reopened(out) as folder:
        if is_done(folder):
            publish(folder, out)
            return run.FinishedRun.open(out)
        where = folder / run.CONFIG
        config = load_run_config(where)
        fingerprint = StoredDataset.open(config.dataset).fingerprint
        header = read_header(folder, config, fingerprint)
        progress.say(f"going on with {out} at step {header.state.step:,}")
        return _train(config, folder, out, progress, where=str(where), watch=watch, test=test, header=header)


def _train(
    config: RunConfig,
    folder: Path,
    out: Path,
    progress: Progress,
    *,
    where: str,
    watch: Watch | None,
    test: bool,
    header: Header | None = None,
) -> run.FinishedRun:
    warn_if_spinning()
    times = StageTimes(header.state.stage_seconds if header else None)
    training = config.train
    device = device_of(training)
    with times.stage("loading"):
        dataset = StoredDataset.open(config.dataset, check_hashes=True)
        _check_labels(dataset, progress)
    torch.manual_seed(config.seed)
    with times.stage("building"):
        tasks = tuple(task.name for task in dataset.schema.tasks)
        ranker = build_ranker(config.model, dataset.encoders.space(), len(tasks), where)
        step = TrainingStep(ranker, training, tasks, device)
    loader = RequestLoader(
        dataset,
        Part.TRAIN,
        batch_requests=training.batch_requests,
        max_history=training.max_history,
        seed=config.seed,
        order=training.order,
        prefetch=training.prefetch,
        with_times=ranker.needs_times,
    )
    selecting = Part.TEST if dataset.schema.split.select_on_test else Part.VALIDATION
    if selecting is Part.TEST:
        progress.say("note: this dataset selects on its test part, as leaderboards do; the run records it")
    validation = evaluation_loader(dataset, selecting, training.max_history, ranker.needs_times)
    testing = evaluation_loader(dataset, Part.TEST, training.max_history, ranker.needs_times) if test else None
    _check_parts(dataset, {Part.TRAIN: loader, selecting: validation, Part.TEST: testing})
    passes = training.passes
    progress.say(
        f"training {ranker.name} ({run.count_parameters(ranker):,} parameters): {len(loader.requests):,} requests, "
        f"{len(loader):,} steps an epoch, at most {passes} epoch{'s' * (passes > 1)}"
    )
    loop = TrainingLoop(
        config,
        step,
        loader,
        validation,
        selecting=selecting,
        folder=folder,
        out=out,
        progress=progress,
        times=times,
        watch=watch,
    )
    if header is None:
        loop.state.started = utc_now()
    else:
        loop.restore(header)
    loop.run()
    with times.stage("testing"):
        tested = {} if testing is None else evaluate(ranker, testing, device=device)
        counted = {} if testing is None else counting_floor(testing)
        true = {} if testing is None else oracle(testing)
    with times.stage("saving"):
        run.save_weights(ranker, folder / run.WEIGHTS)
    state, seconds = loop.state, times.seconds
    record = run.RunRecord(
        model=ranker.name,
        parameters=run.count_parameters(ranker),
        seed=config.seed,
        data_fingerprint=dataset.fingerprint,
        versions=run.versions(),
        machine=run.machine(),
        selected_on=selecting.value,
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
        device=str(device),
        deterministic=torch.are_deterministic_algorithms_enabled(),
    )
    files.write_json(folder / run.RECORD, record.model_dump())
    report_if_possible(folder, progress)
    publish(folder, out)
    return run.FinishedRun.open(out)


def _check_labels(dataset: StoredDataset, progress: Progress) -> None:
    """Refuse a task that is the same in all of train; say where it cannot be measured."""
    for task in count_labels(dataset):
        problem = task.problem()
        if Part.TRAIN in task.one_class_in():
            raise DataError(
                f"{dataset.path}: {problem}; correct the label or leave the task out of the description, or change the "
                "split, and prepare the log again"
            )
        if problem:
            progress.say(f"note: {problem}")


def _check_parts(dataset: StoredDataset, loaders: dict[Part, RequestLoader | None]) -> None:
    """Refuse to begin when what is to be trained on or measured is empty."""
    for part, loader in loaders.items():
        if loader is not None and not len(loader.requests):
            raise DataError(
                f"{dataset.path}: its {part.value} part has no requests; change the split in the description of the "
                "log and prepare it again"
            )
