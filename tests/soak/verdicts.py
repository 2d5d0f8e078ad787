"""What was wanted, what was measured, and whether that is enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

MOST_GROWTH_MB, MOST_NEW_FILES, MOST_DRIFT = 32.0, 4, 1.1


@dataclass(frozen=True)
class Verdict:
    """One promise; a machine that others use may miss `timed` ones, which are told but fail nothing."""

    name: str
    goal: str
    measured: str
    reached: bool
    timed: bool = False


def none_of(name: str, count: int, of: int) -> Verdict:
    """Something that must not have happened, not once."""
    return Verdict(name, "none", f"{count} of {of:,}", count == 0)


@dataclass
class Part:
    """A part of the soak: its figures, and what they mean."""

    name: str
    minutes: float = 0.0
    """As SOAK_MINUTES said."""
    seconds: float = 0.0
    load_average: list[float] = field(default_factory=list)
    """Of the system, before and after."""
    commit: str | None = None
    figures: dict[str, Any] = field(default_factory=dict)
    verdicts: list[Verdict] = field(default_factory=list)

    @property
    def held(self) -> bool:
        """Whether everything that does not depend on the machine was reached."""
        return all(one.reached or one.timed for one in self.verdicts)


@dataclass(frozen=True)
class Sample:
    """A process at one time."""

    second: float
    rss_mb: float
    anonymous_mb: float
    """Of it, what is not mapped from files: what a leak would be made of."""
    files: int
    threads: int
    sockets: int = 0
    """Of the files, those that clients hold open, too."""


def sample(pid: int, second: float) -> Sample:
    """What the system says of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    status = dict(line.split(":", 1) for line in lines)
    kilobytes = {name: int(status[name].split()[0]) for name in ("VmRSS", "RssAnon")}
    opened = [_target(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
    sockets = sum(target.startswith("socket:") for target in opened)
    memory = (kilobytes["VmRSS"] / 1024, kilobytes["RssAnon"] / 1024)
    return Sample(second, *memory, len(opened), int(status["Threads"]), sockets)


def _target(descriptor: Path) -> str:
    try:
        return str(descriptor.readlink())
    except OSError:  # closed meanwhile
        return ""


def growth(seconds: Sequence[float], values: Sequence[float]) -> float:
    """By how much values grow from the first to the last, by the median of all slopes: single jumps do not count."""
    x, y = np.asarray(seconds, float), np.asarray(values, float)
    if len(x) > 400:  # medians of runs: all pairs of thousands would be millions
        runs = np.array_split(np.arange(len(x)), 400)
        x, y = np.array([np.median(x[run]) for run in runs]), np.array([np.median(y[run]) for run in runs])
    first, second = np.triu_indices(len(x), 1)
    if not len(first):
        return 0.0
    return float(np.median((y[second] - y[first]) / (x[second] - x[first])) * (x[-1] - x[0]))


def memory_verdicts(samples: Sequence[Sample]) -> list[Verdict]:
    """Memory and files of the second half."""
    half = [one for one in samples if one.second >= (samples[0].second + samples[-1].second) / 2]
    seconds = [one.second for one in half]
    verdicts = []
    for name, values in (
        ("resident memory", [one.rss_mb for one in half]),
        ("anonymous memory", [one.anonymous_mb for one in half]),
    ):
        grown = growth(seconds, values)
        verdicts.append(
            Verdict(
                f"{name} in the second half",
                f"grows by at most {MOST_GROWTH_MB:g} MB",
                f"{grown:+.1f} MB",
                grown <= MOST_GROWTH_MB,
            )
        )
    opened = growth(seconds, [one.files for one in half])
    goal = f"grow by at most {MOST_NEW_FILES}"
    verdicts.append(Verdict("open files in the second half", goal, f"{opened:+.1f}", opened <= MOST_NEW_FILES))
    return verdicts


def drift_verdict(latency_ms: Sequence[float]) -> Verdict:
    """The last thousand requests against the second thousand (or the last tenth against the second)."""
    size = min(1000, len(latency_ms) // 10)
    early, late = (float(np.median(part)) for part in (latency_ms[size : 2 * size], latency_ms[-size:]))
    measured = f"{late / early:.2f} times ({early:.1f} to {late:.1f} ms)"
    name = f"median latency of the last {size:,} rankings against the second {size:,}"
    return Verdict(name, f"at most {MOST_DRIFT:g} times", measured, late <= MOST_DRIFT * early, timed=True)
