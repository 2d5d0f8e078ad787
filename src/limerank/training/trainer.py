"""The trainer: Adam on the mean binary cross-entropy of all tasks, early stopping on validation NE, a run folder."""

from __future__ import annotations

import copy
import time
from contextlib import ExitStack
from pathlib import Path

import torch

from limerank import files
from limerank.config import RunConfig, TrainConfig
from limerank.data.batches import RequestLoader
from limerank.data.describe.labels import count_labels
from limerank.data.store.dataset import StoredDataset
from limerank.errors import DataError, if_interrupted
from limerank.models import Ranker, build_ranker, check_model
from limerank.progress import Bar, Progress
from limerank.splits import Part
from limerank.threads import warn_if_spinning
from limerank.training import run
from limerank.training.evaluate import evaluate, evaluation_loader, oracle
from limerank.training.floor import counting_floor
from limerank.training.news import UNFINISHED, epoch_line, selection_value, time_line
from limerank.training.records.page import report_if_possible
from limerank.training.records.revision import revision
from limerank.training.records.stages import StageTimes, utc_now
from limerank.training.tensorboard import TensorBoardLog, scalars_of_epoch


def train(
    config: RunConfig, out: Path, progress: Progress, *, overwrite: bool = False, where: str = "run configuration"
) -> run.FinishedRun:
    """Train one ranker as configured and leave a run folder at `out`, whole or not at all.

    `where` is what an error in the configuration calls it: usually its file.
    """
    warn_if_spinning()
    check_model(config.model, where)
    began, times = utc_now(), StageTimes()
    with times.stage("loading"):
        dataset = StoredDataset.open(config.dataset, check_hashes=True)
        _check_labels(dataset, progress)
    torch.manual_seed(config.seed)
    with times.stage("building"):
        ranker = build_ranker(config.model, dataset.encoders.space(), len(dataset.schema.tasks), where)
    training = config.train
    loader = RequestLoader(
        dataset,
        Part.TRAIN,
        batch_requests=training.batch_requests,
        max_history=training.max_history,
        seed=config.seed,
        prefetch=training.prefetch,
        with_times=ranker.needs_times,
    )
    selecting = Part.TEST if dataset.schema.split.select_on_test else Part.VALIDATION
    if selecting is Part.TEST:
        progress.say("note: this dataset selects on its test part, as leaderboards do; the run records it")
    validation = evaluation_loader(dataset, selecting, training.max_history, ranker.needs_times)
    test = evaluation_loader(dataset, Part.TEST, training.max_history, ranker.needs_times)
    with (
        files.staged_directory(out, marker=run.RECORD, overwrite=overwrite) as staging,
        if_interrupted(f"interrupted; {UNFINISHED}"),
    ):
        run.write_config(staging, config, final=out)
        progress.say(
            f"training {ranker.name} ({run.count_parameters(ranker):,} parameters): {len(loader.requests):,} requests, "
            f"{len(loader):,} steps an epoch, at most {training.epochs} epoch{'s' * (training.epochs > 1)}"
        )
        with ExitStack() as stack:
            board = stack.enter_context(TensorBoardLog(staging / run.TENSORBOARD)) if training.tensorboard else None
            started = time.perf_counter()
            best_epoch, epochs = _fit(ranker, loader, validation, selecting, training, staging, progress, times, board)
        train_seconds = round(time.perf_counter() - started, 3)
        with times.stage("validating"):
            validated = evaluate(ranker, validation)
        with times.stage("testing"):
            tested, best, floor = evaluate(ranker, test), oracle(test), counting_floor(test)
        with times.stage("saving"):
            run.save_weights(ranker, staging / run.WEIGHTS)
        rows = _candidate_rows(loader) * epochs
        record = run.RunRecord(
            model=ranker.name,
            parameters=run.count_parameters(ranker),
            seed=config.seed,
            data_fingerprint=dataset.fingerprint,
            versions=run.versions(),
            machine=run.machine(),
            selected_on=selecting.value,
            epochs=epochs,
            best_epoch=best_epoch,
            train_seconds=train_seconds,
            validation=validated,
            test=tested,
            oracle=best,
            floor=floor,
            started=began,
            finished=utc_now(),
            revision=revision(),
            steps=len(loader) * epochs,
            stage_seconds=times.seconds,
            rows_per_second=round(rows / max(times.seconds["training"], 1e-3), 1),
            device=str(next(ranker.parameters()).device),
            deterministic=torch.are_deterministic_algorithms_enabled(),
        )
        files.write_json(staging / run.RECORD, record.model_dump())
    report_if_possible(out, progress)
    return run.FinishedRun.open(out)


