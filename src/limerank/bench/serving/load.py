"""Load from another process, and what became of it as a row."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np

from limerank.bench.serving.connection import Address
from limerank.bench.serving.generator import LAST_ANSWERS, UNSENT, Shots, Volley
from limerank.bench.serving.results import ServeRow
from limerank.errors import LimerankError

LATE_MS, LATE_FRACTION = 1.0, 0.1
"""The generator is late if its lag is more than both a millisecond and a tenth of the median latency."""


@dataclass(frozen=True)
class Kind:
    """Requests of one kind, encoded, and what they are."""

    model: str
    candidates: int
    history: int
    user_state: str
    requests: Sequence[bytes]


class LoadProcess:
    """The generator's process; one volley at a time."""

    def __init__(self, folder: Path, seed: int = 0) -> None:
        self.folder, self.seed = folder, seed
        command = [sys.executable, "-m", "limerank.bench.serving.generator"]
        self.process = subprocess.Popen(  # noqa: S603  # our own module
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> LoadProcess:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.communicate()

    def fire(self, address: Address, requests: Sequence[bytes], rate: float, seconds: float) -> Shots:
        """What becomes of requests that are sent in turn; every volley has a schedule of its own."""
        paths = [self.folder / f"request-{number}" for number in range(len(requests))]
        for path, request in zip(paths, requests, strict=True):
            path.write_bytes(request)
        self.seed += 1
        volley = Volley([*address], [*map(str, paths)], rate, seconds, self.seed)
        if self.process.stdin is None or self.process.stdout is None:
            raise LimerankError("the load generator has no pipes")
        self.process.stdin.write(json.dumps(asdict(volley)) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        for path in paths:
            path.unlink()
        if not line:
            raise LimerankError("the load generator ended; what it said is above")
        return Shots(**json.loads(line))

    def row(self, address: Address, kind: Kind, rate: float, seconds: float) -> ServeRow:
        """A volley as a row."""
        return summary(kind, rate, seconds, self.fire(address, kind.requests, rate, seconds))


def summary(kind: Kind, rate: float, seconds: float, shots: Shots) -> ServeRow:
    """Percentiles of what was answered; a refusal is quick, and no latency."""
    status, latency = np.array(shots.status), np.array(shots.latency_ms)
    answered = latency[status == 200]
    percentiles = np.percentile(answered, [50, 90, 99]).tolist() if len(answered) else [1000 * LAST_ANSWERS] * 3
    lag = float(np.percentile(shots.lag_ms, 99))
    names = dict.fromkeys(name for one in shots.stages for name in one)
    return ServeRow(
        model=kind.model,
        candidates=kind.candidates,
        history=kind.history,
        user_state=kind.user_state,
        rate=rate,
        seconds=seconds,
        requests=len(status),
        p50_ms=percentiles[0],
        p90_ms=percentiles[1],
        p99_ms=percentiles[2],
        qps=len(answered) / max(shots.seconds, seconds),
        errors=int(np.sum(~np.isin(status, (200, 429, UNSENT)))),
        unsent=int(np.sum(status == UNSENT)),
        refused=int(np.sum(status == 429)),
        degraded=int(np.sum((status == 200) & ~np.array(shots.whole, dtype=bool))),
        stage_ms={name: round(median(one[name] for one in shots.stages if name in one), 4) for name in names},
        generator_lag_ms=lag,
        generator_cpu=shots.cpu_seconds / max(shots.seconds, seconds),
        generator_late=lag > max(LATE_MS, LATE_FRACTION * percentiles[0]),
    )
