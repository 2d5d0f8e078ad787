"""`limerank predict`: from files to a file, block by block, with the scores of evaluation."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from calling import answer, limerank, refusal

import limerank as lr
from limerank.api.prediction import RowScorer
from limerank.data.raw.log import RawLog
from limerank.data.sources.given import open_tables
from limerank.data.sources.table.write import write_blocks
from limerank.errors import DataError
from limerank.evaluation.evaluate import evaluation_loader, predict
from limerank.progress import Progress

RESULTS = ["predicted_click", "predicted_long_view"]
LABELS = ["click", "long_view", "watched_fraction", "click_probability", "long_view_probability"]


@pytest.fixture(scope="module")
def rows(raw_log: RawLog) -> pl.DataFrame:
    """The last rows of the log, without labels; requests in order of time."""
    return raw_log.collect_events().sort("time", maintain_order=True).tail(300).drop(LABELS)


def in_blocks(run: lr.Run, path: Path, size: int) -> pl.DataFrame:
    """A file scored so many rows at a time."""
    scorer = RowScorer(run, run.dataset())
    with Progress(quiet=True).bar("", 0) as bar:
        return pl.concat(list(scorer.score_files(open_tables([path], "--rows")[0], bar, size)))


def assert_same_scores(one: pl.DataFrame, other: pl.DataFrame) -> None:
    """Sums may be added in another order where batches differ."""
    for name in RESULTS:
        np.testing.assert_allclose(one[name].cast(pl.Float64), other[name].cast(pl.Float64), rtol=0, atol=1e-6)


@pytest.mark.parametrize("ranker", ["lime-mha", "hstu"])
def test_blocks_score_what_the_whole_frame_scores(
    ranker: str, rows: pl.DataFrame, runs: dict[str, lr.Run], tmp_path: Path
) -> None:
    """Seven rows at a time split nearly every request; order and columns stay."""
    rows.write_csv(tmp_path / "rows.csv")
    whole = runs[ranker].predict(rows, quiet=True)
    scored = in_blocks(runs[ranker], tmp_path / "rows.csv", 7)
    assert scored.drop(RESULTS).equals(rows.cast(pl.String))
    assert scored.columns == whole.columns
    assert_same_scores(scored, whole)


def test_requests_that_are_split_are_still_filed_under_their_first_time(
    rows: pl.DataFrame, runs: dict[str, lr.Run], tmp_path: Path
) -> None:
    """Rows of a request a day apart, in different blocks: without the first time the later ones would know more."""
    day = 24 * 3600 * 1000
    late = rows.with_columns(pl.col("time") + day * (pl.int_range(pl.len()) % 2)).sort("time", maintain_order=True)
    late.write_csv(tmp_path / "late.csv")
    whole = runs["lime-mha"].predict(late, quiet=True)
    assert_same_scores(in_blocks(runs["lime-mha"], tmp_path / "late.csv", 50), whole)
    alone = runs["lime-mha"].predict(late.drop("request_id"), quiet=True)
    assert not np.allclose(alone["predicted_click"], whole["predicted_click"], atol=1e-4)
    late.reverse().write_csv(tmp_path / "reversed.csv")
    with pytest.raises(
        DataError, match=r"reversed\.csv: column 'time' is before .* at line \d+\); sort the rows by time"
    ):
        in_blocks(runs["lime-mha"], tmp_path / "reversed.csv", 50)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [("csv", "csv"), ("csv.gz", "parquet"), ("csv.zst", "tsv"), ("parquet", "csv.zst"), ("tsv", "csv.gz")],
)
def test_every_format_goes_in_and_out(
    given: str, wanted: str, rows: pl.DataFrame, runs: dict[str, lr.Run], tmp_path: Path
) -> None:
    source, target = tmp_path / f"rows.{given}", tmp_path / f"scored.{wanted}"
    write_blocks([rows.head(100), rows.tail(200)], source)
    facts = answer("predict", runs["lime-mha"].path, "--rows", source, "--out", target)
    assert (facts["rows"], facts["columns"], facts["unknown"]) == (300, RESULTS, {"items": 0, "users": 0})
    separator = "\t" if wanted == "tsv" else ","
    found = pl.read_parquet(target) if wanted == "parquet" else pl.read_csv(target, separator=separator)
    assert found.drop(RESULTS).cast(pl.String).equals(rows.cast(pl.String))
    assert_same_scores(found, runs["lime-mha"].predict(rows, quiet=True))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([source.name, target.name])


def test_scores_are_those_of_evaluation(raw_log: RawLog, runs: dict[str, lr.Run], tmp_path: Path) -> None:
    """Rows of the test part, with their labels beside them, which pass through and change nothing."""
    run = runs["lime-mha"]
    data = run.dataset()
    ranker = run.ranker(data)
    loader = evaluation_loader(data, lr.Part.TEST, run.config.train.max_history, ranker.needs_times)
    predictions = predict(ranker, loader)
    expected = pl.DataFrame(
        {
            "user_id": data.user_ids.gather(predictions.user),
            "item_id": data.item_ids.gather(data.column("events/item")[predictions.rows]),
            "time": data.column("events/time")[predictions.rows],
            "wanted": predictions.probability[:, 1],
        }
    )
    keys = ["user_id", "item_id", "time"]
    raw_log.collect_events().join(expected, on=keys, how="semi").write_parquet(tmp_path / "rows.parquet")
    answer("predict", run.path, "--rows", tmp_path / "rows.parquet", "--out", tmp_path / "scored.parquet")
    both = pl.read_parquet(tmp_path / "scored.parquet").join(expected, on=keys)
    assert both.height == expected.height
    assert {"click", "long_view"} <= set(both.columns)
    np.testing.assert_allclose(both["predicted_long_view"], both["wanted"], atol=1e-6)


def test_several_files_are_one_table(rows: pl.DataFrame, runs: dict[str, lr.Run], tmp_path: Path) -> None:
    """Columns may stand in another order; other columns or types are refused with the file or the column."""
    path = runs["lime-mha"].path
    rows.head(100).write_parquet(tmp_path / "a.parquet")
    rows.tail(200).select(sorted(rows.columns)).write_parquet(tmp_path / "b.parquet")
    both = ("--rows", tmp_path / "a.parquet", "--rows", tmp_path / "b.parquet")
    scored = limerank("predict", path, *both, "--out", tmp_path / "out" / "c.parquet")
    assert scored.stdout.startswith(f"wrote {tmp_path / 'out' / 'c.parquet'}: 300 rows with predicted_click, ")
    found = pl.read_parquet(tmp_path / "out" / "c.parquet")
    assert found.drop(RESULTS).equals(rows)
    rows.drop("hour").write_parquet(tmp_path / "b.parquet")
    assert "b.parquet: no column 'hour', which" in refusal(3, "predict", path, *both, "--out", tmp_path / "d.parquet")
    rows.with_columns(pl.col("hour").cast(pl.String)).write_parquet(tmp_path / "b.parquet")
    said = refusal(3, "predict", path, *both, "--out", tmp_path / "d.parquet")
    assert "column 'hour' is Int64 in some files and String in others" in said
    assert not (tmp_path / "d.parquet").exists()


def test_strangers_are_counted_over_all_blocks_and_said_once(
    rows: pl.DataFrame, runs: dict[str, lr.Run], raw_log: RawLog, tmp_path: Path
) -> None:
    """New items, described by a table or not, score alike in blocks and at once; a few strangers in every block."""
    every_third = pl.int_range(pl.len()) % 3 == 0
    asked = rows.with_columns(item_id=pl.when(every_third).then(pl.lit("fresh")).otherwise("item_id"))
    asked.write_csv(tmp_path / "rows.csv")
    done = limerank("predict", runs["ttsn"].path, "--rows", tmp_path / "rows.csv", "--out", tmp_path / "a.csv")
    assert done.stderr.count("note: ") == 1
    assert "of 300 rows 100 are of items that the dataset does not know" in done.stderr
    assert_same_scores(in_blocks(runs["ttsn"], tmp_path / "rows.csv", 40), runs["ttsn"].predict(asked, quiet=True))
    assert raw_log.items is not None
    raw_log.items.head(2).with_columns(item_id=pl.Series(["fresh", "other"])).write_parquet(tmp_path / "items.parquet")
    described = ("--items", tmp_path / "items.parquet", "--out", tmp_path / "b.csv")
    answer("predict", runs["ttsn"].path, "--rows", tmp_path / "rows.csv", *described)
    found, without = pl.read_csv(tmp_path / "b.csv"), pl.read_csv(tmp_path / "a.csv")
    wanted = runs["ttsn"].predict(asked, items=tmp_path / "items.parquet", quiet=True)
    assert_same_scores(found, wanted)
    differs = (found["predicted_click"] - without["predicted_click"]).abs() > 1e-6
    assert differs.sum() == 100


def test_mistakes_are_one_line_and_leave_nothing(rows: pl.DataFrame, runs: dict[str, lr.Run], tmp_path: Path) -> None:
    run, out = runs["ttsn"].path, tmp_path / "out.csv"

    def said(code: int, table: pl.DataFrame, target: Path = out) -> str:
        table.write_csv(tmp_path / "rows.csv")
        return refusal(code, "predict", run, "--rows", tmp_path / "rows.csv", "--out", target)

    source = tmp_path / "rows.csv"
    assert f"{source}: column 'device' is missing; did you mean 'devcie'?" in said(3, rows.rename({"device": "devcie"}))
    bad = rows.cast(pl.String).with_columns(
        time=pl.when(pl.int_range(pl.len()) == 200).then(pl.lit("soon")).otherwise("time")
    )
    assert f"{source}: column 'time' is not a number (first 'soon' at line 202)" in said(3, bad)
    taken = rows.with_columns(predicted_click=0.5)
    assert f"{source}: column 'predicted_click' is there already; rename or drop it" in said(2, taken)
    assert "has no rows" in said(3, rows.clear())
    assert "must end in .csv" in said(2, rows, tmp_path / "out.txt")
    assert "no such file" in refusal(3, "predict", run, "--rows", tmp_path / "no.csv", "--out", out)
    assert "no run here" in refusal(3, "predict", tmp_path / "no", "--rows", source, "--out", out)
    assert "taken by --out -" in refusal(2, "predict", run, "--rows", source, "--out", "-", "--json")
    lists = rows.with_columns(tags=pl.concat_list("device", "item_id"))
    lists.write_parquet(tmp_path / "rows.parquet")
    listed = ("predict", run, "--rows", tmp_path / "rows.parquet", "--out")
    assert "column 'tags' holds List(String); write .parquet" in refusal(2, *listed, out)
    assert not out.exists()
    out.write_text("mine")
    assert "exists already" in refusal(5, "predict", run, "--rows", source, "--out", out)
    assert out.read_text() == "mine"
    rows.write_csv(source)
    answer("predict", run, "--rows", source, "--out", out, "--overwrite")
    assert pl.read_csv(out).height == 300
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.csv", "rows.csv", "rows.parquet"]


def test_a_table_is_written_block_by_block_and_whole_or_not_at_all(tmp_path: Path) -> None:
    """Every block is on disk, beside the target, before the next is asked for; a failure leaves no trace."""
    seen: list[int] = []

    def blocks(fail: bool) -> Iterator[pl.DataFrame]:
        for number in range(3):
            seen.append(len(list(tmp_path.glob("t.csv.staging-*/part-*"))))
            assert not (tmp_path / "t.csv").exists()
            yield pl.DataFrame({"a": [number]})
        if fail:
            raise DataError("the last row cannot be read")

    with pytest.raises(DataError, match="the last row"):
        write_blocks(blocks(fail=True), tmp_path / "t.csv")
    assert list(tmp_path.iterdir()) == []
    write_blocks(blocks(fail=False), tmp_path / "t.csv")
    assert seen == [0, 1, 2] * 2
    assert (tmp_path / "t.csv").read_text() == "a\n0\n1\n2\n"
    with pytest.raises(DataError, match="no rows"):
        write_blocks([], tmp_path / "u.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_standard_input_and_output(
    rows: pl.DataFrame, runs: dict[str, lr.Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """News goes to standard error, so that only rows come out."""
    asked = rows.head(9).with_columns(user_id=pl.lit("nobody"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(asked.write_csv().encode())))
    done = limerank("predict", runs["ttsn"].path, "--rows", "-", "--out", "-")
    found = pl.read_csv(done.stdout.encode())
    assert found.columns == [*rows.columns, *RESULTS]
    assert_same_scores(found, runs["ttsn"].predict(asked, quiet=True))
    assert "of 9 rows 9 are of users that the dataset does not know" in done.stderr
