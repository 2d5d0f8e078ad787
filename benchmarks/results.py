"""Every file of docs/results again, each by the one command that made it: `make results`, hours, resumable.

    python benchmarks/results.py                          # all of them; goes on behind what is finished
    python benchmarks/results.py accuracy-easy latency    # some, whether they are finished or not
    python benchmarks/results.py --list                   # what there is, and how it is made

Files of an earlier format and of another machine are not made here: --list says what comes nearest. Datasets are
prepared in datasets/, studies work in studies/ and go on where they were stopped; their JSON is copied to
docs/results when they end. studies/finished notes what was made at which commit: all of them, asked for again at the
same commit, go on behind it. Times want a quiet machine and are measured anew when they are made again, by benchmarks
and by the studies of latency and complexity. The two real logs are read from $DATA (a folder with ml-100k and
kuairand_27k_likehate); they cannot be part of the repository. Without them what is read from them is left out, and the
exit code says so.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
DATA = "DATA"
DATASETS: Mapping[str, str] = {
    "easy": "prepare evaluation easy",
    "medium": "prepare evaluation medium",
    "hard": "prepare evaluation hard",
    "medium-4x": "prepare evaluation medium --times 4",
    "medium-16x": "prepare evaluation medium --times 16",
    "ml-100k": "prepare movielens --raw $DATA/ml-100k",
    "kuairand-likehate": "prepare table --raw $DATA/kuairand_27k_likehate "
    "--schema examples/datasets/kuairand-likehate.yaml",
}
COMPARED = tuple(log for log in DATASETS if not log.endswith("x"))
"""Without those that are like another one and have more users."""
ORIGIN: Mapping[str, tuple[str, str]] = {
    **{log: ("evaluation_log", log) for log in ("easy", "medium", "hard", "medium-4x", "medium-16x")},
    "ml-100k": ("source", "movielens"),
    "kuairand-likehate": ("source", "table"),
}
"""What a dataset of that name says of itself, so that another one that lies there is not taken for it."""

MAKERS = ("src", "benchmarks", "examples")
"""What results are made by; what is made, docs/results, changes while others are."""

TUNED = "--config docs/results/earlier/accuracy-config.yaml"
UNSHORTENED = "--config benchmarks/studies/accuracy-no-shortcut.yaml"
EARLIER: Mapping[str, tuple[str, str, str]] = {
    "simulated": ("sim16", "prepare simulated", f"{TUNED} --seeds 4"),
    "simulated-24-topics": ("sim24", "prepare simulated --topics 24", f"{TUNED} --seeds 5"),
    "simulated-48-topics": ("sim48", "prepare simulated --topics 48", f"{TUNED} --seeds 2"),
    "ml-100k-shortcut": ("ml-100k", DATASETS["ml-100k"], "--epochs 4 --seeds 1"),
    "ml-100k-no-shortcut": ("ml-100k", DATASETS["ml-100k"], f"{UNSHORTENED} --seeds 1"),
    "kuairand-likehate-shortcut": ("kuairand-likehate", DATASETS["kuairand-likehate"], "--epochs 4 --seeds 1"),
    "kuairand-likehate-no-shortcut": ("kuairand-likehate", DATASETS["kuairand-likehate"], f"{UNSHORTENED} --seeds 1"),
}
"""Of decision 14, in a format that `limerank report` no longer reads: the log of each, how it is prepared, and what
`study accuracy` was told. Today's commands make the same study in today's format; its figures are others, because
starts of rankers have changed since (decisions 22, 25 and 31)."""


@dataclass(frozen=True)
class Study:
    """A study whose folder is studies/NAME, and the prepared logs that it reads."""

    command: str
    logs: tuple[str, ...] = ()
    anew: bool = False
    """Of times: what was measured before a commit does not compare with what is measured after it, and is refused. What
    was begun at this commit, and stopped, goes on."""

    def arguments(self, name: str) -> list[str]:
        """What follows `limerank`, for one that begins."""
        return [*self.command.split(), "--out", f"studies/{name}", *(["--overwrite"] if self.anew else [])]

    def written(self, name: str) -> Path:
        """What the study leaves in its folder."""
        return ROOT / "studies" / name / f"{self.command.split()[1]}.json"


@dataclass(frozen=True)
class Bench:
    """A command that writes to --out, or prints one JSON object."""

    command: str
    prints: bool = False

    def arguments(self, name: str) -> list[str]:
        """What follows `limerank`."""
        return [*self.command.split(), *(["--json"] if self.prints else ["--out", f"docs/results/{name}.json"])]


@dataclass(frozen=True)
class Target:
    """What `make` makes, with variables of its environment."""

    target: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def command(self) -> str:
        """As one would type it."""
        return " ".join([*(f"{name}={value}" for name, value in self.variables.items()), "make", *self.target])


@dataclass(frozen=True)
class Elsewhere:
    """What is not made here, and what comes nearest."""

    command: str


def accuracy(log: str, config: str) -> Study:
    """The table of all rankers on one log, searched on its own validation part."""
    how = f"--models all --config benchmarks/studies/accuracy-{config}.yaml --seeds 3 --search 4"
    return Study(f"study accuracy --dataset datasets/{log} {how}", (log,))


def longer(log: str) -> Study:
    """The paper's rankers on a log with twice the epochs, trained to the end, as the search on it found them."""
    kind = "evaluation" if ORIGIN[log][0] == "evaluation_log" else "real"
    how = f"--models paper --config benchmarks/studies/accuracy-{kind}-longer.yaml"
    found = f"--found docs/results/accuracy-{log}.json --seeds 3"
    return Study(f"study accuracy --dataset datasets/{log} {how} {found}", (log,))


