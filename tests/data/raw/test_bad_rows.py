"""Rows that cannot be read: named by the line an editor shows, or set aside whole and counted."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml

from limerank.data.build.append import append
from limerank.data.build.prepare import prepare
from limerank.data.describe.checks import Level, run_checks
from limerank.data.raw import log as raw_module
from limerank.data.raw.set_aside import MOST_BAD_FRACTION
from limerank.data.sources.given import read_given
from limerank.data.sources.table import files as table_files
from limerank.data.sources.table import rows as table_rows
from limerank.data.sources.table.read import read_table_log
from limerank.data.store.bad_rows import BadRows
from limerank.data.store.dataset import StoredDataset
from limerank.data.store.states import undo
from limerank.errors import DataError

START = 1_700_000_000
ROWS = 60
HEADER = "user_id,item_id,time,watched,click,note"
DESCRIPTION: dict[str, Any] = {
    "time_unit": "s",
    "features": [
        {"name": "item_id", "role": "item"},
        {"name": "watched", "role": "event", "kind": "continuous"},
    ],
    "tasks": [{"name": "click"}],
}
FIELDS = HEADER.split(",")


def rows(first: int = 0, count: int = ROWS) -> list[list[str]]:
    return [
        [f"u{n % 4}", f"i{n % 7}", f"{START + 60 * n}", f"{n % 9 / 4}", f"{n * 7 % 5 // 3}", f"note {n}"]
        for n in range(first, first + count)
    ]


def damaged(*changes: tuple[int, str, str], of: list[list[str]] | None = None) -> list[list[str]]:
    """Rows in which row `n` (from 0) has another value in a column."""
    changed = rows() if of is None else of
    for n, column, value in changes:
        changed[n][FIELDS.index(column)] = value
    return changed


def write(folder: Path, lines: list[list[str]], name: str = "events.csv", **description: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("\n".join([HEADER, *map(",".join, lines)]) + "\n")
    (folder / "dataset.yaml").write_text(yaml.safe_dump({**DESCRIPTION, **description}))
    return folder


def prepared(folder: Path, lines: list[list[str]], **description: Any) -> StoredDataset:
    raw = read_table_log(write(folder / "raw", lines, **description))
    return prepare(raw, folder / "d", overwrite=True)


def refusal(folder: Path, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        prepare(read_table_log(folder), folder.parent / "out", **options)
    assert not list(folder.parent.glob("out*")), "nothing may be left behind"
    assert "\n" not in str(caught.value)
    return str(caught.value)


def set_aside(dataset: StoredDataset) -> list[dict[str, str]]:
    (bad,) = dataset.manifest.bad_rows
    with dataset.path_of(bad).open(newline="") as handle:
        return list(csv.DictReader(handle))


def counted(bad: BadRows) -> dict[tuple[str, str], int]:
    return {(reason.column, reason.problem): reason.rows for reason in bad.reasons}


BAD = [
    ("user_id", "", "is empty"),
    ("item_id", "17.0", "has ids written as numbers with a fraction"),
    ("time", "yesterday", "is not a number"),
    ("time", "", "is empty"),
    ("time", "0", "is far from the other times"),
    ("time", "99999999999", "is far from the other times"),
    ("time", "-5", "is negative"),
    ("time", "99999999999999", "is after the year 9999 when read as s"),
    ("time", "1e300", "does not fit 64 bits"),
    ("time", "2023-11-14 22:13:20", "is a date, not s since 1970"),
    ("watched", "much", "is not a number"),
    ("watched", "nan", "is NaN"),
    ("watched", "-inf", "is infinite"),
    ("click", "2", "is a label but not 0 or 1"),
    ("click", "", "is empty, but is a label"),
    ("click", "Maybe", "is not a number"),
]


# The line an editor shows.


def test_the_line_of_a_refused_value(tmp_path: Path) -> None:
    message = refusal(write(tmp_path / "raw", damaged((20, "time", "yesterday"))))
    assert "raw/events.csv: column 'time' is not a number (first 'yesterday' at line 22); " in message


@pytest.mark.parametrize("rows_per_batch", [7, 500_000])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_lines_count_everything_that_an_editor_shows(
    tmp_path: Path, ending: str, rows_per_batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Empty lines, line breaks inside of quotes and in the header, fields that are all empty, across batches."""
    for module in (table_files, table_rows):
        monkeypatch.setattr(module, "ROWS_PER_BATCH", rows_per_batch)
    lines = [",".join(row) for row in rows()]
    lines[3] = lines[3].replace("note 3", f'"three{ending}lines{ending}, long"')
    lines.insert(2, "")
    lines.insert(9, ",,,,,")
    lines[30] = lines[30].replace(",0,", ",7,").replace(",1,", ",7,")
    text = ending.join(["", "", HEADER.replace("note", f'"no{ending}te"'), *lines, ""])
    folder = write(tmp_path / "raw", rows())
    (folder / "events.csv").write_bytes(text.encode())
    line = 1 + next(n for n, shown in enumerate(text.split(ending)) if ",7," in shown)
    assert line == 37
    assert f"(first '7' at line {line})" in refusal(folder)
    with gzip.open(folder / "events.csv.gz", "wb") as packed:
        packed.write(text.encode())
    (folder / "events.csv").unlink()
    assert f"events.csv.gz: column 'click' is a label but not 0 or 1 (first '7' at line {line})" in refusal(folder)


