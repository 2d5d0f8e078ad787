"""A stranger's first day, typed into a real shell: a damaged log, two later days of new ids, a ranking.

On the real logs beside the project where they are there, and always on one that is made here.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from calling import Done, limerank

SHARED = Path(__file__).parents[3] / "shared/data"
DAMAGED_LINE = 522
USERS_KEPT = 120


@dataclass(frozen=True)
class Log:
    """A log of a user: the events by day, and what describes items, all as text."""

    events: pl.DataFrame
    items: pl.DataFrame | None
    user: str
    item: str
    time: str
    split_line: str
    """What the user writes instead of the drafted split, because a short log needs it."""


def made_here() -> Log:
    """60 users, 90 movies with titles, ratings from 1 to 5 in 40 rounds."""
    rows = [
        (f"{u}", f"{(7 * u + 3 * r) % 90}", f"{1 + (u * r + r) % 5}", f"{900_000_000 + 3600 * r + u}")
        for u in range(1, 61)
        for r in range(40)
    ]
    events = pl.DataFrame(rows, schema=["user_id", "item_id", "rating", "timestamp"], orient="row")
    titles = [(f"{n}", f"The {n}th Film, Part {n}", f"{1950 + n % 50}") for n in range(90)]
    items = pl.DataFrame(titles, schema=["item_id", "movie_title", "release_year"], orient="row")
    return Log(events, items, "user_id", "item_id", "timestamp", "split: {protocol: last_fraction}")


def movielens() -> Log:
    """Some users of MovieLens 100K."""
    events = read(SHARED / "ml-100k/ratings.csv.gz")
    items = read(SHARED / "ml-100k/items.csv.gz")
    return Log(
        of_few_users(events, "user_id"), items, "user_id", "item_id", "timestamp", "split: {protocol: last_fraction}"
    )


def kuairand() -> Log:
    """Some users of the KuaiRand selection; no items table."""
    events = read(SHARED / "kuairand_27k_likehate/log.csv.gz")
    few = of_few_users(events, "user_id").drop("label")  # selected by how often a video occurs: not to be learned
    return Log(few, None, "user_id", "video_id", "time_ms", "split: {protocol: global_time}")


def read(path: Path) -> pl.DataFrame:
    return pl.read_csv(path, infer_schema=False)


def of_few_users(events: pl.DataFrame, user: str) -> pl.DataFrame:
    return events.filter(pl.col(user).is_in(events[user].unique(maintain_order=True).head(USERS_KEPT).implode()))


LOGS = {"made here": made_here, "ml-100k": movielens, "kuairand": kuairand}


class Shell:
    """Types commands in a folder: into a real shell, or through the same entry point without starting a process."""

    def __init__(self, folder: Path, *, real: bool) -> None:
        self.folder = folder
        self.real = real

    def types(self, line: str, *expected: str, code: int = 0) -> str:
        """Type a line; its exit code and words must be these. Returns all that was said."""
        done = self._in_a_shell(line) if self.real else limerank(*shlex.split(line)[1:], cwd=self.folder)
        said = done.stdout + done.stderr
        assert done.returncode == code, f"$ {line}\n{said}"
        assert "Traceback" not in said, said
        for words in expected:
            assert words in said, f"$ {line}\n{said}\nlacks: {words}"
        return done.stdout if line.endswith("--json") else said

    def _in_a_shell(self, line: str) -> Done:
        command = line.replace("limerank ", f"{shlex.quote(sys.executable)} -m limerank ", 1)
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env={**os.environ, "NO_COLOR": "1"},
            capture_output=True,
            text=True,
            timeout=300,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def answer(self, line: str) -> dict[str, Any]:
        """The JSON that a line prints."""
        value: dict[str, Any] = json.loads(self.types(f"{line} --json"))
        return value


def write_days(log: Log, folder: Path) -> tuple[list[str], list[str]]:
    """The log with one damaged time, and two later days whose users and items nobody has seen; their ids."""
    ordered = log.events.sort(pl.col(log.time).cast(pl.Int64))
    damaged = ordered.with_row_index().with_columns(
        pl.when(pl.col("index") == DAMAGED_LINE - 2).then(pl.lit("yesterday")).otherwise(log.time).alias(log.time)
    )
    damaged.drop("index").write_csv(folder / "log.csv")
    last = int(ordered[log.time].cast(pl.Int64).max())  # type: ignore[arg-type]
    second = 1 if last < 10**11 else 1000
    users, items = ["9001", "9002"], ["00", "zz"]  # items that sort before and behind all others
    for day in (1, 2):
        sample = ordered.sample(60, seed=day).with_row_index()
        turn = pl.col("index") % 3 + (day - 1) * 10
        new = sample.with_columns(
            pl.when(pl.col("index") < 30).then(pl.lit(f"{users[day - 1]}")).otherwise(log.user).alias(log.user),
            pl.when(pl.col("index") % 4 == 0)
            .then(pl.lit(f"{items[day - 1]}") + turn.cast(pl.String))
            .otherwise(log.item)
            .alias(log.item),
            (last + second * (day * 86_400 + pl.col("index") * 60)).cast(pl.String).alias(log.time),
        )
        new.drop("index").write_csv(folder / f"day{day}.csv")
        if log.items is not None:
            ids = new.filter(pl.col("index") % 4 == 0)[log.item].unique(maintain_order=True)
            like = log.items.head(1).with_columns(movie_title=pl.lit("new movie_title"))
            rows = {name: ids if name == log.item else [like[name][0]] * len(ids) for name in like.columns}
            pl.DataFrame(rows).write_csv(folder / f"items{day}.csv")
    if log.items is not None:
        log.items.write_csv(folder / "items.csv")
    return users, [f"{items[0]}0", f"{items[1]}10"]


@pytest.mark.parametrize("name", LOGS)
def test_a_first_day(name: str, tmp_path: Path) -> None:
    """Every step a newcomer takes, and every id of every day is served at the end."""
    if name != "made here" and not SHARED.is_dir():
        pytest.skip("the real logs are not beside this project")
    log, shell = LOGS[name](), Shell(tmp_path, real=name == "made here")
    new_users, new_items = write_days(log, tmp_path)
    beside = " --items items.csv" if log.items is not None else ""
    unit = "milliseconds" if log.time.endswith("ms") else "seconds"
    damage = f"looks like {unit}, except line {DAMAGED_LINE}: 'yesterday'"

    shell.types(f"limerank init --from log.csv{beside} --out log.yaml", damage)
    drafted = (tmp_path / "log.yaml").read_text()
    assert f"time: {log.time} " in drafted
    assert damage in drafted
    if log.items is not None:
        assert "display: movie_title" in drafted

    shell.types("limerank prepare table --raw lgo.yaml --out d", "no such file", "log.yaml", code=3)
    shell.types("limerank train log.yaml --out r", "limerank prepare table --raw log.yaml", code=2)
    shell.types("limerank prepare table --raw log.yaml --out d", f"line {DAMAGED_LINE}", "on_bad_rows: drop", code=3)
    lines = [line for line in drafted.splitlines() if not line.startswith(("split:", "# on_bad_rows"))]
    (tmp_path / "log.yaml").write_text("\n".join([*lines, log.split_line, "on_bad_rows: drop"]) + "\n")
    said = shell.types(
        "limerank prepare table --raw log.yaml --out d", "dropped 1 row", f"line {DAMAGED_LINE}: 'yesterday'"
    )
    aside = said.split("they are in ")[1].split()[0].rstrip(";,.")
    assert "yesterday" in (tmp_path / aside).read_text()
    shell.types("limerank describe d", "WARN")

    shell.types("limerank train lime-mah --dataset d --out r", "did you mean 'lime-mha'?", code=2)
    shell.types("limerank train lime-mha --dataset d --out r --set epochs=1", "--set epochs=1", "train.epochs", code=2)
    shell.types(
        "limerank train lime-mha --dataset d --out r --set train.epochs=1 --set model.links=4",
        "epoch 1 of 1",
        "floor",
        "still improving",
    )
    shell.types("limerank export r --store s", "published bundle")
    known = log.events[log.user][0]
    shell.types(f"limerank rank s --user {known} --limit 3 --exclude-seen", f"for user {known}", "left out because")

    for day in (1, 2):
        events = f"limerank append d --events day{day}.csv"
        described = f" --items items{day}.csv" if log.items is not None else ""
        if described:
            shell.types(events, "without a description", "nothing was appended", code=3)
        shell.types(f"{events}{described} --dry-run", "would add 60 events", "nothing was changed")
        shell.types(f"{events}{described}", "added 60 events")
    shell.types("limerank append d --undo", "took back 60 events")
    shell.types(f"limerank append d --events day2.csv{described}", "added 60 events")
    shell.types("limerank append d --events day2.csv", "--undo", code=3)
    shell.types("limerank export r --store s", "published bundle", "has grown")
    shell.types("limerank bundle verify s", "every id finds its row")

    for user in (known, *new_users):
        ranking = shell.answer(f"limerank rank s --user {user} --items '{new_items[0]}, {new_items[1]},{new_items[0]}'")
        assert ranking["user"]["known"], user
        assert ranking["user"]["history_used"] > 0, user
        assert ranking["unknown_items"] == []
        assert ranking["repeated_items"] == [new_items[0]]
    if log.items is not None:
        why = f"limerank rank s --user {new_users[0]} --items {new_items[0]} --explain 1"
        shell.types(why, f"1. {new_items[0]} new movie_title: logit")
