"""Many threads, one transaction: whoever may write takes along what the others wait to have written."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from limerank.errors import BundleError, LimerankError, UnavailableError

Work = TypeVar("Work")
Result = TypeVar("Result")


class _Waiting(Generic[Work, Result]):
    """A work in the line, and what became of it."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.done = False
        self.result: Result | None = None
        self.error: BaseException | None = None


class GroupCommit(Generic[Work, Result]):
    """Hands works of many threads to `commit`, all that wait at a time, and to each thread its own result.

    There is no thread of its own and no delay: the first that comes commits what is there, and while it syncs, the next
    group gathers.
    """

    def __init__(self, commit: Callable[[Sequence[Work]], Sequence[Result]], most: int) -> None:
        self._commit = commit
        self._most = most
        self._line: deque[_Waiting[Work, Result]] = deque()
        self._writing = threading.Lock()

    def run(self, work: Work) -> Result:
        """Have a work committed, with others or alone; its result, or why it was not committed."""
        mine: _Waiting[Work, Result] = _Waiting(work)
        self._line.append(mine)
        with self._writing:
            while not mine.done:  # works are taken in order, so it comes to this one
                self._next_group()
        if mine.error is not None:
            raise for_one_thread(mine.error)
        return mine.result  # type: ignore[return-value]

    def _next_group(self) -> None:
        self._run([self._line.popleft() for _ in range(min(len(self._line), self._most))])

    def _run(self, group: Sequence[_Waiting[Work, Result]]) -> None:
        try:
            for waiting, result in zip(group, self._commit([one.work for one in group]), strict=True):
                waiting.result = result
        except BaseException as error:
            if isinstance(error, BundleError) and len(group) > 1:  # of one user, perhaps: the others need not suffer
                for waiting in group:
                    self._run([waiting])
                return
            for waiting in group:
                waiting.error = error
            if not isinstance(error, Exception):  # somebody interrupted this thread, not the others
                raise
        finally:
            for waiting in group:
                waiting.done = True


def for_one_thread(error: BaseException) -> BaseException:
    """An error of its own for each thread that one befell."""
    if isinstance(error, LimerankError):
        return type(error)(*error.args)
    if isinstance(error, Exception):
        return error
    return UnavailableError("the thread that wrote for this one was interrupted; add the events again")
