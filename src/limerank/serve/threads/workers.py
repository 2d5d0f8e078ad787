"""Worker threads that each run torch on one thread: works are taken by whoever is free, and nobody waits at a barrier.

torch cuts every operation among OpenMP threads that meet when it ends; if another process holds the core of one, all
wait for it. A worker does whole pieces of a request alone, so a core that is taken away costs no more than the work
that was lost on it. torch releases Python's lock in its operations: several workers compute side by side.

How many threads torch uses is kept per thread by OpenMP and MKL, with a default for threads that are still to come.
Workers leave both the caller's number and that default as they were.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

import torch

from limerank.errors import UsageError
from limerank.serve.threads.waking import Sleeper, keep_off_this_core
from limerank.threads import available_cores

T = TypeVar("T")
S = TypeVar("S")

_starting = threading.Lock()
if hasattr(os, "register_at_fork"):  # a fork waits for threads that are just starting: the child could never
    os.register_at_fork(before=_starting.acquire, after_in_parent=_starting.release, after_in_child=_starting.release)


class ClosedError(UsageError):
    """Work was submitted to workers that are closed."""


class Workers:
    """Some worker threads, started when they are first needed; safe to use from many threads at once.

    Works run in torch's inference mode. After `close`, or when nothing refers to these workers any more, the threads
    end with what they were doing. A forked process that uses them starts threads of its own.
    """

    def __init__(self, threads: int | None = None) -> None:
        """So many threads; by default as many as there are cores that this process may use."""
        if threads is not None and threads < 1:
            raise UsageError(f"threads must be at least 1, but is {threads}")
        self.threads = threads or available_cores()
        self._here = threading.local()
        self._closed = False
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._lock = threading.Lock()
        self._idle = self.threads
        self._asleep: set[Sleeper] = set()
        self._started: ThreadPoolExecutor | None = None
        self._process = os.getpid()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Have a work done by the next free worker; do not wait for the result inside another work, see `run`."""
        try:
            return self._executor().submit(partial(self._busy, work))
        except RuntimeError:
            if not self._closed:  # no more threads can be started, or the program is ending
                raise
            raise ClosedError("these workers are closed: no work can be submitted any more; open an engine") from None

    def run(self, work: Callable[[], T]) -> T:
        """Have a work done and wait for its result; inside a work it is done at once by the same worker."""
        return work() if self._inside else self.submit(work).result()

    def deal(self, works: Sequence[Callable[[], T]]) -> list[T]:
        """Have every work done once, by whoever is free, and return their results in order (`limerank.ops.dealing`).

        Works are begun in order. If one raises, no more are begun, and when those under way have ended, the first in
        order that raised is the error: the same as if they had been done one after the other. Inside a work the worker
        does most of them itself and others help as far as they are idle, so that works may deal works.
        """
        hand = _Hand(works)
        if not self._inside:
            helpers = self._helpers(hand.play, min(self.threads, len(works)))
        else:
            helpers = self._idle_helpers(hand.play, len(works) - 1)
            hand.play()
            helpers = [helper for helper in helpers if not helper.cancel()]  # who has not begun has nothing left to do
            self._let_back()
        try:
            wait(helpers)
        except BaseException:  # somebody interrupted the program
            hand.stop()
            raise
        return hand.results()

    def both(self, first: Callable[[], T], second: Callable[[], S]) -> tuple[T, S]:
        """The results of two works that do not need each other, dealt as others are."""
        results: list[Any] = self.deal([first, second])
        return results[0], results[1]

    def close(self) -> None:
        """End the threads when they have done what was submitted; nothing can be submitted any more."""
        self._notice_fork()
        with self._lock:
            self._closed, started = True, self._started
        if started is not None:
            started.shutdown(wait=not self._inside)

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _inside(self) -> bool:
        """Whether the caller is one of these workers."""
        return hasattr(self._here, "worker")

    def _helpers(self, work: Callable[[], None], most: int) -> list[Future[None]]:
        """So many workers that do this work, or as many as can be had: the first is enough to do all."""
        helpers = [self.submit(work)] if most else []
        with suppress(ClosedError, RuntimeError):  # closed meanwhile, or no more threads can be started
            for _ in range(most - 1):
                helpers.append(self.submit(work))
        return helpers

    def _idle_helpers(self, work: Callable[[], None], most: int) -> list[Future[None]]:
        """So many idle workers that do this work; none while closing, when work that was submitted is still done."""
        helpers: list[Future[None]] = []
        with self._lock:
            wanted = min(self._idle, most)
            if wanted > 0 and not self._closed:  # while closing, threads end, and others may get their numbers
                keep_off_this_core(self._asleep)
        with suppress(ClosedError):
            for _ in range(wanted):
                helpers.append(self.submit(work))
        return helpers

    def _let_back(self) -> None:
        """Sleepers that were to be woken, and were not: they may be woken anywhere again."""
        with self._lock:
            if not self._closed:
                for sleeper in self._asleep:
                    sleeper.let_back()

    def _notice_fork(self) -> None:
        """Threads do not survive a fork, nor does whoever held the lock."""
        if self._process != os.getpid():
            with _starting:
                if self._process != os.getpid():
                    self._begin_anew()

    def _executor(self) -> ThreadPoolExecutor:
        self._notice_fork()
        with self._lock:
            if self._closed:
                raise RuntimeError("closed")
            if self._started is None:
                # not a method: threads keep what they start with, and would keep these workers alive
                begin = partial(_begin, self._here)
                self._started = ThreadPoolExecutor(self.threads, "limerank-worker", initializer=begin)
            return self._started

    def _busy(self, work: Callable[[], T]) -> T:
        own: Sleeper = self._here.worker
        with self._lock:
            self._idle -= 1
            self._asleep.discard(own)
        own.let_back()
        try:
            with torch.inference_mode():
                return work()
        finally:
            with self._lock:
                self._idle += 1
                self._asleep.add(own)


