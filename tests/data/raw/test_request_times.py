"""The first time of requests whose rows come block by block."""

from __future__ import annotations

from contextlib import suppress

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from limerank.data.raw.location import Location
from limerank.data.raw.request_times import RequestTimes
from limerank.errors import DataError

ROW = st.tuples(st.sampled_from("uv"), st.sampled_from(["r", "s", "t", None]), st.integers(0, 9))


def frame_of(rows: list[tuple[str, str | None, int]]) -> pl.DataFrame:
    schema = {"user": pl.String, "request": pl.String, "time": pl.Int64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def first(times: RequestTimes, block: pl.DataFrame) -> pl.Series:
    return times.first(block["user"], block["request"], block["time"], Location("rows"))


def whole(frame: pl.DataFrame) -> list[int]:
    """The definition: the least time of all rows with the same user and request; a row without a request is alone."""
    least = pl.col("time").min().over("user", "request")
    return frame.select(pl.when(pl.col("request").is_null()).then("time").otherwise(least)).to_series().to_list()


@given(st.lists(ROW, max_size=30), st.integers(1, 7))
def test_blocks_of_rows_in_order_of_time_say_what_the_whole_says(
    rows: list[tuple[str, str | None, int]], size: int
) -> None:
    frame = frame_of(sorted(rows, key=lambda row: row[2]))
    times = RequestTimes()
    found = [time for block in frame.iter_slices(size) for time in first(times, block)]
    assert found == whole(frame)


@given(st.lists(ROW, max_size=30), st.integers(1, 7))
def test_any_order_says_what_the_whole_says_or_is_refused(rows: list[tuple[str, str | None, int]], size: int) -> None:
    """Never a third: a time that silently differs from the one the whole would give."""
    frame = frame_of(rows)
    times, found = RequestTimes(), []
    with suppress(DataError):
        for block in frame.iter_slices(size):
            found += first(times, block).to_list()
    wanted = whole(frame)
    assert found == wanted or (len(found) < len(wanted) and found != wanted[: len(found)])


def test_the_refusal_names_the_row() -> None:
    times = RequestTimes()
    first(times, frame_of([("u", "r", 5), ("u", "s", 5)]))
    with pytest.raises(
        DataError, match=r"rows: column 'time' is before .* \(first 4 at row 2\); sort the rows by time"
    ):
        first(times, frame_of([("u", "s", 5), ("u", "r", 4)]))
