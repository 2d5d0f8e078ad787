"""Bad raw logs: one line that names file, column and fix, exit code 3, nothing half-written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
import yaml

from limerank.data.build.prepare import prepare
from limerank.data.raw.log import RawLog
from limerank.data.sources.table.read import read_table_log, write_table_log
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
    assert "events.parquet: column 'click' is a label but not 0 or 1" in message
    assert "first 3 at row" in message
    assert "positive_from" in message


@pytest.mark.parametrize(("label", "said"), [(0.5, "is a label but not 0 or 1"), (None, "is empty, but is a label")])
def test_label_that_is_fractional_or_empty(folder: Path, label: float | None, said: str) -> None:
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
    assert f"column 'click' {said}" in refused(folder)


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
    assert "column 'time' is negative" in refused(folder)


def test_time_as_words(folder: Path) -> None:
    edit(folder, "events", lambda t: t.with_columns(time=pl.lit("yesterday")))
    assert "column 'time' is not a number (in 1,831 rows, first 'yesterday' at row 1)" in refused(folder)
    rewrite_description(folder, lambda values: values.update(time_unit="iso"))
    assert "column 'time' is not an ISO 8601 time" in refused(folder)


def test_times_of_two_units(folder: Path) -> None:
    """Half of the rows in seconds: every one of them is a possible time, together they are not."""
    halved = pl.when(pl.int_range(pl.len()) % 2 == 0).then(pl.col("time") // 1000).otherwise(pl.col("time"))
    edit(folder, "events", lambda t: t.with_columns(time=halved))
    message = refused(folder)
    assert "time column 'time' goes from 1970-01-21 to 2025-01-" in message
    assert "two units seem to be mixed" in message


def test_an_event_without_time(folder: Path) -> None:
    edit(folder, "events", lambda t: t.with_columns(time=pl.when(pl.int_range(pl.len()) != 7).then("time")))
    assert "column 'time' is empty (first at row 8)" in refused(folder)


@pytest.mark.parametrize(("value", "said"), [(float("nan"), "is NaN"), (float("inf"), "is infinite")])
def test_nan_and_infinite_numbers(folder: Path, value: float, said: str) -> None:
    broken = pl.when(pl.int_range(pl.len()) == 4).then(value).otherwise(pl.col("watched_fraction"))
    edit(folder, "events", lambda t: t.with_columns(watched_fraction=broken))
    message = refused(folder)
    assert f"events.parquet: column 'watched_fraction' {said} (first {value!r} at row 5)" in message
    edit(folder, "items", lambda t: t.with_columns(duration_s=pl.lit(value)))
    edit(folder, "events", lambda t: t.with_columns(watched_fraction=pl.lit(0.5)))
    assert f"items.parquet: column 'duration_s' {said}" in refused(folder)


def test_words_in_a_number(folder: Path) -> None:
    edit(folder, "items", lambda t: t.with_columns(duration_s=pl.lit("long")))
    assert "items.parquet: column 'duration_s' is not a number" in refused(folder)


def test_ids_beyond_32_bits_are_ids_like_others(folder: Path, tmp_path: Path) -> None:
    """2^31, 2^53 + 1 and 2^63: nothing goes through a float or a 32-bit integer."""
    huge = [2**31, 2**53, 2**53 + 1, 2**63]
    big = pl.Series("user_id", huge, dtype=pl.UInt64)
    edit(
        folder,
        "events",
        lambda t: t.with_columns(user_id=big.gather(pl.select(pl.int_range(t.height) % 4).to_series())),
    )
    edit(folder, "users", lambda t: t.head(4).with_columns(big))
    log = prepare(read_table_log(folder), tmp_path / "d")
    assert log.user_ids.to_list() == ["", *sorted(map(str, huge))]


def test_ids_written_as_floats_in_text(folder: Path) -> None:
    edit(folder, "events", lambda t: t.with_columns(user_id=pl.lit("17.0")))
    assert "column 'user_id' has ids written as numbers with a fraction" in refused(folder)


def test_empty_ids(folder: Path) -> None:
    edit(folder, "events", lambda t: t.with_columns(item_id=pl.when(pl.int_range(pl.len()) != 2).then("item_id")))
    assert "column 'item_id' is empty (first at row 3); drop or fill those rows" in refused(folder)


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


def rewrite_description(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "dataset.yaml"
    values = yaml.safe_load(path.read_text())
    change(values)
    path.write_text(yaml.safe_dump(values))


def test_the_label_as_context_is_refused(folder: Path) -> None:
    rewrite_description(folder, lambda v: v["features"].append({"name": "c", "role": "context", "column": "click"}))
    assert "feature 'c' would tell the label to the ranker" in refused(folder)


def test_the_true_probability_as_feature_is_refused(folder: Path) -> None:
    feature = {"name": "p", "role": "event", "kind": "continuous", "column": "click_probability"}
    rewrite_description(folder, lambda v: v["features"].append(feature))
    assert "feature 'p' is a true probability" in refused(folder)


def test_context_that_differs_within_a_request_is_refused(folder: Path) -> None:
    edit(folder, "events", lambda t: t.with_columns(hour=pl.int_range(pl.len()) % 24))
    assert "context column 'hour' differs within a request" in refused(folder)


def test_float_ids_are_refused(folder: Path) -> None:
    edit(folder, "items", lambda t: t.with_columns(item_id=pl.int_range(pl.len()).cast(pl.Float64)))
    assert "column 'item_id' holds Float64; store ids as integers or text" in refused(folder)


def test_times_in_nanoseconds_are_refused(folder: Path) -> None:
    edit(folder, "events", lambda t: t.with_columns(pl.col("time").cast(pl.UInt64) * 1_000_000))
    assert "is after the year 9999 when read as ms" in refused(folder)


def test_true_probabilities_must_be_probabilities(folder: Path) -> None:
    edit(folder, "events", lambda t: t.with_columns(click_probability=pl.lit(1.5)))
    assert "column 'click_probability' is not a probability" in refused(folder)


def test_columns_with_awkward_names_are_fine(folder: Path, tmp_path: Path) -> None:
    edit(folder, "events", lambda t: t.rename({"device": "row", "hour": "count"}).with_columns(value=pl.lit(1)))

    def rename(values: dict[str, Any]) -> None:
        for feature in values["features"]:
            feature["column"] = {"device": "row", "hour": "count"}.get(feature["name"], feature.get("column", ""))

    rewrite_description(folder, rename)
    assert prepare(read_table_log(folder), tmp_path / "d").manifest.counts["items"] == 200


def test_csv_ids_keep_their_zeros_and_late_letters(tmp_path: Path) -> None:
    """'007' in the events is '007' in the items, even when letters only appear after hundreds of rows."""
    raw = tmp_path / "raw"
    raw.mkdir()
    ids = [f"{n:03}" for n in range(300)] + ["A00"]
    (raw / "items.csv").write_text("item_id,kind\n" + "".join(f"{item},{n % 3}\n" for n, item in enumerate(ids)))
    events = "".join(f"u{n % 4},{ids[n % 7]},{n},{n % 2}\n" for n in range(60))
    (raw / "events.csv").write_text("user_id,item_id,time,click\n" + events)
    (raw / "dataset.yaml").write_text("features: [{name: kind, role: item}]\ntasks: [{name: click}]\n")
    log = prepare(read_table_log(raw), tmp_path / "d")
    assert log.manifest.counts["items"] == 301
    seen = log.item_table.indices[torch.from_numpy(log.column("events/item").astype("int64")), 0]
    assert (seen > 1).all()
