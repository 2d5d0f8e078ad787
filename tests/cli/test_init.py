"""`limerank init` and `limerank prepare table` as a user types them."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
import yaml
from calling import answer, limerank

from limerank.data.eventlog import EventLog
from limerank.data.raw import RawLog
from limerank.data.sources.table import write_table_log


@pytest.fixture
def place(raw_log: RawLog, tmp_path: Path) -> Path:
    """A folder in which a user stands, with a log in `my-log`."""
    write_table_log(raw_log, tmp_path / "my-log")
    (tmp_path / "my-log" / "dataset.yaml").unlink()
    return tmp_path


def test_init_then_prepare(place: Path) -> None:
    """The two commands of the tutorial, and what they say."""
    done = limerank("init", "--from", "my-log", "--out", "my-log.yaml", cwd=place)
    assert done.returncode == 0, done.stderr
    assert "wrote my-log.yaml: 12 features" in done.stdout
    assert "TODO" not in done.stdout.replace("CHECK and TODO", "")
    assert "next: read my-log.yaml" in done.stdout
    assert "limerank prepare table --raw my-log.yaml --out datasets/mine" in done.stdout
    prepared = answer("prepare", "table", "--raw", "my-log.yaml", "--out", "datasets/mine", cwd=place)
    assert prepared["items"] == 201
    assert any("my-log/events.parquet: columns not used: 'click_probability'" in note for note in prepared["notes"])


def test_the_tables_can_be_named_one_by_one(place: Path) -> None:
    paths = [
        f"--{option}={place / 'my-log' / name}.parquet" for option, name in (("from", "events"), ("items", "items"))
    ]
    told = answer("init", *paths, cwd=place)
    assert told["description"] == "dataset.yaml"
    assert told["todo"] == []
    assert (told["user_id"], told["item_id"], told["time"], told["time_unit"]) == ("user_id", "item_id", "time", "ms")
    assert told["request_id"] == "request_id"
    assert told["tasks"] == ["click"]
    assert "click_probability" in told["left_out"]
    written = yaml.safe_load((place / "dataset.yaml").read_text())
    assert written["features"] == told["features"]
    assert written["tables"] == {"events": "my-log/events.parquet", "items": "my-log/items.parquet", "users": []}


def test_what_is_missing_is_said_and_is_no_failure(tmp_path: Path) -> None:
    pl.DataFrame({"a": range(40), "b": [n % 7 for n in range(40)]}).write_csv(tmp_path / "log.csv")
    done = limerank("init", "--from", "log.csv", cwd=tmp_path)
    assert done.returncode == 0
    for key in ("user_id", "item_id", "time", "tasks"):
        assert f"TODO: no column was found for '{key}'" in done.stdout
    assert answer("init", "--from", "log.csv", "--overwrite", cwd=tmp_path)["todo"] == [
        "user_id",
        "item_id",
        "time",
        "tasks",
    ]


def test_init_replaces_nothing_unasked(place: Path) -> None:
    (place / "dataset.yaml").write_text("mine")
    done = limerank("init", "--from", "my-log", cwd=place)
    assert done.returncode == 5
    assert "dataset.yaml exists already; choose another place or pass --overwrite" in done.stderr
    assert (place / "dataset.yaml").read_text() == "mine"
    assert limerank("init", "--from", "my-log", "--overwrite", cwd=place).returncode == 0
    assert "limerank init" in (place / "dataset.yaml").read_text()
    done = limerank("init", "--from", "my-log", "--out", "my-log", cwd=place)
    assert done.returncode == 2
    assert "--out my-log: is a folder" in done.stderr


def test_init_explains_what_it_cannot_read(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_bytes(b"user_id,x\n1,caf\xe9\n")
    cases: dict[str, str] = {
        "nowhere.csv": "nowhere.csv: no such file or folder; correct --from",
        "*.parquet": "*.parquet: no file matches; correct --from",
        "log.csv": "log.csv, line 2: byte 0xe9 is not UTF-8",
    }
    for given, expected in cases.items():
        done = limerank("init", "--from", given, cwd=tmp_path)
        assert done.returncode == 3
        assert expected in done.stderr
        assert "Traceback" not in done.stderr
        assert not (tmp_path / "dataset.yaml").exists()


def test_prepare_table_with_a_schema_elsewhere_and_selection_on_the_test_part(place: Path) -> None:
    answer("init", "--from", "my-log", "--out", "my-log.yaml", cwd=place)
    values = yaml.safe_load((place / "my-log.yaml").read_text())
    del values["tables"]
    (place / "schema.yaml").write_text(yaml.safe_dump(values))
    options = ["--raw", "my-log", "--schema", "schema.yaml", "--out", "d"]
    answer("prepare", "table", *options, "--select-on-test", cwd=place)
    assert EventLog.open(place / "d").schema.split.select_on_test
    done = limerank("prepare", "table", *options, cwd=place)
    assert done.returncode == 5
    assert limerank("prepare", "table", *options, "--overwrite", cwd=place).returncode == 0
    done = limerank("prepare", "table", "--raw", "my-log", "--out", "e", cwd=place)
    assert done.returncode == 3
    assert "my-log/dataset.yaml: no such file; describe the log there: limerank init --from" in done.stderr
    assert not (place / "e").exists()
