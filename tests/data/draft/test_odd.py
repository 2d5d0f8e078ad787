"""A few bad values in a log: `limerank init` sees what the columns are all the same, and names them by their lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml

from limerank.data.build.prepare import prepare
from limerank.data.draft.decisions import Draft
from limerank.data.draft.infer import infer
from limerank.data.draft.yaml_text import render
from limerank.data.sources.table.read import read_table_log
from limerank.errors import DataError

USERS, ITEMS, REQUESTS, SLOTS = 12, 40, 120, 4
ROWS = REQUESTS * SLOTS
START = 1_700_000_000
ROW = 200
LINE = ROW + 2
SHARED = Path(__file__).parents[4] / "shared" / "data"


def clean_log(**columns: Any) -> pl.DataFrame:
    """Requests of four items, all values as text, as they stand in a CSV file."""
    generator = np.random.default_rng(5)
    request = np.repeat(np.arange(REQUESTS), SLOTS)
    item = generator.permuted(np.tile(np.arange(ITEMS), (REQUESTS, 1)), axis=1)[:, :SLOTS].ravel()
    frame = pl.DataFrame(
        {
            "user_id": request * 7 % USERS,
            "item_id": item,
            "timestamp": START + request * 3600,
            "device": request // USERS % 3,
            "watch_ratio": np.round(generator.random(len(request)), 3),
            "click": generator.integers(0, 2, len(request)),
            **columns,
        }
    )
    return frame.cast(pl.String)


def with_value(frame: pl.DataFrame, column: str, value: str | None, rows: tuple[int, ...] = (ROW,)) -> pl.DataFrame:
    number = pl.int_range(pl.len())
    return frame.with_columns(pl.when(number.is_in(rows)).then(pl.lit(value)).otherwise(column).alias(column))


def looked_at(frame: pl.DataFrame, folder: Path) -> tuple[Draft, str]:
    frame.write_csv(folder / "log.csv")
    draft = infer(str(folder / "log.csv"))
    return draft, render(draft, folder)


def without_comments(text: str) -> Any:
    return yaml.safe_load(text)


def prepares(text: str, folder: Path) -> int:
    """How many events are left when the drafted remedy is taken."""
    (folder / "dataset.yaml").write_text(text.replace("# on_bad_rows", "on_bad_rows"))
    return prepare(read_table_log(folder / "dataset.yaml"), folder / "d").manifest.counts["events"]


TIMES = pl.from_epoch(pl.Series("timestamp", START + np.repeat(np.arange(REQUESTS), SLOTS) * 3600))
ISO = TIMES.dt.strftime("%Y-%m-%dT%H:%M:%SZ")

RATINGS = np.random.default_rng(8).integers(1, 6, ROWS)

BAD = [
    ({}, "timestamp", "yesterday", "looks like seconds, except line 202: 'yesterday'"),
    ({}, "timestamp", None, "looks like seconds, except line 202, where it is empty"),
    ({}, "timestamp", "0", "looks like seconds, except line 202: '0'"),
    ({}, "timestamp", "99999999999999", "looks like seconds, except line 202: '99999999999999'"),
    ({}, "timestamp", "2023-11-14 22:13:20", "looks like seconds, except line 202: '2023-11-14 22:13:20'"),
    ({"timestamp": ISO}, "timestamp", "yesterday", "looks like ISO times, except line 202: 'yesterday'"),
    ({"timestamp": ISO}, "timestamp", "0001-01-01T00:00:00", "looks like ISO times, except line 202: '0001-01-01T"),
    ({}, "click", "maybe", "looks like 0/1, except line 202: 'maybe'"),
    ({}, "click", "7", "looks like 0/1, except line 202: '7'"),
    ({}, "click", None, "looks like 0/1, except line 202, where it is empty"),
    ({}, "watch_ratio", "much", "looks like numbers, except line 202: 'much'"),
    ({}, "user_id", "7.0", "looks like ids, except line 202: '7.0'"),
    ({}, "item_id", None, "looks like ids, except line 202, where it is empty"),
    ({"rating": RATINGS, "click": "x"}, "rating", "good", "looks like numbers, except line 202: 'good'"),
]


@pytest.mark.parametrize(("columns", "column", "value", "said"), BAD)
def test_one_bad_value_is_named_and_changes_nothing(
    tmp_path: Path, columns: dict[str, Any], column: str, value: str | None, said: str
) -> None:
    clean = clean_log(**columns)
    (tmp_path / "clean").mkdir()
    expected_draft, expected = looked_at(clean, tmp_path / "clean")
    assert expected_draft.todo == ()
    assert not expected_draft.oddities
    assert "on_bad_rows" not in expected
    draft, text = looked_at(with_value(clean, column, value), tmp_path)
    assert without_comments(text) == without_comments(expected)
    (oddity,) = draft.oddities
    assert (oddity.column, oddity.count, oddity.first) == (column, 1, f"line {LINE}")
    assert oddity.text.startswith(said)
    (line,) = [line for line in text.splitlines() if said in line]
    assert "CHECK: looks like" in line
    (remedy,) = [line for line in text.splitlines() if line.startswith("# on_bad_rows: drop ")]
    assert f"found 1 in all {ROWS} rows" in remedy
    assert prepares(text, tmp_path) == ROWS - 1


def test_the_split_is_that_of_the_clean_log(tmp_path: Path) -> None:
    """Users one after the other: without the times nobody would see that a split by time is poor."""
    log = (
        clean_log()
        .sort(pl.col("user_id").cast(pl.Int64))
        .with_columns(timestamp=(START + pl.int_range(pl.len()) * 60).cast(pl.String))
    )
    _, text = looked_at(with_value(log, "timestamp", "yesterday"), tmp_path)
    assert without_comments(text)["split"] == {"protocol": "last_fraction"}


def test_several_bad_values_are_counted(tmp_path: Path) -> None:
    log = with_value(clean_log(), "timestamp", "soon", (ROW, 300))
    log = with_value(with_value(log, "timestamp", None, (250,)), "click", "x", (300, 301))
    draft, text = looked_at(log, tmp_path)
    assert [(odd.column, odd.count) for odd in draft.oddities] == [("timestamp", 3), ("click", 2)]
    assert draft.bad_rows == 4
    assert "looks like seconds, except 3 rows, first line 202: 'soon'" in text
    assert prepares(text, tmp_path) == ROWS - 4


def test_lines_and_files_are_those_of_an_editor(tmp_path: Path) -> None:
    """Empty lines and line breaks in quotes count; of several files the one is named."""
    log = with_value(clean_log(note=["a\nb", *["c"] * (ROWS - 1)]), "timestamp", "yesterday")
    folder = tmp_path / "log"
    folder.mkdir()
    log.head(100).write_csv(folder / "a.csv")
    text = log.slice(100).write_csv().splitlines(keepends=True)
    (folder / "b.csv").write_text("".join([*text[:5], "\n", "\n", *text[5:]]))
    draft = infer(str(folder))
    assert draft.oddities[0].first == f"{folder / 'b.csv'} line {ROW - 100 + 2 + 2}"
    (folder / "b.csv").unlink()
    with_value(log, "timestamp", "noon", (50,)).head(100).write_csv(folder / "a.csv")
    assert infer(str(folder)).oddities[0].first == "line 53"


def test_rows_of_parquet_and_times_that_are_stored_as_such(tmp_path: Path) -> None:
    log = clean_log().with_columns(
        pl.when(pl.int_range(pl.len()) != ROW).then(TIMES).alias("timestamp"), pl.col("click").cast(pl.Int8)
    )
    log.write_parquet(tmp_path / "log.parquet")
    draft = infer(str(tmp_path / "log.parquet"))
    (oddity,) = draft.oddities
    assert oddity.text == f"looks like times, except row {ROW + 1}, where it is empty"
    assert prepares(render(draft, tmp_path), tmp_path) == ROWS - 1


def test_many_bad_values_are_no_exception(tmp_path: Path) -> None:
    """A column that is half texts is not a time; one that is empty in a third of the rows cannot be dropped away."""
    draft, _ = looked_at(with_value(clean_log(), "timestamp", "soon", tuple(range(0, ROWS, 2))), tmp_path)
    assert draft.todo == ("time",)
    draft, text = looked_at(with_value(clean_log(), "timestamp", None, tuple(range(0, ROWS, 3))), tmp_path)
    assert draft.bad_rows == 0
    assert "on_bad_rows" not in text
    assert f"CHECK: is empty in {ROWS // 3} rows, which prepare refuses (first line 2, where it is empty)" in text


def test_a_strange_name_among_numbers_is_just_a_name(tmp_path: Path) -> None:
    """Ids and categories are texts: nothing is wrong with a user called guest or a device called tv."""
    log = with_value(with_value(clean_log(), "user_id", "guest"), "device", "tv", tuple(range(ROW, ROW + SLOTS)))
    draft, text = looked_at(log, tmp_path)
    assert not draft.oddities
    assert draft.user.column is not None
    assert draft.user.column.distinct == USERS + 1
    roles = {feature["name"]: feature["role"] for feature in without_comments(text)["features"]}
    assert roles["device"] == "context"


def test_one_id_written_as_a_fraction_does_not_part_the_log_from_its_items(tmp_path: Path) -> None:
    items = pl.DataFrame({"item_id": range(ITEMS), "color": [f"c{n % 5}" for n in range(ITEMS)]})
    items.write_csv(tmp_path / "items.csv")
    with_value(clean_log(), "item_id", "7.0").write_csv(tmp_path / "log.csv")
    draft = infer(str(tmp_path / "log.csv"), items=str(tmp_path / "items.csv"))
    assert draft.unfit == {}


def test_words_for_missing_beside_a_bad_value(tmp_path: Path) -> None:
    log = with_value(with_value(clean_log(), "watch_ratio", "NA", tuple(range(0, 90))), "watch_ratio", "much")
    draft, text = looked_at(log, tmp_path)
    assert without_comments(text)["tables"]["null_values"] == ["NA"]
    (oddity,) = draft.oddities
    assert (oddity.count, oddity.value) == (1, "much")
    assert prepares(text, tmp_path) == ROWS - 1


def test_a_bad_value_of_an_item_is_named_too(tmp_path: Path) -> None:
    """No item can be left out, so the draft says what to correct, and can be prepared as it stands."""
    prices = [f"{n * 1.37:.2f}" for n in range(ITEMS)]
    prices[3] = "cheap"
    pl.DataFrame({"item_id": range(ITEMS), "price": prices}).write_csv(tmp_path / "items.csv")
    clean_log().write_csv(tmp_path / "log.csv")
    draft = infer(str(tmp_path / "log.csv"), items=str(tmp_path / "items.csv"))
    text = render(draft, tmp_path)
    assert "CHECK: looks like numbers, except line 5: 'cheap'" in text


needs_movielens = pytest.mark.skipif(not (SHARED / "ml-100k").is_dir(), reason="the shared MovieLens log is not here")


@needs_movielens
def test_one_bad_time_in_a_hundred_thousand(tmp_path: Path) -> None:
    folder = SHARED / "ml-100k"
    log = pl.read_csv(folder / "ratings.csv.gz", infer_schema=False)
    with_value(log, "timestamp", "yesterday", (520,)).write_csv(tmp_path / "log.csv")
    tables = {name: str(folder / f"{name}.csv.gz") for name in ("items", "users")}
    draft = infer(str(tmp_path / "log.csv"), **tables)
    text = render(draft, tmp_path)
    assert "time: timestamp " in text
    assert "CHECK: looks like seconds, except line 522: 'yesterday'" in text
    described = without_comments(text)
    assert (described["time_unit"], described["split"]) == ("s", {"protocol": "last_fraction"})
    assert described["display"] == "movie_title"
    (tmp_path / "dataset.yaml").write_text(text)
    with pytest.raises(DataError, match=r"column 'timestamp' is not a number \(first 'yesterday' at line 522\)"):
        prepare(read_table_log(tmp_path / "dataset.yaml"), tmp_path / "d")
    assert prepares(text, tmp_path) == 99_999


# What people call an item.


TITLES = [f"The {n}th story" for n in range(ITEMS)]


def titled(log: pl.DataFrame, titles: list[str], name: str = "title") -> pl.DataFrame:
    return log.with_columns(pl.Series(name, [titles[int(item)] for item in log["item_id"]]))


@pytest.mark.parametrize("name", ["title", "movie_title", "headline", "productName"])
def test_a_title_in_the_events_is_the_display(tmp_path: Path, name: str) -> None:
    draft, text = looked_at(titled(clean_log(), TITLES, name), tmp_path)
    assert without_comments(text)["display"] == name
    assert name not in [feature["name"] for feature in without_comments(text)["features"]]
    assert f"# - {{name: {name}, role: item}}" in text
    assert "left out: what people call an item, so it is the display" in text
    (tmp_path / "dataset.yaml").write_text(text)
    dataset = prepare(read_table_log(tmp_path / "dataset.yaml"), tmp_path / "d")
    displays = dataset.item_displays
    assert displays is not None
    assert set(displays.to_list()[1:]) == set(TITLES)
    assert draft.display is not None


def test_a_title_in_the_items_table_is_the_display(tmp_path: Path) -> None:
    clean_log().write_csv(tmp_path / "log.csv")
    pl.DataFrame(
        {
            "item_id": range(ITEMS),
            "brand_name": [f"brand {n % 30}" for n in range(ITEMS)],
            "blurb": [f"all about {n}" for n in range(ITEMS)],
            "name": TITLES,
        }
    ).write_csv(tmp_path / "items.csv")
    draft = infer(str(tmp_path / "log.csv"), items=str(tmp_path / "items.csv"))
    text = render(draft, tmp_path)
    assert without_comments(text)["display"] == "name"
    assert "# - {name: blurb, role: item}" in text, "every item has its own, and nothing says that it is a name"
    assert {f["name"]: f["role"] for f in without_comments(text)["features"]}["brand_name"] == "item"


def test_what_only_sounds_like_a_title_is_none(tmp_path: Path) -> None:
    """The name of a user, of a brand, or a title that changes is not what people call an item."""
    log = clean_log(user_name=[f"name {n * 7 % USERS}" for n in np.repeat(np.arange(REQUESTS), SLOTS)])
    log = titled(log, [f"brand {n % 9}" for n in range(ITEMS)], "brand_name")
    log = log.with_columns(title="seen " + pl.int_range(pl.len()).cast(pl.String))
    draft, text = looked_at(log, tmp_path)
    assert draft.display is None
    assert "display" not in without_comments(text)
    assert "# - {name: title, role: event}" in text
    assert {f["name"]: f["role"] for f in without_comments(text)["features"]}["user_name"] == "user"