def test_the_row_of_a_refused_value_in_parquet(tmp_path: Path) -> None:
    folder = write(tmp_path / "raw", [])
    (folder / "events.csv").unlink()
    frame = pl.DataFrame(damaged((20, "time", "yesterday")), schema=FIELDS, orient="row")
    frame.write_parquet(folder / "events.parquet")
    assert "column 'time' is not a number (first 'yesterday' at row 21)" in refusal(folder)


@pytest.mark.parametrize(("files", "where"), [(1, "at line 4)"), (2, "at line 4 of ")])
def test_lines_of_the_tables_beside_the_events(tmp_path: Path, files: int, where: str) -> None:
    size = {"name": "size", "role": "item", "kind": "continuous"}
    names = [f"items{n}.csv" for n in range(files)]
    tables = {"items": names}
    folder = write(tmp_path / "raw", rows(), features=[*DESCRIPTION["features"], size], tables=tables)
    for name in names[:-1]:
        (folder / name).write_text("item_id,size\ni5,5\ni6,6\n")
    (folder / names[-1]).write_text('item_id,size\n\ni1,"1"\ni2,large\n')
    message = refusal(folder)
    assert "column 'size' is not a number (first 'large' " in message
    assert where in message
    assert "correct it or leave it empty" in message
    assert "on_bad_rows" not in message, "rows of items are never dropped"


# What to do does not lead into the next error.


@pytest.mark.parametrize(("column", "value", "problem"), BAD)
def test_the_advice_holds(tmp_path: Path, column: str, value: str, problem: str) -> None:
    """It never says to leave a time, a label or an id empty, nor to change the unit for the sake of one row."""
    message = refusal(write(tmp_path / "raw", damaged((20, column, value))))
    assert f"column '{column}' {problem} (first " in message
    assert " at line 22); " in message
    advice = message.split(" at line 22); ")[1]
    assert ("empty" in advice) == (column == "watched")
    assert "time_unit" not in advice
    assert advice.endswith(", or set on_bad_rows: drop")
    assert refusal_or_none(tmp_path, damaged((20, column, value)), on_bad_rows="drop") is None
    if column == "watched":
        assert refusal_or_none(tmp_path, damaged((20, column, ""))) is None


def refusal_or_none(folder: Path, lines: list[list[str]], **description: Any) -> str | None:
    try:
        prepared(folder, lines, **description)
    except DataError as refused:
        return str(refused)
    return None


def test_many_bad_values_are_a_wrong_description(tmp_path: Path) -> None:
    """Then the unit is named, and dropping is not offered: it would be refused."""
    in_ms = [(n, "time", f"{1000 * (START + 60 * n)}") for n in range(ROWS)]
    message = refusal(write(tmp_path / "raw", damaged(*in_ms)))
    assert "is after the year 9999 when read as s (in 60 rows, first " in message
    assert message.endswith("; set time_unit to s, ms, us, ns or iso")
    message = refusal(write(tmp_path / "raw", rows(), time_unit="iso"))
    assert message.endswith("; write 2026-01-31T12:00:00Z, or set time_unit")


# Setting rows aside.


