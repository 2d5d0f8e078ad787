"""Several trainings side by side, one process and one thread each.

A ranker of this size spends its steps on small tensors, where a second thread gains nothing; a second process does.
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.managers import ValueProxy
from pathlib import Path
from threading import Lock

import torch

from limerank.config import RunConfig
from limerank.data.batches import RequestLoader
from limerank.data.store.dataset import StoredDataset
from limerank.progress import Bar, Progress
from limerank.splits import Part
from limerank.threads import available_cores
from limerank.training.run import FinishedRun
from limerank.training.trainer import is_of, resume, train

POLL_SECONDS = 0.25
STEPS_PER_REPORT = 20


@dataclass(frozen=True)
class Job:
    """One training run and where it goes."""

    config: RunConfig
    out: Path
    overwrite: bool


def train_all(
    jobs: Sequence[Job], progress: Progress, finished: Callable[[FinishedRun], None], workers: int | None = None
) -> list[FinishedRun]:
    """Train so many jobs at a time, by default one on each core; runs come back in the order of the jobs."""
    workers = min(workers or available_cores(), len(jobs))
    total = sum(_steps(job.config) for job in jobs)
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        with _interrupts_go_to_the_parent_only():
            manager = stack.enter_context(context.Manager())
            done_steps, lock = manager.Value("q", 0), manager.Lock()
            executor = stack.enter_context(ProcessPoolExecutor(workers, mp_context=context))
            futures = [executor.submit(_train, job, done_steps, lock) for job in jobs]
        try:
            with progress.bar(f"training, {workers} at a time", total) as bar:
                _watch(futures, done_steps, bar, finished)
        except BaseException:
            executor.shutdown(wait=False, cancel_futures=True)
            for child in multiprocessing.active_children():
                child.terminate()
            raise
        return [future.result() for future in futures]


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
    futures: Sequence[Future[FinishedRun]],
    done_steps: ValueProxy[int],
    bar: Bar,
    finished: Callable[[FinishedRun], None],
) -> None:
    shown, pending = 0, set(futures)
    while pending:
        done, pending = wait(pending, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
        for future in done:
            finished(future.result())
        now = done_steps.value
        bar.advance(now - shown)
        shown = now


def _train(job: Job, done_steps: ValueProxy[int], lock: Lock) -> FinishedRun:
    torch.set_num_threads(1)
    progress = _Counting(done_steps, lock)
    if not job.overwrite and is_of(job.out, job.config):
        return resume(job.out, progress)
    return train(job.config, job.out, progress, overwrite=job.overwrite)


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

    def __init__(self, done_steps: ValueProxy[int], lock: Lock) -> None:
        super().__init__(quiet=True)
        self.done_steps = done_steps
        self.lock = lock
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
        with self.lock:
            self.done_steps.value += self.unreported
        self.unreported = 0
