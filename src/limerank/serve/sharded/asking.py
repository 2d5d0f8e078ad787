"""Asking shards at once: who is slow is asked again, who fails is asked once more, who is lost is left out.

A question is sent to its shard; if no answer came after the hedge delay and the shard has replicas, it is sent again,
and Ray Serve gives it to the replica with the least to do. The first answer counts. A call that fails (its process
died) is made again at once. A shard that has not answered when patience ends is lost: the request is answered without
it, and so are the next ones, which do not wait. Somebody keeps knocking, and the first answer brings the shard back.

A request whose own time ends sooner is answered without the shard, and nobody else is: that a shard had no answer in
some milliseconds does not mean that it is gone. It is in doubt then: somebody knocks, and waits with full patience.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Generic, TypeVar

from limerank.errors import UnavailableError, UsageError
from limerank.serve.sharded.explaining import line_of

Q = TypeVar("Q")
A = TypeVar("A")
T = TypeVar("T")
KNOCK_SECONDS, PAUSE_SECONDS = 0.1, 0.02
"""Between two knocks at a lost shard, and before a call that failed is made again."""
LONGEST_KNOCK = 2.0
"""Seconds that a lost shard may take to answer a knock."""

ENDED = "nobody is asked any more"

log = logging.getLogger("limerank")


class EndedError(UnavailableError):
    """Something was asked of shards that are closed, or were while it waited."""


@dataclass(frozen=True)
class Lost:
    """A shard that gave no answer, and why."""

    reason: str


@dataclass(frozen=True)
class Patience:
    """How long shards are waited for."""

    hedge_ms: float = 50.0
    """After so long a shard with replicas is asked again."""
    patience_ms: float = 1000.0
    """After so long a shard is lost."""

    def __post_init__(self) -> None:
        if not 0 < self.hedge_ms <= self.patience_ms:
            raise UsageError(
                f"hedge_ms must be above 0 and at most patience_ms, but they are {self.hedge_ms:g} and "
                f"{self.patience_ms:g}"
            )


@dataclass
class Counts:
    """What asking took, since the beginning."""

    asked: int = 0
    hedged: int = 0
    failed: int = 0
    lost: int = 0


class Asking(Generic[Q, A]):
    """Asks shards by number, from any thread; what it does happens in a thread of its own.

    `call` sends a question to a shard, `knock` asks it whether it is there; both raise when it is not.
    """

    def __init__(
        self,
        call: Callable[[int, Q], Awaitable[A]],
        knock: Callable[[int], Awaitable[object]],
        patience: Patience,
        *,
        replicas: int,
    ) -> None:
        self._call, self._knock = call, knock
        self.patience = patience
        self._replicas = replicas
        self.counts = Counts()
        self.lost: dict[int, str] = {}
        """Shards that are left out, and why."""
        self.lost_since: dict[int, float] = {}
        """The same shards, on the clock that never goes back."""
        self._knocking: dict[int, asyncio.Task[None]] = {}
        self._doubting: dict[int, asyncio.Task[None]] = {}
        self._ending, self._ended = threading.Lock(), False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="limerank-shards", daemon=True)
        self._thread.start()

    def ask(self, questions: Mapping[int, Q], milliseconds: float | None = None) -> dict[int, A | Lost]:
        """The answers of shards, by number, all of them asked at once; in so many milliseconds, at most."""
        patient = self.patience.patience_ms
        seconds = (patient if milliseconds is None else min(patient, max(milliseconds, 1.0))) / 1000
        try:
            return self.run(self._ask(questions, seconds))
        except EndedError as ended:
            return {number: Lost(str(ended)) for number in questions}

    def run(self, work: Coroutine[None, None, T]) -> T:
        """Wait for something that has to happen in the thread of this asking."""
        with self._ending:  # whatever begins before the end is ended by it, and nothing begins later
            if self._ended:
                work.close()
                raise EndedError(ENDED)
            begun = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return begun.result()
        except CancelledError:
            raise EndedError(ENDED) from None

    def close(self) -> None:
        """End the thread; who is asked now, or later, is lost."""
        with self._ending:
            before, self._ended = self._ended, True
        if not before and self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _ask(self, questions: Mapping[int, Q], seconds: float) -> dict[int, A | Lost]:
        answers = await asyncio.gather(*(self._one(number, one, seconds) for number, one in questions.items()))
        return dict(zip(questions, answers, strict=True))

    async def _one(self, number: int, question: Q, seconds: float) -> A | Lost:
        if number in self.lost:
            return Lost(self.lost[number])
        self.counts.asked += 1
        end, reason, hedges = time.monotonic() + seconds, "no answer", 0
        calls = {self._begin(number, question)}
        try:
            while (left := end - time.monotonic()) > 0:
                hedging = hedges + 1 < self._replicas
                timeout = min(left, self.patience.hedge_ms / 1000) if hedging else left
                done, calls = await asyncio.wait(calls, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                for one in done:
                    if one.exception() is None:
                        if number in self._doubting:  # a knock may wait for a replica that hangs
                            self._doubting[number].cancel()
                        return one.result()
                    reason = line_of(one.exception())
                    self.counts.failed += 1
                if not calls:  # failed, not slow: somebody else may have it, or it is being started again
                    await asyncio.sleep(PAUSE_SECONDS)
                    calls = {self._begin(number, question)}
                elif not done and hedging:
                    hedges += 1
                    self.counts.hedged += 1
                    calls.add(self._begin(number, question))
        finally:
            for one in calls:
                one.cancel()
        self.counts.lost += 1
        reason = f"{reason} in {seconds * 1000:.0f} ms" if reason == "no answer" else reason
        if seconds >= self.patience.patience_ms / 1000:
            self._lose(number, reason)
        elif number not in self._doubting:
            self._doubting[number] = self._loop.create_task(self._doubt(number))
        return Lost(self.lost.get(number, reason))

    def _begin(self, number: int, question: Q) -> asyncio.Task[A]:
        async def call() -> A:
            return await self._call(number, question)

        return self._loop.create_task(call())

    def _lose(self, number: int, reason: str) -> None:
        if number not in self._knocking:
            self.lost_since[number] = time.monotonic()
            self.lost[number] = reason
            log.warning("shard %d is lost (%s); requests are answered without it until it is back", number + 1, reason)
            self._knocking[number] = self._loop.create_task(self._bring_back(number))

    async def _doubt(self, number: int) -> None:
        """Knock at a shard that had no answer in the time of a request; it is lost after its whole patience only."""
        patient, reason = self.patience.patience_ms, ""
        end = time.monotonic() + patient / 1000
        try:
            while (left := end - time.monotonic()) > 0:
                try:
                    await asyncio.wait_for(asyncio.ensure_future(self._knock(number)), left)
                    return
                except Exception as error:  # late, or its process died and another may be there soon
                    reason = "" if isinstance(error, TimeoutError) else line_of(error)
                    await asyncio.sleep(min(KNOCK_SECONDS, left))
            self._lose(number, reason or f"no answer in {patient:.0f} ms")
        finally:
            self._doubting.pop(number, None)

    async def _bring_back(self, number: int) -> None:
        """Knock until somebody is there."""
        began = time.monotonic()
        try:
            while True:
                try:
                    await asyncio.wait_for(asyncio.ensure_future(self._knock(number)), LONGEST_KNOCK)
                    break
                except Exception:  # still lost; whatever it is, the next knock may find somebody
                    await asyncio.sleep(KNOCK_SECONDS)
            self.lost.pop(number, None)
            self.lost_since.pop(number, None)
            log.warning("shard %d is back after %.1f seconds", number + 1, time.monotonic() - began)
        finally:
            self._knocking.pop(number, None)