def earlier(name: str) -> Elsewhere:
    """A file that is kept as it is, and the same study by commands of today."""
    log, prepared, told = EARLIER[name]
    study = f"limerank study accuracy --dataset datasets/{log} --models ttsn,mha,lime-mha,hstu,lime-xor {told}"
    return Elsewhere(
        "older format, figures of rankers as they started then (decisions 14, 22, 25, 31); the same study of today: "
        f"limerank {prepared} --out datasets/{log}; {study} --out studies/accuracy-{name}"
    )


def larger(log: str, how: str) -> Study:
    """The paper's rankers on a log with more users."""
    config = "--models paper --config benchmarks/studies/accuracy-evaluation.yaml --seeds 3"
    return Study(f"study accuracy --dataset datasets/{log} {config} {how}", (log,))


PLANNED = "--preset industrial --candidates 8192"
LARGE_MACHINES = "--rates docs/results/plan-rates.json --cores 64 --memory-gb 512 --disk-gb 8000"
PAPER_SCALE = (
    "--preset industrial --items 1e8 --users 5e8 --events-per-day 33.3e9 --requests-per-second 1e5 "
    "--candidates 32768 --latency-ms 200 --assume days=3 --assume train_hours=72 --assume train_every_days=3 "
    "--assume embeddings=torchrec --assume embedding_rows=1e8 --assume store_days=1"
)
BILLION_ITEMS = (
    "--preset industrial --items 1e9 --users 1e8 --events-per-day 1e9 --requests-per-second 2000 "
    "--candidates 10000 --latency-ms 100 --assume days=7 --assume embeddings=torchrec "
    "--assume embedding_rows=1e8 --assume store_days=1"
)

