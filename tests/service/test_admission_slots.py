"""Slots and the queue before them: who is let in, who waits, who is refused, and what a drain waits for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from limerank.errors import DeadlineError
from limerank.serve.deadline import Deadline
from limerank.service.admission import Admission, DrainingError, TooManyError

Test = Callable[[Admission, threading.Event], Awaitable[None]]
PATIENCE = 10.0  # seconds, for what takes milliseconds


def run(test: Test, *, slots: int = 1, queue: int = 1) -> Admission:
    """Run a test in a fresh loop; the event lets work end, and is set in any case."""
    go = threading.Event()

    async def tested() -> Admission:
        admission = Admission(slots, queue)
        try:
            await asyncio.wait_for(test(admission, go), PATIENCE)
        finally:
            go.set()
            admission.close()
        return admission

    return asyncio.run(tested())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_a_full_queue_refuses_with_a_time_and_recovers() -> None:
    """One works, one waits, the third is told when to come back; afterwards there is room again."""

    async def test(admission: Admission, go: threading.Event) -> None:
        first = asyncio.create_task(admission.run(go.wait))
        await until(lambda: admission.running == 1)
        second = asyncio.create_task(admission.run(lambda: "done"))
        await until(lambda: admission.waiting == 1)
        with pytest.raises(TooManyError) as refused:
            await admission.run(lambda: None)
        assert refused.value.retry_after >= 1
        go.set()
        await first
        worked = await second
        assert worked.result == "done"
        assert worked.waited_ms > 0
        assert (admission.running, admission.waiting) == (0, 0)
        assert (await admission.run(lambda: 3)).result == 3

    counts = run(test).counts
    assert (counts.admitted, counts.refused, counts.expired, counts.abandoned) == (3, 1, 0, 0)


def test_who_would_wait_past_the_deadline_is_refused_at_once() -> None:
    """429 and when to come back, instead of a place in the queue and a 504; who has the time may wait."""

    async def test(admission: Admission, go: threading.Event) -> None:
        admission._mean_seconds = 2.0
        first = asyncio.create_task(admission.run(go.wait))
        await until(lambda: admission.running == 1)
        with pytest.raises(TooManyError) as refused:
            await admission.run(lambda: None, Deadline(500))
        assert refused.value.retry_after == 2
        patient = asyncio.create_task(admission.run(lambda: "done", Deadline(60_000)))
        await until(lambda: admission.waiting == 1)
        go.set()
        assert (await patient).result == "done"
        await first
        assert (await admission.run(lambda: 3, Deadline(500))).result == 3  # a free slot needs no waiting

    counts = run(test, queue=8).counts
    assert (counts.admitted, counts.refused, counts.expired) == (3, 1, 0)


def test_retry_after_grows_with_what_slots_took() -> None:
    """The estimate is of the queue's length and of service times, within a second and a minute."""
    admission = Admission(2, 4)
    assert admission.retry_after() == 1
    admission._mean_seconds = 7.0
    assert admission.retry_after() == 4
    admission._mean_seconds = 1e6
    assert admission.retry_after() == 60


def test_a_slot_is_held_until_the_work_ends_although_the_client_went_away() -> None:
    """A cancelled request gives its slot back only when its thread has ended; nobody else gets in before."""

    async def test(admission: Admission, go: threading.Event) -> None:
        began = threading.Event()

        def work() -> None:
            began.set()
            go.wait()

        gone = asyncio.create_task(admission.run(work))
        await until(began.is_set)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        assert admission.running == 1
        waits = asyncio.create_task(admission.run(lambda: go.is_set()))
        await until(lambda: admission.waiting == 1)
        go.set()
        assert (await waits).result is True

    assert run(test).counts.abandoned == 1


def test_a_deadline_that_is_over_while_waiting_is_told() -> None:
    """Nobody works for a request whose time is up, and the queue forgets it."""

    async def test(admission: Admission, go: threading.Event) -> None:
        first = asyncio.create_task(admission.run(go.wait))
        await until(lambda: admission.running == 1)
        with pytest.raises(TooManyError, match="20 ms"):
            await admission.run(lambda: None, Deadline(20))
        assert admission.waiting == 0
        with pytest.raises(DeadlineError):
            await admission.run(lambda: None, Deadline(-1))
        go.set()
        await first

    assert run(test).counts.expired == 2


def test_many_at_once_are_served_in_turn_and_never_more_than_slots() -> None:
    """First come, first served; cancelled ones in between leave no hole and no slot behind."""
    order: list[int] = []
    most = 0

    async def test(admission: Admission, go: threading.Event) -> None:
        def one(number: int) -> None:
            nonlocal most
            most = max(most, admission.running)
            order.append(number)
            go.wait()

        tasks = []
        for number in range(40):
            tasks.append(asyncio.create_task(admission.run(partial(one, number))))
            await asyncio.sleep(0)
        await until(lambda: len(order) == 3)
        for task in tasks[5::3]:
            task.cancel()
        await asyncio.sleep(0)
        go.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (admission.running, admission.waiting) == (0, 0)

    run(test, slots=3, queue=100)
    assert most == 3
    in_turn = [number for number in range(40) if number not in range(5, 40, 3)]
    assert sorted(order) == in_turn
    assert all(abs(in_turn.index(number) - position) <= 3 for position, number in enumerate(order))  # three threads


def test_a_drain_takes_nothing_new_and_waits_for_the_rest() -> None:
    """What runs and what waits is answered; a drain that takes too long says so."""

    async def test(admission: Admission, go: threading.Event) -> None:
        tasks = [asyncio.create_task(admission.run(go.wait)) for _ in range(2)]
        await until(lambda: admission.running + admission.waiting == 2)
        assert not await admission.drain(0.01)
        with pytest.raises(DrainingError):
            await admission.run(lambda: None)
        go.set()
        assert await admission.drain(PATIENCE)
        assert all(task.done() for task in tasks)

    run(test)


def test_threads_hand_slots_on_while_the_loop_is_busy() -> None:
    """What waits is worked on although the event loop does not come round: a flood of refusals stops nobody's work."""

    async def test(admission: Admission, go: threading.Event) -> None:
        done = threading.Semaphore(0)
        tasks = [asyncio.create_task(admission.run(done.release)) for _ in range(9)]
        await asyncio.sleep(0)
        assert all(done.acquire(timeout=PATIENCE) for _ in tasks)  # without a step of the loop
        await asyncio.gather(*tasks)

    assert run(test, queue=8).counts.admitted == 9
