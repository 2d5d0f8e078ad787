"""Worker threads: every work is done once, whoever does it; errors, closing, forks; torch on one thread only there."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
import torch
from torch import Tensor

from limerank.errors import UsageError
from limerank.serve.threads.workers import Workers
from limerank.threads import available_cores

WAIT_SECONDS = 60
T = TypeVar("T")


@pytest.fixture(name="workers", params=[1, 2, 5])
def some_workers(request: pytest.FixtureRequest) -> Iterator[Workers]:
    with Workers(request.param) as workers:
        yield workers


def refuse(number: int, refused: set[int]) -> int:
    if number in refused:
        raise ValueError(number)
    return number


def numbers(*refused: int, count: int = 50) -> list[Callable[[], int]]:
    return [partial(refuse, number, set(refused)) for number in range(count)]


def eventually(condition: Callable[[], bool]) -> bool:
    """Whether something comes true; ending a thread takes a while on a busy machine."""
    until = time.monotonic() + WAIT_SECONDS
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    return condition()


def native_threads() -> set[str]:
    """The threads of this process, those of OpenMP included, where the system tells."""
    tasks = Path("/proc/self/task")
    return {task.name for task in tasks.iterdir()} if tasks.exists() else set()


def many_operations() -> Tensor:
    """Large enough that torch would use all its threads."""
    a = torch.randn(600, 600)
    b = (a @ a).relu_().softmax(1).half().float()
    torch.bmm(b.view(4, 150, 600), a.expand(4, 600, 600))
    return torch.addmm(a, a, b).sort(1).values.sum()


def test_results_stand_in_order(workers: Workers) -> None:
    assert workers.deal(numbers()) == list(range(50))
    assert workers.deal([]) == []
    assert workers.submit(lambda: 7).result() == workers.run(lambda: 7) == 7


def test_works_are_done_by_whoever_is_free() -> None:
    """Two works that wait for each other: one worker alone would never end."""
    both = threading.Barrier(2, timeout=WAIT_SECONDS)

    def meet() -> str:
        both.wait()
        return threading.current_thread().name

    with Workers(2) as workers:
        names = workers.deal([meet, meet])
        assert len(set(names)) == 2
        assert threading.current_thread().name not in names
        nested = workers.run(lambda: workers.deal([meet, meet]))  # an idle worker helps one that deals
        assert set(nested) == set(names)


def test_works_may_deal_works(workers: Workers) -> None:
    """Three deep, from several callers at once, with more works than threads everywhere: nobody waits for himself."""

    def leaf(number: int) -> int:
        return workers.run(lambda: number)

    def branch(depth: int, number: int) -> int:
        if not depth:
            return leaf(number)
        return sum(workers.deal([partial(branch, depth - 1, number + 10**depth * n) for n in range(4)]))

    found: list[int] = []
    callers = [threading.Thread(target=lambda: found.append(branch(3, 0))) for _ in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(WAIT_SECONDS)
    alone = sum(1000 * a + 100 * b + 10 * c for a in range(4) for b in range(4) for c in range(4))
    assert found == [alone] * 8


def test_the_first_error_is_raised_and_nothing_is_poisoned(workers: Workers) -> None:
    """The error of one work after the other: that of the first in order, whichever ended first."""
    for _ in range(20):
        with pytest.raises(ValueError, match="^17$"):
            workers.deal(numbers(17, 18, 19, 40))
        assert workers.deal(numbers()) == list(range(50))
    with pytest.raises(ValueError, match="^3$"):
        workers.run(lambda: workers.deal(numbers(3)))
    assert workers.deal(numbers()) == list(range(50))


def test_after_an_error_no_more_works_begin() -> None:
    begun: list[int] = []

    def work(number: int) -> int:
        begun.append(number)
        return refuse(number, {2})

    with Workers(1) as workers, pytest.raises(ValueError, match="^2$"):
        workers.deal([partial(work, number) for number in range(50)])
    assert begun == [0, 1, 2]


def test_an_error_of_one_caller_is_not_that_of_another() -> None:
    """Callers whose works fail beside callers whose works do not."""
    found: dict[int, list[object]] = {caller: [] for caller in range(8)}

    def call(caller: int) -> None:
        for _ in range(50):
            try:
                found[caller].append(workers.deal(numbers(*[caller] * (caller % 2), count=10)))
            except ValueError as error:
                found[caller].append(str(error))

    with Workers(3) as workers:
        callers = [threading.Thread(target=call, args=(caller,)) for caller in found]
        for thread in callers:
            thread.start()
        for thread in callers:
            thread.join(WAIT_SECONDS)
    assert found == {caller: [str(caller) if caller % 2 else list(range(10))] * 50 for caller in range(8)}


def test_torch_runs_on_one_thread_in_workers_and_as_before_elsewhere() -> None:
    """No team of OpenMP is started for a worker, and neither the caller's number nor that of new threads changes."""
    before, found = torch.get_num_threads(), []

    def ask() -> None:
        found.append(torch.get_num_threads())

    def in_a_new_thread() -> int:
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        return found[-1]

    default = in_a_new_thread()
    try:
        torch.set_num_threads(3)
        with Workers(2) as workers:
            gate = threading.Barrier(2, timeout=WAIT_SECONDS)
            workers.deal([gate.wait, gate.wait])  # both threads are there
            threads = native_threads()
            works: list[Callable[[], object]] = [many_operations, torch.get_num_threads] * 6
            assert set(workers.deal(works)[1::2]) == {1}
            torch.set_num_threads(4)  # a number that somebody sets later is not theirs either
            assert set(workers.deal(works)[1::2]) == {1}
            assert native_threads() <= threads
        assert torch.get_num_threads() == 4
        assert in_a_new_thread() == 4
    finally:
        torch.set_num_threads(before)
    assert in_a_new_thread() in (before, default)