MADE: Mapping[str, Study | Bench | Target | Elsewhere] = {
    "logs": Study("study logs " + " ".join(f"--dataset datasets/{log}" for log in COMPARED), COMPARED),
    "accuracy-medium": accuracy("medium", "medium"),
    "accuracy-easy": accuracy("easy", "evaluation"),
    "accuracy-hard": accuracy("hard", "evaluation"),
    "accuracy-ml-100k": accuracy("ml-100k", "real"),
    "accuracy-kuairand-likehate": accuracy("kuairand-likehate", "real"),
    **{f"accuracy-{log}-longer": longer(log) for log in ("easy", "medium", "ml-100k", "kuairand-likehate")},
    "accuracy-medium-4x": larger("medium-4x", "--search 4"),
    "accuracy-medium-16x": larger("medium-16x", "--epochs 3 --found docs/results/accuracy-medium-4x.json"),
    "spectrum": Study("study spectrum"),
    "scaling": Study("study scaling"),
    "ablation": Study(
        "study ablation --dataset datasets/easy --config benchmarks/studies/accuracy-simulated.yaml "
        "--found docs/results/accuracy-easy.json",
        ("easy",),
    ),
    "latency": Study("study latency", anew=True),
    "latency-second-machine": Elsewhere("limerank study latency --out studies/latency"),
    "complexity": Study("study complexity", anew=True),
    "quickstart": Bench("quickstart", prints=True),
    "bench-ops": Bench("bench ops", prints=True),
    "bench-data": Bench("bench data", prints=True),
    "bench-models": Bench("bench models --repeats 7", prints=True),
    "bench-threads": Bench("bench threads", prints=True),
    "bench-train": Bench("bench train --cpu --repeats 3"),
    "bench-engine": Bench("bench engine"),
    "bench-states": Bench("bench states"),
    "bench-serve": Bench("bench serve --seconds 4 --searches 3 --models lime-mha,lime-xor"),
    "bench-cluster": Bench("bench cluster"),
    "plan-rates": Bench(f"plan --measure --ranker lime-mha,lime-xor {PLANNED}"),
    "plan-check": Bench(f"plan --check {PLANNED}"),
    "plan-paper": Bench(f"plan --ranker lime-xor {PAPER_SCALE} {LARGE_MACHINES}"),
    "plan-billion": Bench(f"plan --ranker lime-mha {BILLION_ITEMS} {LARGE_MACHINES}"),
    "bench-fuxictr": Target(("-C", "benchmarks/fuxictr")),
    "soak": Target(("soak",)),
    "soak-hour": Target(
        ("soak",), {"SOAK_MINUTES": "60", "SOAK_PARTS": "memory", "SOAK_OUT": "docs/results/soak-hour.json"}
    ),
    **{f"earlier/accuracy-{name}": earlier(name) for name in EARLIER},
}


def command_of(name: str) -> str:
    """How a file of docs/results is made."""
    made = MADE[name]
    return made.command if isinstance(made, Target | Elsewhere) else " ".join(["limerank", *made.arguments(name)])


