"""Several trainings side by side, one process and one thread each.

A ranker of this size spends its steps on small tensors, where a second thread gains nothing; a second process does.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import torch

from limerank.config import RunConfig
from limerank.data.batches import RequestLoader
from limerank.data.store.dataset import StoredDataset
from limerank.errors import DataError
from limerank.progress import Bar, Progress
from limerank.splits import Part
from limerank.threads import available_cores
from limerank.training.run import FinishedRun
from limerank.training.trainer import is_of, resume, train

if TYPE_CHECKING:
    from multiprocessing.sharedctypes import Synchronized

POLL_SECONDS = 0.25
STEPS_PER_REPORT = 20


@dataclass(frozen=True)
class Job:
    """One training run and where it goes."""

    config: RunConfig
    out: Path
    overwrite: bool
    test: bool = True
    """Without it the test part is not looked at, and the record has no metrics of it."""


def train_all(
    jobs: Sequence[Job],
    progress: Progress,
    finished: Callable[[FinishedRun], None],
    workers: int | None = None,
    failed: Callable[[Job, DataError], None] | None = None,
) -> list[FinishedRun]:
    """Train so many jobs at a time, by default one on each core; runs come back in the order of the jobs.

    A training that cannot be finished, say because its loss is not finite, ends all others, unless `failed` takes it.
    """
    workers = min(workers or available_cores(), len(jobs))
    total = sum(_steps(job.config) for job in jobs)
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        with _interrupts_go_to_the_parent_only():
            done_steps = context.Value("q", 0)
            executor = stack.enter_context(
                ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(done_steps,))
            )
            futures = {executor.submit(_train, job): job for job in jobs}
        try:
            with progress.bar(f"training, {workers} at a time", total) as bar:
                _watch(futures, done_steps, bar, finished, failed)
        except BaseException:
            executor.shutdown(wait=False, cancel_futures=True)
            for child in multiprocessing.active_children():
                child.terminate()
            raise
        return [future.result() for future in futures if future.exception() is None]


def end_with_the_parent() -> None:
    """A process that was started here ends when the one that started it is killed, instead of training on unseen."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            connection.wait([parent.sentinel])
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _interrupts_go_to_the_parent_only() -> Iterator[None]:
    """Processes started inside ignore Ctrl-C from their first instruction; the parent stops them itself."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _watch(
    futures: Mapping[Future[FinishedRun], Job],
    done_steps: Synchronized[int],
    bar: Bar,
    finished: Callable[[FinishedRun], None],
    failed: Callable[[Job, DataError], None] | None,
) -> None:
    shown, pending = 0, set(futures)
    while pending:
        done, pending = wait(pending, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
        for future in done:
            problem = future.exception()
            if failed is not None and isinstance(problem, DataError):
                failed(futures[future], problem)
            else:
                finished(future.result())
        now = done_steps.get_obj().value  # without its lock, which a worker that is killed may never give back
        bar.advance(now - shown)
        shown = now


def _begin(done_steps: Synchronized[int]) -> None:
    """What a worker does first; the number that it adds its steps to can be handed over now only."""
    end_with_the_parent()
    torch.set_num_threads(1)
    _Counting.done_steps = done_steps


def _train(job: Job) -> FinishedRun:
    progress = _Counting()
    if not job.overwrite and is_of(job.out, job.config):
        return resume(job.out, progress, test=job.test)
    return train(job.config, job.out, progress, overwrite=job.overwrite, test=job.test)


def _steps(config: RunConfig) -> int:
    training = config.train
    loader = RequestLoader(
        StoredDataset.open(config.dataset),
        Part.TRAIN,
        batch_requests=training.batch_requests,
        max_history=training.max_history,
    )
    return len(loader) * training.epochs


class _Counting(Progress):
    """Progress of a worker: adds its steps to a number that the parent watches."""

    done_steps: ClassVar[Synchronized[int]]
    """Of all workers together."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.unreported = 0

    @contextmanager
    def bar(self, description: str, total: int) -> Iterator[Bar]:
        yield self
        self.report()

    def advance(self, steps: int = 1) -> None:
        self.unreported += steps
        if self.unreported >= STEPS_PER_REPORT:
            self.report()

    def tell(self, text: str) -> None:
        return None

    def report(self) -> None:
        with self.done_steps.get_lock():
            self.done_steps.value += self.unreported
        self.unreported = 0