def test_works_run_in_inference_mode() -> None:
    """Of the worker, not of the caller: torch keeps it per thread."""
    with Workers(1) as workers:
        assert workers.run(torch.is_inference_mode_enabled)
    assert not torch.is_inference_mode_enabled()


def test_closing_ends_the_threads_after_what_was_submitted() -> None:
    """Also works that deal works when the workers are closing; afterwards there is a clear error."""
    around = set(threading.enumerate())
    started = threading.Event()

    def slow() -> list[int]:
        started.set()
        time.sleep(0.05)
        return workers.deal(numbers())

    workers = Workers(2)
    workers.close()  # without ever having started a thread
    workers = Workers(2)
    submitted = [workers.submit(slow) for _ in range(4)]
    assert started.wait(WAIT_SECONDS)
    workers.close()
    workers.close()
    assert set(threading.enumerate()) <= around
    assert [one.result() for one in submitted] == [list(range(50))] * 4
    for call in (lambda: workers.submit(int), lambda: workers.run(int), lambda: workers.deal([int])):
        with pytest.raises(UsageError, match="these workers are closed"):
            call()


def test_workers_that_nobody_refers_to_end() -> None:
    around = set(threading.enumerate())
    workers = Workers(2)
    workers.deal(numbers())
    assert set(threading.enumerate()) - around
    del workers
    gc.collect()
    assert eventually(lambda: set(threading.enumerate()) <= around)


def test_a_work_may_close_its_workers() -> None:
    workers = Workers(2)
    workers.run(workers.close)
    with pytest.raises(UsageError, match="closed"):
        workers.run(int)


def test_a_forked_process_has_threads_of_its_own() -> None:
    """Threads do not survive a fork; without noticing, the child would wait for them for ever."""
    with Workers(2) as workers:
        expected = workers.deal(numbers())
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            try:
                os.write(writing, bytes(workers.deal(numbers()) == expected for _ in range(2)))
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as answer:
            killer = threading.Timer(WAIT_SECONDS, os.kill, (child, 9))
            killer.start()
            assert answer.read() == b"\x01\x01"
            killer.cancel()
        os.waitpid(child, 0)
        assert workers.deal(numbers()) == expected


def test_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Workers().threads == available_cores()
    monkeypatch.setattr("limerank.serve.threads.workers.available_cores", lambda: 7)
    assert Workers().threads == 7
    assert Workers(3).threads == 3
    with pytest.raises(UsageError, match="threads must be at least 1, but is 0"):
        Workers(0)


def test_works_that_were_dealt_before_closing_are_done() -> None:
    """Somebody closes the workers between the first helper and the second: the first does everything."""

    class Closing(Workers):
        def submit(self, work: Callable[[], T]) -> Future[T]:
            submitted = super().submit(work)
            self.close()
            return submitted

    done: list[int] = []
    assert Closing(3).deal([partial(done.append, number) for number in range(5)]) == [None] * 5
    assert done == list(range(5))
