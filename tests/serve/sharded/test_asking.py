"""Asking shards: the slow are asked again, the failed are retried, the lost are left out and come back."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest

from limerank.errors import UsageError
from limerank.serve.sharded.asking import Asking, Lost, Patience

SECONDS = 20.0
"""No wait takes so long; a test that waits longer has failed."""


@contextmanager
def asking(
    call: Callable[[int, str], Awaitable[str]], patience: Patience, replicas: int = 1
) -> Iterator[Asking[str, str]]:
    async def knock(number: int) -> None:
        await call(number, "knock")

    one: Asking[str, str] = Asking(call, knock, patience, replicas=replicas)
    try:
        yield one
    finally:
        one.close()


def until(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_all_are_asked_at_once() -> None:
    """No shard answers before all were asked."""
    here: set[int] = set()

    async def call(number: int, question: str) -> str:
        here.add(number)
        while len(here) < 3:
            await asyncio.sleep(0.001)
        return f"{question} {number}"

    with asking(call, Patience(10_000, 20_000)) as shards:
        assert shards.ask({0: "a", 1: "b", 2: "c"}) == {0: "a 0", 1: "b 1", 2: "c 2"}
        assert shards.counts.hedged == shards.counts.failed == shards.counts.lost == 0


def test_a_slow_shard_is_asked_again() -> None:
    """The first call never answers, the second one does; without a replica there is no second one."""
    calls = 0

    async def call(number: int, question: str) -> str:
        nonlocal calls
        calls += 1
        await asyncio.sleep(3600 if calls == 1 else 0)
        return "here"

    with asking(call, Patience(hedge_ms=5, patience_ms=1000 * SECONDS), replicas=2) as shards:
        assert shards.ask({0: "?"}) == {0: "here"}
        assert (calls, shards.counts.hedged) == (2, 1)
    calls = 0
    with asking(call, Patience(hedge_ms=5, patience_ms=50)) as shards:
        assert shards.ask({0: "?"}) == {0: Lost("no answer in 50 ms")}
        assert shards.counts.hedged == 0


def test_a_call_that_fails_is_made_again() -> None:
    """A process died with the question; the next one has it."""
    left = 2

    async def call(number: int, question: str) -> str:
        nonlocal left
        left -= 1
        if left >= 0:
            raise ConnectionError("died")
        return "here"

    with asking(call, Patience(patience_ms=1000 * SECONDS)) as shards:
        assert shards.ask({0: "?"}) == {0: "here"}
        assert (shards.counts.failed, shards.counts.lost) == (2, 0)


def test_a_lost_shard_is_left_out_until_it_is_back() -> None:
    """The others answer, nobody waits for it any more, and when it answers a knock it is asked again."""
    dead = threading.Event()
    dead.set()

    async def call(number: int, question: str) -> str:
        if number == 1 and dead.is_set():
            raise ConnectionError("nobody there\nand much more")
        return question

    with asking(call, Patience(hedge_ms=5, patience_ms=60)) as shards:
        assert shards.ask({0: "a", 1: "a"}) == {0: "a", 1: Lost("ConnectionError: nobody there")}
        asked = shards.counts.asked
        assert isinstance(shards.ask({0: "b", 1: "b"})[1], Lost)
        assert shards.counts.asked == asked + 1, "only the other one was asked"
        dead.clear()
        until(lambda: not shards.lost)
        assert shards.ask({0: "c", 1: "c"}) == {0: "c", 1: "c"}


def test_a_deadline_ends_patience() -> None:
    async def call(number: int, question: str) -> str:
        await asyncio.sleep(3600)
        return "never"

    with asking(call, Patience(hedge_ms=5, patience_ms=3_600_000)) as shards:
        assert isinstance(shards.ask({0: "?"}, 30)[0], Lost)


def test_a_short_deadline_loses_a_shard_for_nobody_else() -> None:
    """Healthy shards that need longer than 5 ms: a request of 5 ms goes without them, the next one has them."""

    async def call(number: int, question: str) -> str:
        await asyncio.sleep(1 if question == "a" else 0.02)  # a machine that has other things to do is late by less
        return f"{question} {number}"

    with asking(call, Patience(hedge_ms=1000, patience_ms=1000 * SECONDS)) as shards:
        assert shards.ask({0: "a", 1: "a"}, 5) == dict.fromkeys((0, 1), Lost("no answer in 5 ms"))
        assert shards.ask({0: "b", 1: "b"}, 500 * SECONDS) == {0: "b 0", 1: "b 1"}
        assert not shards.lost
        until(lambda: not shards._doubting)
        assert not shards.lost


@pytest.mark.parametrize("hangs", [True, False])
def test_a_dead_shard_is_lost_although_all_deadlines_are_short(hangs: bool) -> None:
    """Whoever asks waits for a deadline; after its whole patience the shard is lost, and nobody waits any more."""

    async def call(number: int, question: str) -> str:
        if not hangs:
            raise ConnectionError("nobody there")
        await asyncio.sleep(3600)
        return "never"

    with asking(call, Patience(hedge_ms=5, patience_ms=300)) as shards:
        began = time.monotonic()
        assert isinstance(shards.ask({0: "?"}, 5)[0], Lost)
        until(lambda: bool(shards.lost))
        assert time.monotonic() - began >= 0.3
        assert shards.lost[0] == ("no answer in 300 ms" if hangs else "ConnectionError: nobody there")


def test_an_answer_ends_doubt() -> None:
    """A knock may wait for a replica that hangs while another answers: the shard is there."""

    async def call(number: int, question: str) -> str:
        await asyncio.sleep(3600 if question in ("knock", "slow") else 0)
        return question

    with asking(call, Patience(hedge_ms=5, patience_ms=3_600_000)) as shards:
        assert isinstance(shards.ask({0: "slow"}, 5)[0], Lost)
        assert shards._doubting
        assert shards.ask({0: "quick"}) == {0: "quick"}
        until(lambda: not shards._doubting)
        assert not shards.lost


def test_who_hedges_later_than_patience_ends_is_told() -> None:
    with pytest.raises(UsageError, match="hedge_ms must be above 0 and at most patience_ms"):
        Patience(hedge_ms=100, patience_ms=50)


def test_who_asks_shards_that_are_closed_is_told_that_they_are_lost() -> None:
    """While an answer is waited for, at the same moment, and later: nobody waits for ever, and nothing else is said."""

    async def call(number: int, question: str) -> str:
        await asyncio.sleep(3600 if question == "hang" else 0)
        return "here"

    for _ in range(20):
        begun, answers = threading.Barrier(4), list[object]()

        def ask(question: str, shards: Asking[str, str], begun: threading.Barrier, answers: list[object]) -> None:
            begun.wait(SECONDS)
            found: object = "here"
            while found == "here":
                found = shards.ask({0: question})[0]
            answers.append(found)

        with asking(call, Patience(patience_ms=1000 * SECONDS)) as shards:
            threads = [
                threading.Thread(target=ask, args=(question, shards, begun, answers), daemon=True)
                for question in ("hang", "go", "go")
            ]
            for thread in threads:
                thread.start()
            begun.wait(SECONDS)
        for thread in threads:
            thread.join(SECONDS)
        assert answers == [Lost("nobody is asked any more")] * 3
        assert shards.ask({3: "?"}) == {3: Lost("nobody is asked any more")}
        shards.close()
