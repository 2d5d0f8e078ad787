"""What both contestants share: a process that waits for one JSON line, does what it asks and answers with one.

Standard library only: the two contestants live in environments of their own.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

ITEM = ("item_id", "topic", "creator", "duration_s")
EVENT = ("clicked", "watched_fraction")
REQUEST = ("country", "age_group", "device", "hour")
EMBEDDING_WIDTH = 16
TOWER_HIDDEN, TOWER_WIDTH = 64, 32
ATTENTION = (80, 40)
HEAD = (64,)
LEARNING_RATE = 1e-3
COMMANDS = ("about", "agree", "steps", "evaluating", "loading", "gauc", "fit")


def serve(contestant: object) -> None:
    """Answer until standard input ends; whatever a library prints goes to standard error."""
    commands = {name: getattr(contestant, name) for name in COMMANDS}
    answers, sys.stdout = sys.stdout, sys.stderr
    answers.write(json.dumps({"ready": True}) + "\n")
    answers.flush()
    for line in sys.stdin:
        asked = json.loads(line)
        answer = commands[asked.pop("do")](**asked)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def endless(batches: Callable[[], Iterable[Any]]) -> Iterator[Any]:
    """Pass after pass."""
    while True:
        yield from batches()


def timed(work: Callable[[], int]) -> dict[str, Any]:
    """Seconds, processor seconds and rows of one work."""
    started, used = time.perf_counter(), processor_seconds()
    rows = work()
    return {
        "seconds": time.perf_counter() - started,
        "cpu_seconds": processor_seconds() - used,
        "rows": rows,
    }


def processor_seconds() -> float:
    """Of this process and of those it has started and waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime
