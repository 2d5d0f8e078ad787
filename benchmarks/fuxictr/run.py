"""limerank against FuxiCTR 2.3.10: the same DIN on the same rows, one core, two processes that take turns.

    python benchmarks/fuxictr/run.py --out docs/results/bench-fuxictr.json

Run it with limerank's own interpreter; FuxiCTR's is `.venv` beside this file (`make -C benchmarks/fuxictr`). Each
contestant is a warm process that sleeps while the other one works, both on the same core, so whatever else the machine
does hits both alike. Wall-clock seconds and processor seconds are kept of every round.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
BATCH_ROWS = (752, 4096)
VARIANTS = ("plain", "tower")
OURS, THEIRS = "limerank", "fuxictr"
Results = Iterator[list[dict[str, Any]]]
"""The rows of one part, more of them each time."""
STEPS = {(OURS, 752): 32, (THEIRS, 752): 5, (OURS, 4096): 8, (THEIRS, 4096): 1}
"""Steps of one round: ours group requests by history length, so a round must hold several batches of them."""
EVALUATED = {OURS: 8, THEIRS: 1}
"""Batches of 4,096 rows of one round."""
LOADED = {OURS: 160_000, THEIRS: 16_384}
"""Rows of one round."""


class Contestant:
    """A process that does one thing after the other."""

    def __init__(self, command: list[str], core: int) -> None:
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(HERE)]),
        }
        self.process = subprocess.Popen(  # noqa: S603 (our own commands)
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(self.process.pid, {core})
        self._answer()

    def ask(self, do: str, **values: Any) -> dict[str, Any]:
        """One command, one answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **values}) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{' '.join(self.process.args)}: ended by itself")  # type: ignore[arg-type]
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def contestants(folder: Path, their_python: Path, core: int) -> Iterator[dict[str, Contestant]]:
    """Both, warm."""
    started: dict[str, Contestant] = {}
    try:
        started[OURS] = Contestant([sys.executable, str(HERE / "ours.py"), str(folder)], core)
        started[THEIRS] = Contestant([str(their_python), str(HERE / "theirs.py"), str(folder)], core)
        yield started
    finally:
        for one in started.values():
            one.process.kill()
            one.process.wait()


def compare(asked: dict[str, dict[str, Any]], both: dict[str, Contestant], do: str, rounds: int) -> dict[str, Any]:
    """Rounds in which each does its work once, after one to warm up."""
    answers: dict[str, list[dict[str, Any]]] = {name: [] for name in both}
    for number in range(rounds + 1):
        for name, one in both.items():
            answer = one.ask(do, **asked[name])
            if number:
                answers[name].append(answer)
    return summary(answers)


def summary(answers: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Rows per second of each, and how many times faster ours was: by wall clock, with the spread, and by processor."""

    def rate(rounds: list[dict[str, Any]], clock: str) -> float:
        return sum(one["rows"] for one in rounds) / sum(one[clock] for one in rounds)

    result: dict[str, Any] = {}
    for name, rounds in answers.items():
        each = [one["rows"] / one["seconds"] for one in rounds]
        result[name] = {
            "rows_per_second": rate(rounds, "seconds"),
            "rows_per_cpu_second": rate(rounds, "cpu_seconds"),
            "slowest_round": min(each),
            "fastest_round": max(each),
            "rows": sum(one["rows"] for one in rounds),
        }
    ratios = [
        (a["rows"] / a["seconds"]) / (b["rows"] / b["seconds"])
        for a, b in zip(answers[OURS], answers[THEIRS], strict=True)
    ]
    return {
        **result,
        "times": result[OURS]["rows_per_second"] / result[THEIRS]["rows_per_second"],
        "times_by_cpu": result[OURS]["rows_per_cpu_second"] / result[THEIRS]["rows_per_cpu_second"],
        "times_median": median(ratios),
        "times_least": min(ratios),
        "times_most": max(ratios),
        "rounds": len(ratios),
    }


def best_options(theirs: Contestant) -> dict[str, Any]:
    """FuxiCTR's fastest way on one core: loader workers, and which Adam; rows per second of each."""
    tried = {}
    for workers, fused in ((0, True), (0, False), (1, True)):
        asked = {"variant": "plain", "batch_rows": 752, "workers": workers, "fused": fused}
        theirs.ask("steps", **asked, steps=1)
        rounds = [theirs.ask("steps", **asked, steps=4) for _ in range(3)]
        tried[workers, fused] = max(one["rows"] / one["seconds"] for one in rounds)
    workers, fused = max(tried, key=lambda one: tried[one])
    return {
        "workers": workers,
        "fused": fused,
        "tried": [{"workers": w, "fused_adam": f, "rows_per_second_at_best": rate} for (w, f), rate in tried.items()],
    }


def check_agreement(both: dict[str, Contestant], folder: Path, rows: int = 4096) -> dict[str, Any]:
    """The same weights give the same probabilities: what is compared is one network."""
    result = {}
    for variant in VARIANTS:
        files = {"weights": str(folder / "weights.npz"), "predictions": str(folder / "predictions.npz")}
        both[OURS].ask("agree", variant=variant, rows=rows, **files)
        result[variant] = both[THEIRS].ask("agree", variant=variant, rows=rows, **files)
        if result[variant]["largest_difference"] > 1e-5:
            raise SystemExit(f"{variant}: the two networks differ: {result[variant]}")
    return result


def note(text: str) -> None:
    """For people who wait."""
    sys.stderr.write(f"{text}\n")


def main() -> None:
    """Measure everything and write one JSON file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, default=HERE / ".data", help="where the log is prepared; kept")
    parser.add_argument("--users", type=int, default=3000, help="of the simulated log; 3000 is the quickstart's")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seeds", type=int, default=3, help="trainings for AUC")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--parts", default=",".join(PARTS), help="what is measured; the rest of OUT stays as it is")
    parser.add_argument("--core", type=int, default=0, help="the one that both run on")
    parser.add_argument("--fuxictr-python", type=Path, default=HERE / ".venv/bin/python")
    options = parser.parse_args()
    sys.path[:0] = [str(ROOT / "src"), str(HERE)]
    from data import HISTORY, make_data

    from limerank.files import write_json

    log = {**make_data(options.data, options.users).manifest.counts, "history": HISTORY}
    parts = options.parts.split(",")
    result: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    machine = {"processor": processor(), "cores": os.cpu_count(), "core_used": options.core}
    with contestants(options.data, options.fuxictr_python, options.core) as both:
        result |= {"log": log, "versions": {name: one.ask("about") for name, one in both.items()}}
        result["same_network"] = check_agreement(both, options.data)
        for part in parts:
            before = os.getloadavg()
            for results in PARTS[part](both, options):  # written as they come: all of it takes long
                result[part] = {"results": results, "load_average": [before, os.getloadavg()], **machine}
                write_json(options.out, result)


def training(both: dict[str, Contestant], options: argparse.Namespace) -> Results:
    """Whole training steps, loader included, in FuxiCTR's fastest configuration."""
    best = best_options(both[THEIRS])
    rows = []
    for variant in VARIANTS:
        for size in BATCH_ROWS:
            asked = {
                name: {"variant": variant, "batch_rows": size, "steps": STEPS[name, size], **extra}
                for name, extra in ((OURS, {}), (THEIRS, {"workers": best["workers"], "fused": best["fused"]}))
            }
            row = {"variant": variant, "batch_rows": size, **compare(asked, both, "steps", options.rounds)}
            rows.append({**row, "fuxictr_options": best})
            note(f"training {variant}, {size} rows: {row['times']:.1f}x, by processor time {row['times_by_cpu']:.1f}x")
            yield rows


def evaluation(both: dict[str, Contestant], options: argparse.Namespace) -> Results:
    """Predicting the test part, loader included."""
    rows = []
    for variant in VARIANTS:
        asked = {name: {"variant": variant, "batch_rows": 4096, "batches": EVALUATED[name]} for name in both}
        rows.append({"variant": variant, "batch_rows": 4096, **compare(asked, both, "evaluating", options.rounds)})
        note(f"evaluation {variant}: {rows[-1]['times']:.1f}x")
        yield rows


def loader(both: dict[str, Contestant], options: argparse.Namespace) -> Results:
    """Batches alone."""
    rows = []
    for size in BATCH_ROWS:
        asked = {name: {"batch_rows": size, "batches": LOADED[name] // size} for name in both}
        rows.append({"batch_rows": size, **compare(asked, both, "loading", options.rounds)})
        note(f"loader, {size} rows: {rows[-1]['times']:.1f}x")
        yield rows


def gauc(both: dict[str, Contestant], options: argparse.Namespace) -> Results:
    """gAUC by user of the test part."""
    row = compare({OURS: {"times": 50}, THEIRS: {"times": 1}}, both, "gauc", min(3, options.rounds))
    note(f"gAUC: {row['times']:.0f}x")
    yield [{**row, "values": {name: one.ask("gauc", times=1)["gauc"] for name, one in both.items()}}]


def accuracy(both: dict[str, Contestant], options: argparse.Namespace) -> Results:
    """Test AUC and logloss of both from several seeds, both from the same initial weights: limerank's."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in both}
    asked = {"variant": "plain", "epochs": options.epochs, "batch_rows": BATCH_ROWS[0]}
    for seed in range(1, options.seeds + 1):
        for name, one in both.items():
            found[name].append(one.ask("fit", seed=seed, weights=str(options.data / "weights.npz"), **asked))
            note(f"{name} seed {seed}: {found[name][-1]}")
        yield [{"users": options.users, **asked, **{name: spread(runs) for name, runs in found.items()}}]


def spread(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and standard deviation of each metric, and what each seed had."""
    result: dict[str, Any] = {"seconds": [run["seconds"] for run in runs]}
    for metric in ("auc", "logloss"):
        values = [run[metric] for run in runs]
        noise = stdev(values) if len(values) > 1 else None
        result[metric] = {"mean": mean(values), "standard_deviation": noise, "seeds": values}
    return result


PARTS = {"training": training, "evaluation": evaluation, "loader": loader, "gauc": gauc, "accuracy": accuracy}


def processor() -> str:
    """What the system calls it."""
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
