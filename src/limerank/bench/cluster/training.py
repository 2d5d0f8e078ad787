"""Rows per second that one and several processes train together, as `torchrun ... -m limerank train` does it.

Every measurement is a training of its own on the same made-up log, in processes that a user would start, and what is
read is the `rows_per_second` of its run: loading, evaluation and saving do not count. On a machine with as many cores
as processes this is what sharing a batch costs, not what more machines give.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from limerank.data.build.prepare import prepare
from limerank.data.sources.simulated import SimulatedConfig, simulate
from limerank.errors import UnavailableError, require_extra
from limerank.progress import Progress

Embeddings = Literal["replicated", "torchrec"]
PATIENCE = 1800.0  # seconds, for one training


@dataclass(frozen=True)
class TrainingRate:
    """What so many processes reached."""

    processes: int
    embeddings: Embeddings
    model: str
    rows_per_second: float
    """Candidate rows learned from, of all processes together."""
    steps: int
    train_seconds: float
    efficiency: float | None = None
    """Rows per second and process, over those of one; None where one was not measured."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def measure_all(
    progress: Progress,
    *,
    processes: Sequence[int] = (1, 2),
    users: int = 2000,
    epochs: int = 2,
    model: str = "lime-mha",
) -> list[TrainingRate]:
    """One process, then several, with whole tables and, where TorchRec is installed, with tables that it cuts."""
    ways: list[tuple[int, Embeddings]] = []
    for number in processes:
        ways.append((number, "replicated"))
        if number > 1 and importlib.util.find_spec("torchrec") is not None:
            ways.append((number, "torchrec"))
    with tempfile.TemporaryDirectory(prefix="limerank-bench-") as folder:
        dataset = Path(folder) / "log"
        prepare(simulate(SimulatedConfig(users=users)), dataset)
        rates = []
        with progress.bar("training", len(ways)) as bar:
            for number, kind in ways:
                rates.append(measure_training(number, kind, dataset=dataset, epochs=epochs, model=model))
                bar.advance()
    return with_efficiency(rates)


def with_efficiency(rates: Sequence[TrainingRate]) -> list[TrainingRate]:
    """What more processes give, of what as many machines would."""
    alone = next((one.rows_per_second for one in rates if one.processes == 1), None)
    return [
        one if alone is None else replace(one, efficiency=one.rows_per_second / one.processes / alone) for one in rates
    ]


def measure_training(
    processes: int,
    embeddings: Embeddings = "replicated",
    *,
    dataset: Path,
    epochs: int = 2,
    batch_requests: int = 64,
    model: str = "lime-mha",
) -> TrainingRate:
    """Train on a prepared dataset with so many processes of one thread each; what they reach together."""
    if embeddings == "torchrec" and processes > 1:
        require_extra("torchrec", "torchrec")
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    launcher += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    keys: dict[str, int | str] = {"train.epochs": epochs, "train.patience": epochs, "train.device": "cpu"}
    keys |= {"train.batch_requests": batch_requests, "distributed.embeddings": embeddings}
    sets = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
    with tempfile.TemporaryDirectory(prefix="limerank-bench-") as folder:
        asked = ["train", model, "--dataset", str(dataset), "--out", f"{folder}/run", "--threads", "1", *sets, "--json"]
        command = [sys.executable, *(launcher if processes > 1 else []), "-m", "limerank", *asked]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(  # noqa: S603 (its words are ours)
            command, capture_output=True, text=True, env=environment, timeout=PATIENCE
        )
    if done.returncode:
        told = done.stderr.splitlines()
        said = next((line.removeprefix("error: ") for line in told if line.startswith("error: ")), "\n".join(told[-1:]))
        raise UnavailableError(f"{processes} processes did not train: {said}")
    record = json.loads(done.stdout)
    return TrainingRate(
        processes, embeddings, model, record["rows_per_second"], record["steps"], record["stage_seconds"]["training"]
    )