def _candidate_rows(loader: RequestLoader) -> int:
    """How many rows an epoch trains on."""
    start = loader.dataset.column("requests/start").astype("int64")
    return int((start[loader.requests + 1] - start[loader.requests]).sum())


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


def _fit(
    ranker: Ranker,
    loader: RequestLoader,
    validation: RequestLoader,
    selecting: Part,
    config: TrainConfig,
    out: Path,
    progress: Progress,
    times: StageTimes,
    board: TensorBoardLog | None,
) -> tuple[int, int]:
    """Train until the epochs are done or validation stops improving; the best weights are left in the ranker."""
    optimizer = torch.optim.Adam(
        ranker.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay, fused=True
    )
    steps = len(loader) * config.epochs
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _learning_rate_factor(step, steps, config))
    best_epoch, best_value, best_weights = 0, float("inf"), copy.deepcopy(ranker.state_dict())
    epoch, began = 0, time.perf_counter()
    with progress.bar(f"training {ranker.name}", steps) as bar:
        for epoch in range(1, config.epochs + 1):
            started = time.perf_counter()
            with if_interrupted(f"interrupted in epoch {epoch} of {config.epochs}; {UNFINISHED}"):
                with times.stage("training"):
                    loss = _one_epoch(ranker, loader, optimizer, schedule, bar)
                with times.stage("validating"):
                    metrics = evaluate(ranker, validation)
            value, now = selection_value(metrics), time.perf_counter()
            line = {"epoch": epoch, "train_loss": loss, "validation": {n: m.model_dump() for n, m in metrics.items()}}
            run.append_line(out / run.EPOCHS, line)
            if board is not None:
                board.scalars(epoch * len(loader), scalars_of_epoch(loss, metrics, selecting))
            progress.say(
                f"{epoch_line(epoch, config, loss, metrics, selecting, best=value < best_value)}; "
                f"{time_line(epoch, config.epochs, now - started, now - began)}"
            )
            if value < best_value:
                best_epoch, best_value, best_weights = epoch, value, copy.deepcopy(ranker.state_dict())
            elif epoch - best_epoch >= config.patience:
                break
    ranker.load_state_dict(best_weights)
    return best_epoch, epoch


def _one_epoch(
    ranker: Ranker,
    loader: RequestLoader,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    bar: Bar,
) -> float:
    ranker.train()
    total, rows = 0.0, 0
    for batch in loader:
        loss, own = ranker.losses(batch)
        optimizer.zero_grad(set_to_none=True)
        (loss if own is None else loss + own).backward()
        optimizer.step()
        schedule.step()
        total += float(loss.detach()) * len(batch.labels)
        rows += len(batch.labels)
        bar.advance()
    if total != total:
        raise DataError("the training loss became NaN; lower train.learning_rate")
    return total / rows


def _learning_rate_factor(step: int, steps: int, config: TrainConfig) -> float:
    """Linear warm-up, then linear decay to the final fraction."""
    warmup = config.warmup_fraction * steps
    decayed = 1 - (1 - config.final_learning_rate_fraction) * step / steps
    return min((step + 1) / (warmup + 1), decayed)
