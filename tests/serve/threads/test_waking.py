"""Sleeping threads are kept off a core until they run; whoever runs may run wherever it could before."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from limerank.serve.threads.waking import MOST_MOVED, Sleeper, current_core, keep_off_this_core
from limerank.serve.threads.workers import Workers

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux lets threads choose cores")
CORES = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
several = pytest.mark.skipif(len(CORES) < 2, reason="this process may use one core only")


class Asleep(threading.Thread):
    """A thread that sleeps until it is told to run, and then tells where it may."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.ready, self.go = threading.Event(), threading.Event()
        self.allowed: set[int] = set()
        self.start()
        self.ready.wait()

    def run(self) -> None:
        self.sleeper = Sleeper()
        self.ready.set()
        self.go.wait()
        self.sleeper.let_back()
        self.allowed = os.sched_getaffinity(0)

    def wake(self) -> set[int]:
        self.go.set()
        self.join()
        return self.allowed


@pytest.fixture
def asleep() -> Iterator[Asleep]:
    thread = Asleep()
    yield thread
    thread.wake()


def cores_of(thread: Asleep) -> set[int]:
    return os.sched_getaffinity(thread.sleeper.thread)


@several
def test_a_sleeper_is_kept_off_until_it_runs(asleep: Asleep) -> None:
    core = min(CORES)
    asleep.sleeper.keep_off(core)
    assert cores_of(asleep) == CORES - {core}
    assert asleep.wake() == CORES


@several
def test_the_last_waker_counts_and_nothing_adds_up(asleep: Asleep) -> None:
    """Two requests want the same helper: it stays off the second one's core only, and gets all cores back."""
    first, second = sorted(CORES)[:2]
    asleep.sleeper.keep_off(first)
    asleep.sleeper.keep_off(second)
    assert cores_of(asleep) == CORES - {second}
    assert asleep.wake() == CORES


@several
def test_cores_that_somebody_chose_stay_chosen(asleep: Asleep) -> None:
    """`taskset -p` while the service runs: what a thread may use is asked each time, not remembered."""
    chosen = set(sorted(CORES)[:1])
    os.sched_setaffinity(asleep.sleeper.thread, chosen)
    asleep.sleeper.keep_off(max(CORES))
    assert asleep.wake() == chosen


@several
def test_cores_that_somebody_chose_meanwhile_stay_chosen(asleep: Asleep) -> None:
    """The same while it is kept off a core: it is not given back what it had before."""
    first, second = sorted(CORES)[:2]
    asleep.sleeper.keep_off(first)
    os.sched_setaffinity(asleep.sleeper.thread, {first})
    asleep.sleeper.keep_off(second)
    assert asleep.wake() == {first}


@several
def test_idle_workers_have_all_their_cores() -> None:
    """Helpers that were not needed after all never run, and are let back by whoever did the work alone."""
    with Workers(2) as workers:
        both = threading.Barrier(2, timeout=30)
        workers.deal([both.wait, both.wait])  # starts both threads
        for _ in range(50):
            workers.run(partial(workers.deal, [bool, bool]))
        helped = threading.Barrier(2, timeout=30)
        workers.run(partial(workers.deal, [helped.wait, helped.wait]))  # whoever was woken late has run by now
        cores = [os.sched_getaffinity(sleeper.thread) for sleeper in workers._asleep]
    assert cores == len(cores) * [CORES]


@several
def test_sleepers_that_nobody_woke_have_all_their_cores() -> None:
    """Of four one was wanted and came: the other two may be woken anywhere again, by whoever has work next."""
    with Workers(4) as workers:
        all_four = threading.Barrier(4, timeout=30)
        workers.deal(4 * [all_four.wait])  # starts all threads
        two = threading.Barrier(2, timeout=30)
        workers.run(partial(workers.both, two.wait, two.wait))
        cores = [os.sched_getaffinity(sleeper.thread) for sleeper in workers._asleep]
    assert len(cores) >= 2
    assert cores == len(cores) * [CORES]


def test_a_thread_with_one_core_keeps_it(asleep: Asleep) -> None:
    only = min(CORES)
    os.sched_setaffinity(asleep.sleeper.thread, {only})
    asleep.sleeper.keep_off(only)
    assert cores_of(asleep) == {only}
    assert asleep.wake() == {only}


def test_a_thread_that_has_ended_is_nobody(asleep: Asleep) -> None:
    asleep.wake()
    asleep.sleeper.keep_off(min(CORES))


@several
def test_few_are_kept_off_the_callers_core_and_many_are_left_alone() -> None:
    threads = [Asleep() for _ in range(MOST_MOVED + 1)]
    try:
        keep_off_this_core([thread.sleeper for thread in threads])
        assert all(cores_of(thread) == CORES for thread in threads)
        here = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {max(CORES)})  # so that the caller's core is known
        try:
            assert current_core() == max(CORES)
            keep_off_this_core([thread.sleeper for thread in threads[:2]])
        finally:
            os.sched_setaffinity(0, here)
        assert [cores_of(thread) for thread in threads[:2]] == 2 * [CORES - {max(CORES)}]
    finally:
        assert all(thread.wake() == CORES for thread in threads)


@several
def test_workers_may_use_all_cores_while_they_work() -> None:
    """However often they were dealt works by one of them."""
    with Workers(2) as workers:
        for _ in range(20):
            both = threading.Barrier(2, timeout=30)

            def meet(both: threading.Barrier = both) -> set[int]:
                both.wait()  # so that both workers take one
                return os.sched_getaffinity(0)

            assert workers.run(partial(workers.deal, [meet, meet])) == [CORES, CORES]