def test_bad_rows_are_dropped_counted_and_kept(tmp_path: Path) -> None:
    lines = damaged((20, "time", "yesterday"), (5, "click", "x"), (6, "click", "x"), (7, "watched", "x"))
    dataset = prepared(tmp_path, lines, on_bad_rows="drop")
    assert dataset.manifest.counts["events"] == ROWS - 4
    assert dataset.manifest.dropped == {"events": 0}, "these are events of rare items and users"
    (bad,) = dataset.manifest.bad_rows
    assert bad.rows == 4
    assert counted(bad) == {
        ("time", "is not a number"): 1,
        ("click", "is not a number"): 2,
        ("watched", "is not a number"): 1,
    }
    source = str(tmp_path / "raw/events.csv")
    assert bad.first == f"{source} line 7: 'x'"
    assert bad.text.startswith("dropped 4 rows: 2 'click' is not a number, 1 'time' is not a number, 1 'watched' ")
    assert bad.text in dataset.manifest.notes
    aside = set_aside(dataset)
    assert [(row["line"], row["column"]) for row in aside] == [
        ("7", "click"),
        ("8", "click"),
        ("9", "watched"),
        ("22", "time"),
    ]
    assert {row["file"] for row in aside} == {source}
    assert [[row[field] for field in FIELDS] for row in aside] == [lines[n] for n in (5, 6, 7, 20)], "the whole row"


@pytest.mark.parametrize(("column", "value", "problem"), BAD)
def test_what_is_left_is_the_log_without_these_rows(tmp_path: Path, column: str, value: str, problem: str) -> None:
    """Bit for bit the columns of a log that never had them, whatever is wrong with them."""
    bad = (4, 20, 59)
    dataset = prepared(tmp_path, damaged(*((n, column, value) for n in bad)), on_bad_rows="drop")
    clean = prepare(
        read_table_log(write(tmp_path / "clean", [row for n, row in enumerate(rows()) if n not in bad])), tmp_path / "c"
    )
    assert counted(dataset.manifest.bad_rows[0]) == {(column, problem): 3}
    kept = {record.path: record.sha256 for record in dataset.manifest.files if "bad_rows" not in record.path}
    assert kept == {record.path: record.sha256 for record in clean.manifest.files}
    assert (dataset.manifest.first_time, dataset.manifest.last_time) == (
        clean.manifest.first_time,
        clean.manifest.last_time,
    )


def test_a_row_with_several_problems_is_dropped_once(tmp_path: Path) -> None:
    dataset = prepared(
        tmp_path, damaged((20, "time", "x"), (20, "click", "x"), (20, "user_id", "")), on_bad_rows="drop"
    )
    assert dataset.manifest.bad_rows[0].rows == 1
    assert len(set_aside(dataset)) == 1


def test_a_log_without_bad_rows_says_nothing_of_them(tmp_path: Path) -> None:
    dataset = prepared(tmp_path, rows(), on_bad_rows="drop")
    assert dataset.manifest.bad_rows == []
    assert not list(dataset.path.rglob("bad_rows*"))
    assert not [check for check in run_checks(dataset) if check.name == "bad rows"]


def test_describe_warns(tmp_path: Path) -> None:
    dataset = prepared(tmp_path, damaged((20, "time", "yesterday")), on_bad_rows="drop")
    (check,) = [check for check in run_checks(dataset) if check.name == "bad rows"]
    assert check.level is Level.WARN
    assert check.text.startswith("dropped 1 row: 1 'time' is not a number (first: ")
    assert check.text.endswith(f"they are in {dataset.path / 'segments/0000/bad_rows.0000.csv'}")


def test_where_the_rows_came_from_does_not_change_the_dataset(tmp_path: Path) -> None:
    """The fingerprint says what can be learned from a dataset; paths and lines of dropped rows are no part of it."""
    bad = damaged((20, "time", "yesterday"))
    prints = {
        prepare(read_table_log(write(tmp_path / name, bad, on_bad_rows="drop")), tmp_path / f"d{name}").fingerprint
        for name in ("a", "b")
    }
    assert len(prints) == 1


@pytest.mark.parametrize(("bad", "is_refused"), [(6, False), (7, True)])
def test_more_than_a_tenth_is_refused(tmp_path: Path, bad: int, is_refused: bool) -> None:
    assert MOST_BAD_FRACTION * ROWS == 6
    lines = damaged(*((n, "click", "x") for n in range(20, 20 + bad)))
    said = refusal_or_none(tmp_path, lines, on_bad_rows="drop")
    if not is_refused:
        assert said is None
        return
    assert said is not None
    assert "events.csv: 7 of 60 rows are bad: 7 'click' is not a number (first: " in said
    assert "line 22: 'x'); more than 10% are not dropped" in said
    assert not (tmp_path / "d").exists()


