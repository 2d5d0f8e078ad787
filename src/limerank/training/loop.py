"""The loop: batches, steps, epochs, what is measured and written down on the way, and where it can be resumed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from torch import Tensor

from limerank import files
from limerank.batch import RequestBatch
from limerank.config import RunConfig
from limerank.data.batches import Position, RequestLoader
from limerank.errors import DataError
from limerank.metrics import Metrics
from limerank.progress import Bar, Progress
from limerank.splits import Part
from limerank.training import run
from limerank.training.checkpoint import (
    FORMAT,
    LAST,
    Header,
    TrainingState,
    best_weights,
    comparable,
    random_state,
    read_tensors,
    set_random_state,
    write_checkpoint,
)
from limerank.training.distributed.evaluating import evaluate_together
from limerank.training.distributed.ranks import is_lost
from limerank.training.distributed.stopping import NotedInterrupts
from limerank.training.distributed.together import draw_apart
from limerank.training.news import epoch_line, selection_value, time_line
from limerank.training.optimizer import learning_rate_factor
from limerank.training.records.stages import StageTimes
from limerank.training.steps.interrupts import Interrupts
from limerank.training.steps.not_finite import diverged
from limerank.training.steps.progressive import ProgressiveWindow
from limerank.training.steps.step import NotFiniteError, TrainingStep
from limerank.training.tensorboard import TensorBoardLog, scalars_of_epoch
from limerank.training.unfinished import resume_command

Watch = Callable[[int, dict[str, Metrics]], None]
"""Called after each epoch with its number, from 1, and the metrics per task that choose the best."""


class TrainingLoop:
    """One training from where it stands to its end. `state` is how far it is; `folder` is where it writes."""

    def __init__(
        self,
        config: RunConfig,
        step: TrainingStep,
        loader: RequestLoader,
        validation: RequestLoader,
        *,
        selecting: Part,
        folder: Path,
        out: Path,
        progress: Progress,
        times: StageTimes,
        watch: Watch | None = None,
    ) -> None:
        self.config = config.train
        self.asked = config
        self.step = step
        self.loader = loader
        self.validation = validation
        self.selecting = selecting
        self.folder = folder
        self.out = out
        self.progress = progress
        self.times = times
        self.watch = watch
        self.state = TrainingState()
        self.ranks = step.ranks
        self.interrupts = Interrupts() if self.ranks.size == 1 else NotedInterrupts()
        self.window = ProgressiveWindow(loader, step) if self.config.order == "time" else None
        self.saved_step = 0
        self.saved_at = self.logged_at = self.began = time.perf_counter()
        self.began_step = self.timed_rows = 0
        self.in_step = False
        self.board: TensorBoardLog | None = None
        self.bar: Bar

    @property
    def steps(self) -> int:
        """Steps of the whole training, if it is not stopped early."""
        return len(self.loader) * self.config.passes

    def restore(self, header: Header) -> None:
        """Stand where a checkpoint was written: the next step is the one that would have come next."""
        tensors = read_tensors(self.folder / LAST) if self.ranks.is_first else {}
        self.state = header.state
        try:
            self.step.state.load_weights(lambda: _below("model.", tensors))
            self.step.state.load_moments(_below("optimizer.", tensors))
        except (RuntimeError, KeyError, ValueError) as unfit:
            if is_lost(unfit):
                raise
            raise DataError(f"{self.folder / LAST}: does not fit the ranker ({str(unfit).splitlines()[0]})") from None
        self.step.ranker.resume_at(self.state.step)
        if self.state.scaler:
            self.step.scaler.load_state_dict(self.state.scaler)
        if self.window is not None and self.ranks.is_first:
            self.window.load(_below("window.", tensors))
        self.loader.position = Position(self.state.passes, self.state.batches)
        self.saved_step = self.began_step = self.state.step
        log = self.folder / run.EPOCHS
        if self.ranks.is_first and log.exists():
            with log.open("r+b") as handle:
                handle.truncate(self.state.log_bytes)
        if self.ranks.size == 1:  # several draw by the number of the step
            set_random_state(tensors, self.step.device)

    def run(self) -> None:
        """Train to the end; the best weights are left in the ranker."""
        self.began = time.perf_counter()
        board = self._board() if self.config.tensorboard and self.ranks.is_first else None
        self.board = board
        try:
            with self.interrupts, self.progress.bar(f"training {self.step.ranker.name}", self.steps) as self.bar:
                self.bar.advance(self.state.step)
                self._train()
        finally:
            if board is not None:
                board.close()
        best = self.folder / best_weights(self.state.best_epoch)
        run.load_weights(self.step.ranker, best, self.step.state.load_weights)

    def _board(self) -> TensorBoardLog:
        return TensorBoardLog(self.folder / run.TENSORBOARD, self.began_step + 1 if self.began_step else None)

    def _train(self) -> None:
        try:
            while not self._is_finished():
                if self.state.passes == self.state.epochs:
                    with self.times.stage("training"):
                        self._pass()
                self._measure()
        except KeyboardInterrupt:
            self.interrupts.forget()
            if not self.in_step:  # pressed again inside of one: half a step is nothing to save
                with suppress(KeyboardInterrupt), self.interrupts.held():
                    self.save()
            raise KeyboardInterrupt(self._interrupted()) from None

    def _interrupted(self) -> str:
        where = f"interrupted at step {self.state.step:,} of {self.steps:,}"
        if not (self.folder / LAST).exists():
            return f"{where}; nothing was kept: no checkpoint had been written yet"
        kept = "which" if self.saved_step == self.state.step and not self.in_step else f"step {self.saved_step:,}"
        return f"{where}, {kept} is saved; go on with: {resume_command(self.out)}"

    def _is_finished(self) -> bool:
        waited = self.state.epochs - self.state.best_epoch
        return self.state.epochs >= self.config.passes or (self.state.epochs > 0 and waited >= self.config.patience)

    def _pass(self) -> None:
        """The rest of a pass over the training part."""
        self.step.ranker.train()
        self.logged_at, self.timed_rows = time.perf_counter(), 0
        for batch in self.loader:
            with self.interrupts.held():
                self._learn(batch)
        with self.interrupts.held():
            if self.state.logged_rows:
                self._log_steps()
            self.state.passes, self.state.batches = self.loader.position.passes, 0

    def _learn(self, batch: RequestBatch) -> None:
        """One step, and what is due after it."""
        self.in_step = True
        state = self.state
        draw_apart(self.asked.seed, state.step, self.ranks)
        if self.window is not None:
            self.window.predict(batch, state.batches)
        try:
            loss = self.step(batch, learning_rate_factor(state.step, self.steps, self.config))
        except NotFiniteError as broken:
            raise self._diverged(Position(state.passes, state.batches), state.step + 1, str(broken)) from None
        rows = self.step.rows(batch)
        state.step += 1
        state.batches = self.loader.position.batches
        state.rows += rows
        state.epoch_loss += loss * rows
        state.epoch_rows += rows
        state.logged_loss += loss * rows
        state.logged_rows += rows
        self.timed_rows += rows
        self.in_step = False
        self.bar.advance()
        if state.step % self.config.log_steps == 0:
            self._log_steps()
        stop, due = self.ranks.any(self._asked_to_stop(), self._checkpoint_is_due())
        if stop:
            raise KeyboardInterrupt
        if due:
            self.save()

    def _log_steps(self) -> None:
        state, now = self.state, time.perf_counter()
        rate = self.config.learning_rate * learning_rate_factor(state.step - 1, self.steps, self.config)
        loss, per_second = state.logged_loss / state.logged_rows, self.timed_rows / (now - self.logged_at)
        numbers = {"train_loss": loss, "learning_rate": rate, "rows_per_second": round(per_second, 1)}
        self._write("step", numbers)
        if self.board is not None:
            self.board.scalars(state.step, {f"train/{name}": value for name, value in numbers.items()})
        if self.window is not None:
            metrics, until = self.window.measured(self.ranks)
            self._write("progressive", {"progressive": _dumped(metrics), "until_time": until})
        state.logged_loss, state.logged_rows, self.logged_at, self.timed_rows = 0.0, 0, now, 0
        self.bar.tell(f"loss {loss:.4f}, {per_second:,.0f} rows/s")

    def _measure(self) -> None:
        """The end of an epoch: metrics of the part that selects, the best weights, a line, a checkpoint."""
        with self.times.stage("validating"):
            metrics = evaluate_together(self.step.ranker, self.validation, self.ranks, self.step.device)
        with self.interrupts.held():
            self._end_epoch(metrics)
        if self.ranks.any(self._asked_to_stop())[0]:
            raise KeyboardInterrupt
        if self.watch is not None:
            try:
                self.watch(self.state.epochs, metrics)
            except BaseException:
                (self.folder / LAST).unlink(missing_ok=True)  # it is not to be resumed: nothing of it is kept
                raise

    def _end_epoch(self, metrics: dict[str, Metrics]) -> None:
        state, value = self.state, selection_value(metrics)
        state.epochs += 1
        loss = state.epoch_loss / max(state.epoch_rows, 1)
        best = state.best_value is None or value < state.best_value
        self._write("epoch", {"epoch": state.epochs, "train_loss": loss, "validation": _dumped(metrics)})
        if self.board is not None:
            self.board.scalars(state.step, scalars_of_epoch(loss, metrics, self.selecting))
        so_far = sum(self.times.seconds.get(stage, 0.0) for stage in ("training", "validating"))
        self.progress.say(
            f"{epoch_line(state.epochs, self.config, loss, metrics, self.selecting, best=best)}; "
            f"{time_line(state.epochs, self.config.passes, so_far - state.epochs_seconds, so_far)}"
        )
        state.epochs_seconds, state.epoch_loss, state.epoch_rows = so_far, 0.0, 0
        if best:
            self._check_finite()
            state.best_epoch, state.best_value, state.best_metrics = state.epochs, value, metrics
            best_file = self.folder / best_weights(state.epochs)
            with self.room(), self.times.stage("saving"):
                weights = self.step.state.weights()
                if self.ranks.is_first:
                    with files.replaced_file(best_file) as aside:
                        run.save_weights(weights, aside)
        self.save()

    def save(self) -> None:
        """Write a checkpoint over the last one; one that cannot be written leaves the last one whole."""
        self._check_finite()
        state = self.state
        with self.room(), self.times.stage("saving"):
            log = self.folder / run.EPOCHS
            state.log_bytes = log.stat().st_size if log.exists() else 0
            state.stage_seconds = self.times.seconds
            state.scaler = self.step.scaler.state_dict()
            config, tensors = comparable(self.asked), dict(self._tensors())
            header = Header(format=FORMAT, data_fingerprint=self.loader.dataset.fingerprint, config=config, state=state)
            if self.ranks.is_first:
                write_checkpoint(self.folder, header, tensors)
        self.saved_step, self.saved_at = state.step, time.perf_counter()

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        for name, value in self.step.state.weights().items():
            yield f"model.{name}", value.detach().cpu().contiguous()
        for name, value in self.step.state.moments():
            yield f"optimizer.{name}", value.detach().cpu().contiguous()
        yield from random_state(self.step.device).items()
        if self.window is not None:
            for name, value in self.window.tensors(self.ranks):
                yield f"window.{name}", value

    def _asked_to_stop(self) -> bool:
        return isinstance(self.interrupts, NotedInterrupts) and self.interrupts.pending

    def _checkpoint_is_due(self) -> bool:
        every = self.config.checkpoint_steps
        waited = time.perf_counter() - self.saved_at
        return (every is not None and self.state.step % every == 0) or waited >= 60 * self.config.checkpoint_minutes

    def _check_finite(self) -> None:
        if not self.step.is_finite():
            state = self.state
            ended = Position(state.passes - 1, len(self.loader) - 1)
            last = Position(state.passes, state.batches - 1) if state.batches else ended
            raise self._diverged(last, state.step, "some weights are not finite after it")

    def _diverged(self, batch: Position, step: int, reason: str) -> DataError:
        """The error to raise; the batch is kept, whole."""
        self.loader.position = batch
        kept = self.folder if self.ranks.is_first else None
        error = diverged(self.loader, batch.batches, step, reason, kept, self._kept())
        self.ranks.wait()  # whoever ends first ends all
        return error

    def _kept(self) -> str:
        if not self.saved_step:
            return "no checkpoint had been written yet"
        return f"the checkpoint of step {self.saved_step:,} in {self.folder / LAST.parent} is whole"

    def room(self) -> AbstractContextManager[None]:
        """Where a full disk ends the training with words that say what is kept."""
        again = f"go on with: {resume_command(self.out)}" if self.saved_step else "train anew"
        return files.full_disk_named(self.folder / LAST, f"free some, then {again}", self._kept())

    def _write(self, kind: str, values: Mapping[str, object]) -> None:
        if not self.ranks.is_first:
            return
        seconds = round(sum(self.times.seconds.values()), 3)
        with self.room():
            run.append_line(
                self.folder / run.EPOCHS, {"kind": kind, "step": self.state.step, "seconds": seconds, **values}
            )


def _below(start: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}


def _dumped(metrics: dict[str, Metrics]) -> dict[str, dict[str, object]]:
    return {task: one.model_dump() for task, one in metrics.items()}