class HasWorkers(Protocol):
    """Something that computes on workers."""

    workers: Workers


Owner = TypeVar("Owner", bound=HasWorkers)
Arguments = ParamSpec("Arguments")


def in_a_worker(
    method: Callable[Concatenate[Owner, Arguments], T],
) -> Callable[Concatenate[Owner, Arguments], T]:
    """A method that one of its owner's workers carries out while the caller waits."""

    @wraps(method)
    def carried_out(owner: Owner, /, *args: Arguments.args, **named: Arguments.kwargs) -> T:
        return owner.workers.run(partial(method, owner, *args, **named))

    return carried_out


class _Hand(Generic[T]):
    """Works that were dealt together: each is begun once, in order, by whoever asks for the next."""

    def __init__(self, works: Sequence[Callable[[], T]]) -> None:
        self.works = works
        self.lock = threading.Lock()
        self.next = 0
        self.done: dict[int, T] = {}
        self.errors: dict[int, BaseException] = {}

    def play(self) -> None:
        """Do works until none is left."""
        while (position := self._take()) is not None:
            try:
                self.done[position] = self.works[position]()
            except BaseException as error:  # whoever dealt the works gets it
                self.errors[position] = error
                self.stop()

    def stop(self) -> None:
        """Begin no more works."""
        with self.lock:
            self.next = len(self.works)

    def results(self) -> list[T]:
        """When all have ended: what the works returned, or the first error among them."""
        if self.errors:
            raise self.errors[min(self.errors)]
        return [self.done[position] for position in range(len(self.works))]

    def _take(self) -> int | None:
        with self.lock:
            if self.next >= len(self.works):
                return None
            self.next += 1
            return self.next - 1


def _begin(here: threading.local) -> None:
    """Make the thread that calls this a worker, in which torch uses one thread."""
    here.worker = Sleeper()
    with _starting:
        # asking comes first: it gives a new thread the default, which would undo a number that was set before
        before = torch.get_num_threads()
        torch.set_num_threads(1)  # also becomes the default of threads that are still to come
        restore = threading.Thread(target=torch.set_num_threads, args=(before,))
        restore.start()
        restore.join()