def test_nothing_but_bad_rows_is_noticed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong description of a large log is not read to its end."""
    monkeypatch.setattr(table_files, "ROWS_PER_BATCH", 10)
    said = refusal_or_none(tmp_path, damaged(*((n, "click", "x") for n in range(ROWS))), on_bad_rows="drop")
    assert said is not None
    read = int(said.split(" of ")[1].split(" rows")[0])
    assert read < ROWS


def test_a_whole_column_of_a_wrong_type_is_still_an_error(tmp_path: Path) -> None:
    folder = write(tmp_path / "raw", [], on_bad_rows="drop")
    (folder / "events.csv").unlink()
    pl.DataFrame(rows(), schema=FIELDS, orient="row").with_columns(
        pl.int_range(pl.len()).cast(pl.Float64).alias("user_id")
    ).write_parquet(folder / "events.parquet")
    assert "column 'user_id' holds Float64; store ids as integers or text" in refusal(folder)


def test_damaged_lines_are_still_an_error(tmp_path: Path) -> None:
    lines = rows()
    lines[20].append("one more")
    assert "line 22: 7 fields, but the header has 6" in refusal(write(tmp_path / "raw", lines, on_bad_rows="drop"))


@pytest.mark.parametrize("rows_per_batch", [7, 500_000])
def test_several_files_and_batches(tmp_path: Path, rows_per_batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row keeps its own file and line, and a file with other columns fits beside."""
    for module in (table_files, table_rows, raw_module):
        monkeypatch.setattr(module, "ROWS_PER_BATCH", rows_per_batch)
    folder = write(tmp_path / "raw", [], on_bad_rows="drop", tables={"events": ["a.csv", "b.csv", "c.csv"]})
    write_part(folder / "a.csv", damaged((0, "click", "x"), (29, "click", "x"), of=rows(0, 30)), FIELDS)
    write_part(folder / "b.csv", rows(30, 30), FIELDS)
    write_part(folder / "c.csv", damaged((8, "time", ""), of=rows(60, 30)), [*FIELDS[:-1], "remark"])
    dataset = prepare(read_table_log(folder), tmp_path / "d")
    assert dataset.manifest.counts["events"] == 87
    aside = [(Path(row["file"]).name, row["line"], row["note"], row["remark"]) for row in set_aside(dataset)]
    assert aside == [("a.csv", "2", "note 0", ""), ("a.csv", "31", "note 29", ""), ("c.csv", "10", "", "note 68")]


def write_part(path: Path, lines: list[list[str]], header: list[str]) -> None:
    path.write_text("\n".join(map(",".join, [header, *lines])) + "\n")


def test_own_columns_give_way_to_those_of_the_log(tmp_path: Path) -> None:
    folder = write(tmp_path / "raw", [], on_bad_rows="drop")
    write_part(folder / "events.csv", damaged((20, "click", "x")), [*FIELDS[:-1], "line"])
    dataset = prepare(read_table_log(folder), tmp_path / "d")
    (row,) = set_aside(dataset)
    assert (row["line_"], row["line"]) == ("22", "note 20")


# Mended rows are rows again.


@pytest.mark.parametrize(
    ("separator", "quote", "note"),
    [(",", '"', '"a, b"'), (";", '"', "a, b"), (";", "'", "'a; b'"), ("\t", None, 'a", b')],
)
def test_mended_rows_are_read_as_the_log_was(tmp_path: Path, separator: str, quote: str | None, note: str) -> None:
    """The file is written as the log is, so with the same description it gives the rows that were missing."""
    lines = damaged((20, "click", "x"), (21, "note", note), (21, "click", "x"))
    folder = write(
        tmp_path / "raw", [], on_bad_rows="drop", tables={"separator": separator, "quote": quote, "events": "log.csv"}
    )
    (folder / "log.csv").write_text("\n".join(separator.join(row) for row in [FIELDS, *lines]) + "\n")
    dataset = prepare(read_table_log(folder), tmp_path / "d")
    assert dataset.manifest.counts["events"] == ROWS - 2
    aside = dataset.path_of(dataset.manifest.bad_rows[0])
    mended = aside.read_text().replace(f"{separator}x{separator}", f"{separator}1{separator}")
    (folder / "mended.csv").write_text(mended)
    whole = yaml.safe_load((folder / "dataset.yaml").read_text())
    whole["tables"]["events"] = ["log.csv", "mended.csv"]
    (folder / "dataset.yaml").write_text(yaml.safe_dump(whole))
    again = prepare(read_table_log(folder), tmp_path / "e")
    assert again.manifest.counts["events"] == ROWS
    assert again.manifest.bad_rows[0].rows == 2, "the bad ones in the log itself"


