"""`limerank init` and `limerank prepare table` as a user types them."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
import yaml
from calling import answer, limerank

from limerank.data.raw.log import RawLog
from limerank.data.sources.table.read import write_table_log
from limerank.data.store.dataset import StoredDataset


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
    assert prepared["items"] == 200
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
    assert StoredDataset.open(place / "d").schema.split.select_on_test
    done = limerank("prepare", "table", *options, cwd=place)
    assert done.returncode == 5
    assert limerank("prepare", "table", *options, "--overwrite", cwd=place).returncode == 0
    done = limerank("prepare", "table", "--raw", "my-log", "--out", "e", cwd=place)
    assert done.returncode == 3
    assert "my-log/dataset.yaml: no such file; describe the log there: limerank init --from" in done.stderr
    assert not (place / "e").exists()


LOG_LINES = [
    "user_id,item_id,timestamp,click,title",
    *(f"u{n % 6},i{n % 9},{1_700_000_000 + 60 * n},{n * 7 % 5 // 3},Story {n % 9}" for n in range(240)),
]


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A folder with a log in which line 52 has no time."""
    lines = list(LOG_LINES)
    lines[51] = lines[51].replace(lines[51].split(",")[2], "yesterday")
    (tmp_path / "log.csv").write_text("\n".join(lines) + "\n")
    later = (f"u{n % 6},i{n % 9},{1_800_000_000 + n},{'x' if n == 3 else n % 2},Story {n % 9}" for n in range(30))
    (tmp_path / "more.csv").write_text("\n".join([LOG_LINES[0], *later]) + "\n")
    return tmp_path


def test_init_says_what_cannot_be_read(damaged: Path) -> None:
    done = limerank("init", "--from", "log.csv", cwd=damaged)
    assert done.returncode == 0, done.stderr
    assert "CHECK: 'timestamp' looks like seconds, except line 52: 'yesterday'" in done.stdout
    assert "take away the # before on_bad_rows: drop in dataset.yaml" in done.stdout
    told = answer("init", "--from", "log.csv", "--overwrite", cwd=damaged)
    assert (told["time"], told["time_unit"], told["display"], told["bad_rows"]) == ("timestamp", "s", "title", 1)
    assert told["bad_values"] == [
        {
            "column": "timestamp",
            "rows": 1,
            "first": "line 52",
            "value": "yesterday",
            "text": "looks like seconds, except line 52: 'yesterday'",
        }
    ]


def test_bad_rows_are_refused_then_dropped_on_request(damaged: Path) -> None:
    """From the first refusal to the appended day: each line says what to do next, and where the rows are."""
    limerank("init", "--from", "log.csv", cwd=damaged)
    prepare = ("prepare", "table", "--raw", "dataset.yaml", "--out", "d")
    done = limerank(*prepare, cwd=damaged)
    assert done.returncode == 3
    assert "log.csv: column 'timestamp' is not a number (first 'yesterday' at line 52); " in done.stderr
    assert done.stderr.endswith(", or set on_bad_rows: drop\n")
    description = damaged / "dataset.yaml"
    description.write_text(description.read_text().replace("# on_bad_rows", "on_bad_rows"))
    done = limerank(*prepare, cwd=damaged)
    assert done.returncode == 0, done.stderr
    place = "d/segments/0000/bad_rows.0000.csv"
    said = "dropped 1 row: 1 'timestamp' is not a number (first: log.csv line 52: 'yesterday')"
    assert f"note: {said}; they are in {place}" in done.stderr
    assert "yesterday" in (damaged / place).read_text()
    told = answer(*prepare, "--overwrite", cwd=damaged)
    assert (told["events"], told["dropped"]) == (239, {"events": 0})
    reasons = [{"column": "timestamp", "problem": "is not a number", "rows": 1}]
    first = "log.csv line 52: 'yesterday'"
    assert told["bad_rows"] == [{"file": place, "rows": 1, "reasons": reasons, "first": first}]
    assert f"{said}; they are in {place}" in told["notes"]
    described = limerank("describe", "d", cwd=damaged)
    assert f"WARN  bad rows   {said}; they are in {place}" in described.stdout
    append = ("append", "d", "--events", "more.csv")
    rehearsed = answer(*append, "--dry-run", cwd=damaged)
    assert rehearsed["bad_rows"][0]["rows"] == 1
    added = answer(*append, cwd=damaged)
    assert added["added"]["events"] == 29
    assert added["bad_rows"][0]["file"] == "d/segments/0001/bad_rows.0001.csv"
    assert added["bad_rows"][0]["first"] == "more.csv line 5: 'x'"
    assert any(note.endswith("they are in d/segments/0001/bad_rows.0001.csv") for note in added["notes"])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nope.yaml", "nope.yaml: no such file; --raw is a description, or a folder with dataset.yaml in it\n"),
        ("lgo.yaml", "or a folder with dataset.yaml in it; did you mean 'log.yaml'?\n"),
        ("log.yml", "did you mean 'log.yaml'?"),
        ("evnts.csv", "evnts.csv: no such file; --raw is a description"),
        (
            "my_log",
            "my_log: no such folder; it should hold dataset.yaml and events.csv or events.parquet; did you mean",
        ),
        ("far/away.yaml", "far/away.yaml: no such file; "),
    ],
)
def test_what_is_not_there_is_called_what_it_would_be(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "my-log").mkdir()
    (tmp_path / "log.yaml").write_text("")
    (tmp_path / "log.csv").write_text("")
    done = limerank("prepare", "table", "--raw", name, "--out", "d", cwd=tmp_path)
    assert done.returncode == 3
    assert said in done.stderr


@pytest.mark.parametrize("source", ["movielens", "kuairand-1k", "taobao-ad"])
def test_folders_of_other_sources_that_are_not_there(tmp_path: Path, source: str) -> None:
    (tmp_path / "ratings.csv").write_text("a,b\n")
    done = limerank("prepare", source, "--raw", "ratings.csv", "--out", "d", cwd=tmp_path)
    assert done.returncode == 3
    assert "ratings.csv: is a file, not a folder; " in done.stderr
    done = limerank("prepare", source, "--raw", "rating", "--out", "d", cwd=tmp_path)
    assert done.returncode == 3
    assert "rating: no such folder; " in done.stderr
