"""What every study leaves behind: a JSON file that says how it was made, and one page that people read."""

from __future__ import annotations

import platform
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from limerank import files
from limerank.report.page import Page
from limerank.training.records.revision import revision
from limerank.training.run import machine, versions

QUICK = "Quick mode: these figures show that the study works, nothing else."


class Made(BaseModel):
    """How a result was made: enough to make it again, and to know how far to trust it."""

    command: str
    """As it was typed, from `limerank` on."""
    quick: bool
    """Whether it was the quick mode, whose figures only show that it works."""
    seeds: list[int]
    versions: dict[str, str]
    revision: str | None
    machine: dict[str, str | int]
    started: str
    """ISO 8601, UTC."""
    seconds: float
    """Of the last invocation; what an earlier one finished was kept."""


class Failure(BaseModel):
    """A training that could not be finished, of those that the figures want."""

    row: str
    seed: int
    reason: str

    @property
    def said(self) -> str:
        """For the caveats."""
        return f"{self.row} from seed {self.seed} could not be finished: {self.reason}."


class StudyResult(BaseModel):
    """The part that all studies share; each adds its figures."""

    study: str
    """Its name on the command line."""
    made: Made
    caveats: list[str] = Field(default_factory=list)
    """What a reader must know before believing the figures, a sentence each."""


@contextmanager
def making(seeds: Sequence[int] = (), *, quick: bool = False) -> Iterator[Callable[[], Made]]:
    """Yields what says, when the work is done, how it was made."""
    began, clock = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()

    def made() -> Made:
        return Made(
            command=shlex.join(["limerank", *sys.argv[1:]]),
            quick=quick,
            seeds=list(seeds),
            versions=versions(),
            revision=revision(),
            machine={**machine(), "processor": processor()},
            started=began,
            seconds=round(time.monotonic() - clock, 1),
        )

    yield made


def processor() -> str:
    """The processor's name, which many systems only keep in a file."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown"


def write_study(result: StudyResult, out: Path, fill: Callable[[Page, Any], None], title: str) -> tuple[Path, Path]:
    """Write OUT/<study>.json and OUT/<study>.html; returns both."""
    described, shown = out / f"{result.study}.json", out / f"{result.study}.html"
    files.write_json(described, result.model_dump(mode="json"))
    page = Page(title)
    fill_whole(page, result, fill)
    files.write_text(shown, page.html())
    return described, shown


def fill_whole(page: Page, result: StudyResult, fill: Callable[[Page, Any], None]) -> None:
    """All of a study: before its figures whether they count, then what it found, last how it was made."""
    if result.made.quick:
        page.paragraph(QUICK, "warning")
    fill(page, result)
    how_it_was_made(page, result)


def how_it_was_made(page: Page, result: StudyResult) -> None:
    """The last section of every study: caveats, command, machine, seeds."""
    made = result.made
    page.heading("Read with care" if result.caveats else "How this was made")
    for caveat in result.caveats:
        page.paragraph(caveat)
    about = [
        ("command", made.command),
        ("seeds", ", ".join(map(str, made.seeds)) or "-"),
        ("machine", ", ".join(f"{name} {value}" for name, value in made.machine.items())),
        ("versions", ", ".join(f"{name} {value}" for name, value in made.versions.items())),
        ("revision", made.revision or "-"),
        ("started", f"{made.started}, {made.seconds:,.0f} s"),
    ]
    page.table(["", ""], about, style="words")
