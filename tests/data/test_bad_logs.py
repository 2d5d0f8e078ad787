"""Bad raw logs: one line that names file, column and fix, exit code 3, nothing half-written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
import torch
import yaml

from limerank.data.prepare import prepare
from limerank.data.raw import RawLog
from limerank.data.sources.table import read_table_log, write_table_log
from limerank.errors import DataError


@pytest.fixture
def folder(raw_log: RawLog, tmp_path: Path) -> Path:
    write_table_log(raw_log, tmp_path / "raw")
    return tmp_path / "raw"


def edit(folder: Path, table: str, change: Callable[[pl.DataFrame], pl.DataFrame]) -> None:
    path = folder / f"{table}.parquet"
    change(pl.read_parquet(path)).write_parquet(path)


def refused(folder: Path) -> str:
    out = folder.parent / "out"
    with pytest.raises(DataError) as caught:
        prepare(read_table_log(folder), out)
    assert not list(folder.parent.glob("out*")), "nothing may be left behind"
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_missing_column_suggests_the_near_one(folder: Path) -> None:
    edit(folder, "events", lambda t: t.rename({"device": "devices"}))
    message = refused(folder)
    assert "events.parquet: column 'device' is missing; did you mean 'devices'?" in message


def test_label_that_is_not_binary(folder: Path) -> None:
    edit(folder, "events", lambda t: t.with_columns(pl.col("click") * 3))
    message = refused(folder)
    assert "events.parquet: label column 'click'" in message
    assert "not 0 or 1, first 3 at row" in message


@pytest.mark.parametrize("label", [0.5, None])
def test_label_that_is_fractional_or_empty(folder: Path, label: float | None) -> None:
    edit(
        folder,
        "events",
        lambda t: t.with_columns(
            pl.when(pl.int_range(pl.len()) == 4)
            .then(pl.lit(label, pl.Float64))
            .otherwise(pl.col("click"))
            .alias("click")
        ),
    )
    assert "not 0 or 1" in refused(folder)


def test_unknown_key_in_the_description_suggests_the_near_one(folder: Path) -> None:
    path = folder / "dataset.yaml"
    values = yaml.safe_load(path.read_text())
    values["features"][3]["bukets"] = 5
    path.write_text(yaml.safe_dump(values))
    message = refused(folder)
    assert "dataset.yaml: unknown key 'features.3.bukets'; did you mean 'buckets'?" in message


def test_description_that_is_not_yaml(folder: Path) -> None:
    (folder / "dataset.yaml").write_text("features: [unclosed")
    assert "dataset.yaml, line 1: not valid YAML" in refused(folder)


def test_truncated_parquet(folder: Path) -> None:
    path = folder / "items.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    assert "items.parquet: cannot be read as a table" in refused(folder)


def test_missing_events(folder: Path) -> None:
    (folder / "events.parquet").unlink()
    assert "no such file, nor events.parquet" in refused(folder)


def test_empty_log(folder: Path) -> None:
    edit(folder, "events", lambda t: t.head(0))
    assert "has no rows" in refused(folder)


def test_negative_time(folder: Path) -> None:
    edit(folder, "events", lambda t: t.with_columns(-pl.col("time")))
    assert "time column 'time' has negative values" in refused(folder)


def test_time_as_text(folder: Path) -> None:
    edit(folder, "events", lambda t: t.with_columns(pl.col("time").cast(pl.String)))
    assert "give integer epoch milliseconds" in refused(folder)


def test_duplicate_item(folder: Path) -> None:
    edit(folder, "items", lambda t: pl.concat([t, t.head(1)]))
    assert "items.parquet: id 'i0' of column 'item_id' stands in several rows" in refused(folder)


def test_ids_through_floats_are_refused(folder: Path) -> None:
    edit(folder, "events", lambda t: t.with_columns(pl.col("hour").cast(pl.Float64)))
    assert "store categories as integers or text" in refused(folder)


def test_all_at_one_moment_cannot_be_split_by_time(folder: Path) -> None:
    edit(folder, "events", lambda t: t.with_columns(time=pl.lit(5)))
    assert "too few different request times" in refused(folder)


def test_csv_with_lists_reads_like_parquet(folder: Path, tmp_path: Path) -> None:
    expected = prepare(read_table_log(folder), tmp_path / "a")
    for name in ("events", "items", "users"):
        table = pl.read_parquet(folder / f"{name}.parquet")
        if name == "items":
            table = table.with_columns(pl.col("tags").list.join("|"))
        table.write_csv(folder / f"{name}.csv")
        (folder / f"{name}.parquet").unlink()
    from_csv = prepare(read_table_log(folder), tmp_path / "b")
    assert torch.equal(from_csv.item_table.indices, expected.item_table.indices)
    assert torch.equal(from_csv.item_table.lists[0].values, expected.item_table.lists[0].values)
    assert from_csv.column("events/item").tolist() == expected.column("events/item").tolist()