def test_parquet_rows_are_set_aside_as_text(tmp_path: Path) -> None:
    """Lists are joined and times written in the unit in which texts are read."""
    tags = {"name": "tags", "role": "item", "kind": "multi_valued", "separator": ";"}
    folder = write(tmp_path / "raw", [], on_bad_rows="drop", features=[*DESCRIPTION["features"], tags])
    (folder / "events.csv").unlink()
    frame = pl.DataFrame(rows(), schema=FIELDS, orient="row").with_columns(
        pl.from_epoch(pl.col("time").cast(pl.Int64)).alias("time"),
        pl.when(pl.int_range(pl.len()) != 20).then(pl.col("click").cast(pl.Int8)).alias("click"),
        pl.concat_list(pl.lit("a"), pl.lit("b")).alias("tags"),
    )
    frame.write_parquet(folder / "events.parquet")
    dataset = prepare(read_table_log(folder), tmp_path / "d")
    (row,) = set_aside(dataset)
    assert (row["line"], row["column"], row["problem"]) == ("21", "click", "is empty, but is a label")
    assert (float(row["time"]), row["tags"], row["click"], row["user_id"]) == (START + 60 * 20, "a;b", "", "u0")


# Appending.


def more(dataset: StoredDataset, folder: Path, day: int, *changes: tuple[int, str, str]) -> StoredDataset:
    """Append a day of twenty rows."""
    path = folder / f"day{day}.csv"
    write_part(path, damaged(*changes, of=rows(ROWS + 20 * day, 20)), FIELDS)
    return append(
        dataset.path, read_given([path], None, None, dataset.schema, csv=dataset.manifest.origin["csv"], partial=True)
    )


def test_appended_bad_rows_are_kept_with_their_segment(tmp_path: Path) -> None:
    dataset = prepared(tmp_path, damaged((20, "time", "yesterday")), on_bad_rows="drop")
    dataset = more(dataset, tmp_path, 0)
    dataset = more(dataset, tmp_path, 1, (3, "click", "x"))
    assert [bad.rows for bad in dataset.manifest.bad_rows] == [1, 1]
    assert dataset.manifest.counts["events"] == ROWS - 1 + 20 + 19
    paths = [dataset.path_of(bad).relative_to(dataset.path).as_posix() for bad in dataset.manifest.bad_rows]
    assert paths == ["segments/0000/bad_rows.0000.csv", "segments/0002/bad_rows.0002.csv"]
    undo(dataset.path)
    restored = StoredDataset.open(dataset.path, check_hashes=True)
    assert [bad.rows for bad in restored.manifest.bad_rows] == [1]


def test_merging_keeps_bad_rows(tmp_path: Path) -> None:
    dataset = prepared(tmp_path, damaged((20, "time", "yesterday")), on_bad_rows="drop")
    first = dataset.path_of(dataset.manifest.bad_rows[0]).read_text()
    for day in range(9):
        dataset = more(dataset, tmp_path, day, *([(3, "click", "x")] if day in (2, 7, 8) else []))
    assert len(dataset.segments) < 9
    assert len(dataset.manifest.bad_rows) == 4
    assert dataset.path_of(dataset.manifest.bad_rows[0]).read_text() == first
    assert sum(len(dataset.path_of(bad).read_text().splitlines()) - 1 for bad in dataset.manifest.bad_rows) == 4
    StoredDataset.open(dataset.path, check_hashes=True)


def test_a_dataset_that_refuses_says_how_to_append_less(tmp_path: Path) -> None:
    """The description in the dataset counts, so editing dataset.yaml alone would not help."""
    dataset = prepared(tmp_path, rows())
    with pytest.raises(DataError, match=r"line 5\); .*, or prepare the dataset again with on_bad_rows: drop$"):
        more(dataset, tmp_path, 0, (3, "click", "x"))
    assert StoredDataset.open(dataset.path).fingerprint == dataset.fingerprint