def say(line: str) -> None:
    """Tell what is going on."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def limerank(arguments: Sequence[str], into: Path | None = None) -> None:
    """Run a command of this checkout; what it prints goes to a file once it has ended well."""
    say(f"limerank {' '.join(arguments)}")
    command = [sys.executable, "-m", "limerank", *(os.path.expandvars(one) for one in arguments)]
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    printed = run(command, {"PYTHONPATH": path}, keep=into is not None)
    if into is not None:
        aside = into.with_suffix(".aside")
        aside.write_bytes(printed)
        aside.replace(into)


def run(command: Sequence[str], variables: Mapping[str, str], *, keep: bool = False) -> bytes:
    """Run a command at the root; what it prints, if that is to be kept. One that fails ends everything."""
    done = subprocess.run(  # noqa: S603 (commands of the table above)
        command, cwd=ROOT, env={**os.environ, **variables}, stdout=subprocess.PIPE if keep else None
    )
    if done.returncode:
        sys.exit(f"ended with {done.returncode}; what is finished is kept, the same command goes on")
    return done.stdout or b""


def revision() -> str | None:
    """The commit of this checkout; None where there is none, or where what makes results differs from it."""
    said = []
    for command in (
        ("rev-parse", "HEAD"),
        ("status", "--porcelain", "--untracked-files=no", "--", *(one for one in MAKERS if (ROOT / one).exists())),
    ):
        try:
            done = subprocess.run(["git", "-C", ROOT, *command], capture_output=True, text=True)  # noqa: S603, S607
        except OSError:
            return None
        said.append(done.stdout.strip() if done.returncode == 0 else None)
    commit, changed = said
    return None if changed is None or changed else commit


def finished(name: str) -> Path:
    """Where it is noted at which commit a file was made."""
    return ROOT / "studies" / "finished" / name


def is_finished(name: str, commit: str | None) -> bool:
    """Whether it was made at this commit."""
    note = finished(name)
    return commit is not None and note.is_file() and note.read_text().strip() == commit


def begun(name: str) -> Path:
    """Where it is noted at which commit times were begun to be measured, until they are finished."""
    return ROOT / "studies" / "begun" / name


def beginning(name: str, study: Study, commit: str | None) -> list[str]:
    """The arguments of a study; times go on if they were begun at this commit."""
    note, arguments = begun(name), study.arguments(name)
    if study.anew and commit is not None:
        if note.is_file() and note.read_text().strip() == commit:
            return [one for one in arguments if one != "--overwrite"]
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(f"{commit}\n")
    return arguments


def lacking(name: str) -> str | None:
    """What has to be set before a log can be read that a file is made of; None if nothing."""
    made = MADE[name]
    for log in made.logs if isinstance(made, Study) else ():
        _, _, raw = DATASETS[log].partition("--raw ")
        needed = raw.partition(" ")[0]
        if needed and not (ROOT / "datasets" / log).is_dir() and not Path(os.path.expandvars(needed)).is_dir():
            return f"{log} is read from {needed}; set ${DATA} to the folder that has ml-100k and kuairand_27k_likehate"
    return None


def prepare(log: str) -> None:
    """Make a dataset unless it is there."""
    folder, (key, wanted) = ROOT / "datasets" / log, ORIGIN[log]
    if folder.is_dir():
        known = json.loads((folder / "dataset.json").read_text())["origin"].get(key)
        if known != wanted:
            sys.exit(f"{folder}: holds a log whose {key} is {known}, not {wanted}; move it away")
    else:
        limerank([*DATASETS[log].split(), "--out", f"datasets/{log}"])


def make(name: str) -> None:
    """Make one file of docs/results."""
    made = MADE[name]
    if (lacks := lacking(name)) is not None:
        sys.exit(f"{name}: {lacks}")
    if isinstance(made, Elsewhere):
        say(f"{name}: not made here; {made.command}")
    elif isinstance(made, Target):
        say(made.command)
        run(["make", *made.target], made.variables)
    elif isinstance(made, Bench):
        limerank(made.arguments(name), RESULTS / f"{name}.json" if made.prints else None)
    else:
        for log in made.logs:
            prepare(log)
        limerank(beginning(name, made, revision()))
        begun(name).unlink(missing_ok=True)
        shutil.copyfile(made.written(name), RESULTS / f"{name}.json")


def main() -> None:
    """Make what was named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="files of docs/results without their ending")
    parser.add_argument("--list", action="store_true", help="print what there is, and end")
    asked = parser.parse_args()
    if unknown := [name for name in asked.names if name not in MADE]:
        sys.exit(f"no result '{unknown[0]}'; there are {', '.join(MADE)}")
    if asked.list:
        for name in asked.names or MADE:
            say(f"{name}: {command_of(name)}")
        return
    left_out = []
    if revision() is None:
        say(f"no commit, or {', '.join(MAKERS)} differ from it: what is finished is not noted")
    for name in asked.names or MADE:
        commit = revision()
        if not asked.names and is_finished(name, commit):
            say(f"{name}: finished at this commit; name it to have it made again")
        elif not asked.names and (lacks := lacking(name)) is not None:
            say(f"{name}: left out; {lacks}")
            left_out.append(name)
        else:
            finished(name).unlink(missing_ok=True)
            make(name)
            if commit is not None and commit == revision() and not isinstance(MADE[name], Elsewhere):
                finished(name).parent.mkdir(parents=True, exist_ok=True)
                finished(name).write_text(f"{commit}\n")
    if left_out:
        sys.exit(f"not made, because their logs are not here: {', '.join(left_out)}; all others are")


if __name__ == "__main__":
    main()
