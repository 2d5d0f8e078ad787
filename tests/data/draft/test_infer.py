"""`limerank init` understands logs it has never seen, says what it doubts, and leaves open what it does not find."""

from __future__ import annotations

from datetime import UTC, datetime
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
from limerank.data.raw.log import RawLog
from limerank.data.sources.simulated import simulated_schema
from limerank.data.sources.table.read import read_table_log, write_table_log
from limerank.errors import DataError
from limerank.schema import Role

SHARED = Path(__file__).parents[4] / "shared" / "data"
USERS, ITEMS, REQUESTS, SLOTS = 12, 40, 120, 4
START = 1_700_000_000


def exposures() -> pl.DataFrame:
    """A log of requests with four items each, with ids, seconds and a click."""
    generator = np.random.default_rng(5)
    request = np.repeat(np.arange(REQUESTS), SLOTS)
    item = generator.permuted(np.tile(np.arange(ITEMS), (REQUESTS, 1)), axis=1)[:, :SLOTS].ravel()
    return pl.DataFrame(
        {
            "user_id": request * 7 % USERS,
            "item_id": item,
            "timestamp": START + request * 3600,
            "click": generator.integers(0, 2, len(request)),
        }
    )


EVENTS = exposures()
ITEM, USER = EVENTS["item_id"], EVENTS["user_id"]
REQUEST = pl.Series("request", np.repeat(np.arange(REQUESTS), SLOTS))
NOISE = np.random.default_rng(11)


def looked_at(frame: pl.DataFrame, folder: Path, **tables: pl.DataFrame) -> tuple[Draft, dict[str, Any], list[str]]:
    """What is inferred from a log written as CSV: the draft, the description and its lines."""
    frame.write_csv(folder / "log.csv")
    for name, table in tables.items():
        table.write_csv(folder / f"{name}.csv")
    given = {name: str(folder / f"{name}.csv") for name in tables}
    return finished(infer(str(folder / "log.csv"), **given), folder)


def finished(draft: Draft, folder: Path) -> tuple[Draft, dict[str, Any], list[str]]:
    text = render(draft, folder)
    (folder / "dataset.yaml").write_text(text)
    if not draft.todo:
        read_table_log(folder / "dataset.yaml")
    return draft, yaml.safe_load(text), text.splitlines()


def features(description: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {feature.get("column", feature["name"]): feature for feature in description["features"]}


def line_of(lines: list[str], start: str) -> str:
    ways = (start, *(start.removesuffix("}") + f", role: {role.value}" for role in Role))
    (found,) = [line for line in lines if line.lstrip("# -").startswith(ways)]
    return found


def test_the_simulated_log_is_understood_and_prepares(raw_log: RawLog, tmp_path: Path) -> None:
    """Every role and kind is what the simulation says, nothing is left to do, and probabilities are left out."""
    write_table_log(raw_log, tmp_path / "raw")
    draft, description, lines = finished(infer(str(tmp_path / "raw")), tmp_path)
    assert draft.todo == ()
    assert description["tables"] == {name: f"raw/{name}.parquet" for name in ("events", "items", "users")}
    assert (description["user_id"], description["item_id"], description["time"]) == ("user_id", "item_id", "time")
    assert (description["time_unit"], description["request_id"]) == ("ms", "request_id")
    found = {column: (f["role"], f.get("kind", "categorical")) for column, f in features(description).items()}
    expected = {f.source_column: (f.role.value, f.kind.value) for f in simulated_schema().features}
    assert found == expected | {"long_view": ("event", "categorical")}
    assert description["tasks"] == [{"name": "click"}]
    assert "left out: looks like a probability" in line_of(lines, "{name: click_probability}")
    dataset = prepare(read_table_log(tmp_path / "dataset.yaml"), tmp_path / "d")
    assert dataset.manifest.counts["items"] == 200


def test_a_plain_log_prepares_as_it_stands(tmp_path: Path) -> None:
    draft, description, lines = looked_at(EVENTS, tmp_path)
    assert draft.todo == ()
    assert description["time_unit"] == "s"
    assert "40 distinct, e.g." in line_of(lines, "item_id: item_id")
    assert "2023-11-14 to 2023-11-19" in line_of(lines, "time: timestamp")
    assert "request_id" not in description
    dataset = prepare(read_table_log(tmp_path / "dataset.yaml"), tmp_path / "d")
    assert dataset.manifest.counts["events"] == EVENTS.height
    assert dataset.manifest.counts["requests"] == REQUESTS


TIMES = [datetime.fromtimestamp(second, UTC) for second in EVENTS["timestamp"]]


@pytest.mark.parametrize(
    ("times", "unit"),
    [
        (EVENTS["timestamp"], "s"),
        (EVENTS["timestamp"] + 0.25, "s"),
        (EVENTS["timestamp"] * 1000, "ms"),
        (EVENTS["timestamp"] * 1_000_000, "us"),
        (EVENTS["timestamp"] * 1_000_000_000, "ns"),
        (pl.Series([f"{time:%Y-%m-%dT%H:%M:%SZ}" for time in TIMES]), "iso"),
        (pl.Series([f"{time:%Y-%m-%d %H:%M:%S.%f}" for time in TIMES]), "iso"),
    ],
)
def test_units_of_time(tmp_path: Path, times: pl.Series, unit: str) -> None:
    _, description, _ = looked_at(EVENTS.with_columns(times.alias("timestamp")), tmp_path)
    assert description["time_unit"] == unit
    dataset = prepare(read_table_log(tmp_path / "dataset.yaml"), tmp_path / "d")
    assert int(dataset.column("events/time").min()) // 1000 == START


def test_a_column_of_the_type_datetime(tmp_path: Path) -> None:
    frame = EVENTS.with_columns(shown_at=pl.Series(TIMES).dt.replace_time_zone(None)).drop("timestamp")
    frame.write_parquet(tmp_path / "log.parquet")
    draft, description, _ = finished(infer(str(tmp_path / "log.parquet")), tmp_path)
    assert draft.todo == ()
    assert description["time"] == "shown_at"
    dataset = prepare(read_table_log(tmp_path / "dataset.yaml"), tmp_path / "d")
    assert int(dataset.column("events/time").min()) // 1000 == START


def test_small_numbers_called_time_are_doubted(tmp_path: Path) -> None:
    frame = EVENTS.with_columns(time=pl.col("timestamp") - START).drop("timestamp")
    _, description, lines = looked_at(frame, tmp_path)
    assert description["time"] == "time"
    assert "CHECK: too small for times since 1970" in line_of(lines, "time: time")


def test_large_numbers_without_a_name_are_doubted(tmp_path: Path) -> None:
    _, description, lines = looked_at(EVENTS.rename({"timestamp": "x"}), tmp_path)
    assert description["time"] == "x"
    assert "CHECK: the numbers are as large as times" in line_of(lines, "time: x")


@pytest.mark.parametrize("names", [("userId", "movieId"), ("uid", "iid"), ("visitorid", "itemid"), ("user", "video")])
def test_ids_by_their_names(tmp_path: Path, names: tuple[str, str]) -> None:
    _, description, _ = looked_at(EVENTS.rename(dict(zip(("user_id", "item_id"), names, strict=True))), tmp_path)
    assert (description["user_id"], description["item_id"]) == names


def test_ids_by_the_tables_they_identify(tmp_path: Path) -> None:
    frame = EVENTS.rename({"user_id": "who", "item_id": "what"})
    users = pl.DataFrame({"who": range(USERS), "age": [20 + n for n in range(USERS)]})
    items = pl.DataFrame({"what": range(ITEMS), "shade": [f"s{n % 5}" for n in range(ITEMS)]})
    draft, description, _ = looked_at(frame, tmp_path, users=users, items=items)
    assert draft.todo == ()
    assert (description["user_id"], description["item_id"]) == ("who", "what")
    assert features(description)["age"]["role"] == "user"
    assert features(description)["shade"]["role"] == "item"


def test_ids_written_as_floats_are_doubted(tmp_path: Path) -> None:
    _, _, lines = looked_at(EVENTS.with_columns(pl.col("item_id").cast(pl.Float64)), tmp_path)
    assert "CHECK: ids written as 1.0" in line_of(lines, "item_id: item_id")
    with pytest.raises(DataError, match=r"write 1, not 1.0"):
        prepare(read_table_log(tmp_path / "dataset.yaml"), tmp_path / "d")


def test_two_columns_that_could_be_the_item_are_doubted(tmp_path: Path) -> None:
    _, description, lines = looked_at(EVENTS.with_columns(product_id=ITEM), tmp_path)
    assert description["item_id"] == "item_id"
    assert "CHECK: or is it 'product_id'?" in line_of(lines, "item_id: item_id")


def test_a_request_id_by_name_and_one_only_by_its_values(tmp_path: Path) -> None:
    _, description, lines = looked_at(EVENTS.with_columns(impression_id=REQUEST * 31 % 997), tmp_path)
    assert description["request_id"] == "impression_id"
    assert "CHECK" not in line_of(lines, "request_id: impression_id")
    _, description, lines = looked_at(EVENTS.with_columns(zz=REQUEST * 31 % 997), tmp_path)
    assert description["request_id"] == "zz"
    assert "CHECK: always one user and one time" in line_of(lines, "request_id: zz")


def test_a_session_over_several_times_is_no_request(tmp_path: Path) -> None:
    _, description, _ = looked_at(EVENTS.with_columns(session_id="s" + (USER * 3).cast(pl.String)), tmp_path)
    assert "request_id" not in description


RATINGS = pl.Series(NOISE.choice([0.5, 2.0, 3.5, 4.0, 4.5, 5.0], EVENTS.height, p=[0.1, 0.2, 0.2, 0.2, 0.2, 0.1]))


@pytest.mark.parametrize(
    ("values", "threshold"),
    [(RATINGS, 4), ((RATINGS * 2).cast(pl.Int64), 8), (EVENTS["click"] * 2 - 1, 1)],
)
def test_ratings_become_labels(tmp_path: Path, values: pl.Series, threshold: float) -> None:
    frame = EVENTS.drop("click").with_columns(values.alias("rating"))
    draft, description, lines = looked_at(frame, tmp_path)
    assert draft.todo == ()
    task = {"name": f"rating_from_{threshold}", "column": "rating", "positive_from": threshold}
    assert description["tasks"] == [task]
    assert "CHECK: from which value on" in line_of(lines, "{name: rating_from_")
    assert features(description)["rating"]["role"] == "event"
    assert prepare(read_table_log(tmp_path / "dataset.yaml"), tmp_path / "d").manifest.counts["events"] == frame.height


def test_true_and_false_are_labels(tmp_path: Path) -> None:
    _, description, _ = looked_at(EVENTS.with_columns(pl.col("click") == 1), tmp_path)
    assert description["tasks"] == [{"name": "click"}]
    assert prepare(read_table_log(tmp_path / "dataset.yaml"), tmp_path / "d").manifest.counts["requests"] == REQUESTS


def test_the_likeliest_label_is_the_task_and_the_others_are_offered(tmp_path: Path) -> None:
    noise = NOISE.integers(0, 2, (3, EVENTS.height))
    frame = EVENTS.drop("click").with_columns(
        is_like=pl.Series(noise[0]), label=pl.Series(noise[1]), is_click=pl.Series(noise[2]), flag=ITEM % 2
    )
    draft, description, lines = looked_at(frame, tmp_path)
    assert description["tasks"] == [{"name": "is_click"}]
    assert [label.name for label in draft.labels] == ["is_click", "label", "is_like"]
    (offered,) = [line for line in lines if line.startswith("  # - {name: is_like}") and "positive" in line]
    assert "to learn it too" in offered
    roles = {column: feature["role"] for column, feature in features(description).items()}
    assert roles == {"item_id": "item", "flag": "item", "is_like": "event", "label": "event", "is_click": "event"}


def test_what_a_column_of_the_events_describes(tmp_path: Path) -> None:
    """Item, user, request and row, told apart by the values; outcomes by their names; in doubt, the history only."""
    rows = EVENTS.height
    mostly_zero = (pl.Series(NOISE.random(rows)) < 0.03).cast(pl.Int64) * 5
    frame = EVENTS.with_columns(
        shade="s" + (ITEM % 5).cast(pl.String),
        plan="p" + (USER % 3).cast(pl.String),
        os="o" + (REQUEST * 5 % 7 % 4).cast(pl.String),
        watch_time=pl.Series(NOISE.integers(0, 1000, rows)),
        place=pl.Series(NOISE.integers(0, 9, rows)),
        rare=mostly_zero,
    )
    _, description, lines = looked_at(frame, tmp_path)
    found = features(description)
    expected = {"shade": "item", "plan": "user", "os": "context", "watch_time": "event", "place": "event"}
    assert {column: found[column]["role"] for column in expected} == expected
    assert "constant per item" in line_of(lines, "{name: shade")
    assert "constant per user" in line_of(lines, "{name: plan")
    assert "constant per request" in line_of(lines, "{name: os")
    assert "known only afterwards" in line_of(lines, "{name: watch_time")
    assert "CHECK: varies from row to row" in line_of(lines, "{name: place")
    assert found["rare"]["role"] == "event", "nearly always 0 is not the same as constant per item"
    assert found["watch_time"]["kind"] == "continuous"
    prepare(read_table_log(tmp_path / "dataset.yaml"), tmp_path / "d")


def test_what_sounds_like_an_outcome_but_belongs_to_the_item_is_doubted(tmp_path: Path) -> None:
    _, description, lines = looked_at(EVENTS.with_columns(play_count=ITEM * 13 % 101), tmp_path)
    assert features(description)["play_count"]["role"] == "item"
    assert "CHECK: sounds like an outcome" in line_of(lines, "{name: play_count")


def test_requests_of_one_row_leave_context_in_doubt(tmp_path: Path) -> None:
    frame = EVENTS.with_columns(timestamp=START + pl.int_range(pl.len()) * 60).with_columns(
        device=pl.Series(NOISE.choice(["tv", "phone"], EVENTS.height)),
        y=pl.Series(NOISE.choice(["a", "b"], EVENTS.height)),
    )
    _, description, lines = looked_at(frame, tmp_path)
    assert features(description)["device"]["role"] == "context"
    assert "CHECK: known before" in line_of(lines, "{name: device")
    assert features(description)["y"]["role"] == "event"
    assert "role: context if known before" in line_of(lines, "{name: y")


def test_columns_that_cannot_help_are_left_out_with_the_reason(tmp_path: Path) -> None:
    number = pl.int_range(EVENTS.height, eager=True)
    frame = EVENTS.with_columns(
        nothing=pl.lit(None, pl.String),
        same=pl.lit("x"),
        row=("r" + (number * 7919 % 100_003).cast(pl.String)),
        date=pl.Series([f"{time:%Y%m%d}" for time in TIMES]),
        logged_at=pl.col("timestamp") + 5,
        pctr=pl.Series(NOISE.random(EVENTS.height)),
        broken=pl.Series([1.5, float("inf"), 2.5] * (EVENTS.height // 3)),
    )
    frame = frame.with_columns((number % 2).alias(""))
    _, description, lines = looked_at(frame, tmp_path)
    assert set(features(description)) == {"item_id", "click"}
    assert "left out: has no name" in line_of(lines, "{name: unnamed")
    for column, reason in {
        "nothing": "empty",
        "same": "the same value in every row",
        "row": "a different value in every row",
        "date": "only grows with time",
        "logged_at": "a time",
        "pctr": "looks like a probability",
        "broken": "holds NaN or infinite values",
    }.items():
        assert f"left out: {reason}" in line_of(lines, f"{{name: {column}}}")


def items_table() -> pl.DataFrame:
    number = pl.int_range(300, eager=True)
    return pl.DataFrame(
        {
            "item_id": number,
            "title": "Story " + number.cast(pl.String) + " of Many",
            "subtitle": "Part " + (number % 290).cast(pl.String),
            "genres": ["Drama Comedy War", "War", "Comedy", "Drama War", "Drama Comedy"] * 60,
            "tags": ["t1|t2", "t2|t3", "t1", "t3", "t1|t3"] * 60,
            "range": ["(10,50]", "(50,100]", "[1,10)"] * 100,
            "embedding": [f"{n / 7:.3f};{n / 3:.3f};{-n / 11:.3f}" for n in range(300)],
            "price": (number * 17 % 251),
            "year": 1990 + number % 30,
            "ratio": number / 7,
            "brand_id": number * 31 % 120,
            "size": ["1.0", "2.0", ""] * 100,
            "code": ["007", "008", "019"] * 100,
        }
    )


def test_kinds(tmp_path: Path) -> None:
    _, description, lines = looked_at(EVENTS, tmp_path, items=items_table())
    found = features(description)
    kinds = {column: feature.get("kind", "categorical") for column, feature in found.items()}
    assert kinds == {
        "item_id": "categorical",
        "genres": "multi_valued",
        "tags": "multi_valued",
        "range": "categorical",
        "embedding": "vector",
        "price": "continuous",
        "year": "continuous",
        "ratio": "continuous",
        "brand_id": "categorical",
        "size": "categorical",
        "code": "categorical",
        "click": "categorical",
    }
    assert found["genres"]["separator"] == " "
    assert "separator" not in found["tags"]
    assert found["embedding"]["separator"] == ";"
    assert "left out: what people call an item, so it is the display" in line_of(lines, "{name: title}")
    assert "left out: nearly every item has its own" in line_of(lines, "{name: subtitle, role: item}")
    assert "empty in 33.3% of rows" in line_of(lines, "{name: size")
    dataset = prepare(read_table_log(tmp_path / "dataset.yaml"), tmp_path / "d")
    by_name = {encoder.name: encoder for encoder in dataset.encoders.of(Role.ITEM)}
    assert by_name["genres"].size == 2 + 3
    assert by_name["embedding"].size == 3


def test_lists_and_vectors_of_parquet(tmp_path: Path) -> None:
    table = items_table().select(
        "item_id", pl.col("tags").str.split("|"), vector=pl.concat_list(pl.col("ratio"), pl.col("ratio") * 2)
    )
    EVENTS.write_parquet(tmp_path / "events.parquet")
    table.write_parquet(tmp_path / "items.parquet")
    _, description, _ = finished(infer(str(tmp_path)), tmp_path)
    kinds = {column: feature.get("kind") for column, feature in features(description).items()}
    assert kinds == {"item_id": None, "tags": "multi_valued", "vector": "vector", "click": None}
    prepare(read_table_log(tmp_path / "dataset.yaml"), tmp_path / "d")


def test_very_many_categories_are_hashed(tmp_path: Path) -> None:
    rows = 60_000
    number = pl.int_range(rows, eager=True)
    frame = pl.DataFrame(
        {
            "user_id": number % 500,
            "item_id": number * 7 % 1000,
            "timestamp": START + number // 5 * 10,
            "click": (number * 31 % 17 < 5).cast(pl.Int64),
            "query_text": "q" + (number * 7919 % 30_011).cast(pl.String),
        }
    )
    _, description, _ = looked_at(frame, tmp_path)
    assert features(description)["query_text"]["kind"] == "hashed"
    assert features(description)["query_text"]["buckets"] == 65_536


def test_words_for_missing_are_found_among_numbers_only(tmp_path: Path) -> None:
    users = pl.DataFrame(
        {"user_id": range(USERS), "age": ["30", "NA", "41"] * 4, "land": ["DE", "None", "FR", "US"] * 3}
    )
    _, description, lines = looked_at(EVENTS, tmp_path, users=users)
    assert description["tables"]["null_values"] == ["NA"]
    assert "CHECK: found among numbers" in line_of(lines, "null_values")
    raw = read_table_log(tmp_path / "dataset.yaml")
    assert raw.users is not None
    assert raw.users["age"].null_count() == 4
    assert raw.users["land"].null_count() == 0


def test_what_is_not_found_is_left_to_do_and_not_guessed(tmp_path: Path) -> None:
    frame = pl.DataFrame({"a": range(50), "b": [n % 7 for n in range(50)], "c": [n % 3 for n in range(50)]})
    draft, description, lines = looked_at(frame, tmp_path)
    assert draft.todo == ("user_id", "item_id", "time", "tasks")
    assert not {"user_id", "item_id", "time"} & set(description)
    for key in ("user_id", "item_id", "time"):
        assert f"# {key}:  # TODO:" in "\n".join(lines)
    assert description["tasks"] == []
    assert "# TODO: the column to predict" in line_of(lines, "tasks:")
    with pytest.raises(DataError, match=r"dataset.yaml: key 'tasks'"):
        read_table_log(tmp_path / "dataset.yaml")


def test_a_day_is_not_taken_for_a_time(tmp_path: Path) -> None:
    frame = EVENTS.with_columns(date=pl.lit(20_231_114)).drop("timestamp")
    draft, _, _ = looked_at(frame, tmp_path)
    assert draft.todo == ("time",)


@pytest.mark.parametrize(
    ("items", "why"),
    [
        (pl.DataFrame({"id": range(ITEMS), "x": range(ITEMS)}), "it has no column 'item_id' as the log has"),
        (pl.DataFrame({"item_id": [1, 1, 2], "x": [1, 2, 3]}), "some 'item_id' stand in several of its rows"),
        (pl.DataFrame({"item_id": ["a", "b", "c"], "x": [1, 2, 3]}), "no 'item_id' of the log is in it"),
    ],
)
def test_a_table_that_does_not_fit_is_left_out(tmp_path: Path, items: pl.DataFrame, why: str) -> None:
    _, description, lines = looked_at(EVENTS, tmp_path, items=items)
    assert description["tables"]["items"] == []
    assert f"CHECK: the table that was given does not fit: {why}" in line_of(lines, "items: []")
    prepare(read_table_log(tmp_path / "dataset.yaml"), tmp_path / "d")


def test_names_that_clash_or_cannot_be_names(tmp_path: Path) -> None:
    users = pl.DataFrame(
        {"user_id": range(USERS), "country": ["de", "fr"] * 6, "größe (cm)": [n % 4 for n in range(USERS)]}
    )
    items = pl.DataFrame({"item_id": range(ITEMS), "country": ["jp", "us"] * 20})
    frame = EVENTS.with_columns(country=pl.lit("x"))
    _, description, lines = looked_at(frame, tmp_path, users=users, items=items)
    named = {feature["name"]: feature for feature in description["features"]}
    assert named["country"]["role"] == "item"
    assert (named["user_country"]["role"], named["user_country"]["column"]) == ("user", "country")
    assert any(feature.get("column") == "größe (cm)" for feature in description["features"])
    assert "taken from the" in "\n".join(lines)
    prepare(read_table_log(tmp_path / "dataset.yaml"), tmp_path / "d")


def test_another_separator_is_noticed_and_a_missing_header_too(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(EVENTS.write_csv(separator=";"))
    _, description, _ = finished(infer(str(tmp_path / "log.csv")), tmp_path)
    assert description["tables"]["separator"] == ";"
    (tmp_path / "log.csv").write_text(EVENTS.write_csv(include_header=False))
    with pytest.raises(DataError, match=r"log.csv: the first line holds numbers, not the names of the columns"):
        infer(str(tmp_path / "log.csv"))


def test_a_log_whose_users_come_one_after_the_other_is_split_per_user(tmp_path: Path) -> None:
    order = EVENTS.sort("user_id").with_columns(timestamp=START + pl.int_range(pl.len()) * 60)
    _, description, lines = looked_at(order, tmp_path)
    assert description["split"] == {"protocol": "last_fraction"}
    assert "CHECK: not by time, because in the last 10 % by time" in line_of(lines, "split:")
    dataset = prepare(read_table_log(tmp_path / "dataset.yaml"), tmp_path / "d")
    assert set(np.unique(dataset.column("requests/part")).tolist()) >= {0, 1, 2}


def test_several_files_are_sampled_evenly_and_written_as_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from limerank.data.draft import sample as module

    monkeypatch.setattr(module, "SAMPLE_ROWS", 100)
    monkeypatch.chdir(tmp_path)
    Path("log").mkdir()
    for part in range(12):
        EVENTS.slice(part * 40, 40).write_csv(Path("log") / f"{part:02}.csv")
    for given in ("log", "log/*.csv"):
        draft = infer(given)
        assert draft.sample == "the first 12 rows of each of 8 files"
        assert not draft.whole
        assert yaml.safe_load(render(draft, Path("elsewhere/deep")))["tables"]["events"] == f"../../{given}"
        assert yaml.safe_load(render(draft, Path()))["tables"]["events"] == given


def test_values_cannot_break_out_of_their_comment(tmp_path: Path) -> None:
    shades = ["a\nuser_id: evil", "b # c", "d\r\x1b[31m: {"]
    frame = EVENTS.with_columns(shade=pl.Series(shades * (EVENTS.height // 3)).gather(ITEM % 3))
    _, description, lines = looked_at(frame, tmp_path)
    assert description["user_id"] == "user_id"
    assert not any("\x1b" in line for line in lines)


needs_movielens = pytest.mark.skipif(not (SHARED / "ml-100k").is_dir(), reason="the shared MovieLens log is not here")
needs_kuairand = pytest.mark.skipif(
    not (SHARED / "kuairand_27k_likehate").is_dir(), reason="the shared KuaiRand log is not here"
)


@needs_movielens
def test_movielens(tmp_path: Path) -> None:
    folder = SHARED / "ml-100k"
    paths = [str(folder / f"{name}.csv.gz") for name in ("ratings", "items", "users")]
    draft, description, _ = finished(infer(*paths), tmp_path)
    assert draft.todo == ()
    assert draft.sample == "all 100,000 rows"
    assert (description["time"], description["time_unit"]) == ("timestamp", "s")
    assert description["tasks"] == [{"name": "rating_from_4", "column": "rating", "positive_from": 4}]
    assert description["split"] == {"protocol": "last_fraction"}, "71 % of the last rows are of new users"
    assert features(description)["genres"] == {
        "name": "genres",
        "role": "item",
        "kind": "multi_valued",
        "separator": " ",
    }
    assert "movie_title" not in features(description)
    dataset = prepare(read_table_log(tmp_path / "dataset.yaml"), tmp_path / "d")
    assert dataset.manifest.counts["events"] == 100_000
    assert dataset.column("events/label.rating_from_4")[:].mean() == pytest.approx(0.554, abs=0.001)


@needs_kuairand
def test_kuairand(tmp_path: Path) -> None:
    folder = SHARED / "kuairand_27k_likehate"
    draft, description, lines = finished(
        infer(str(folder / "log.csv.gz"), users=str(folder / "user_features.csv.gz")), tmp_path
    )
    assert draft.todo == ()
    assert (description["item_id"], description["time"], description["time_unit"]) == ("video_id", "time_ms", "ms")
    assert description["tasks"] == [{"name": "is_click"}]
    found = features(description)
    for column in ("play_time_ms", "long_view", "comment_stay_time", "is_follow", "is_forward", "label", "is_click"):
        assert found[column]["role"] == "event", "what happened is never a feature of the row being predicted"
    assert found["duration_ms"]["role"] == "item"
    assert found["follow_user_num_range"]["role"] == "user"
    assert "left out: only grows with time" in line_of(lines, "{name: date}")
    assert description["split"]["protocol"] == "global_time"
    dataset = prepare(read_table_log(tmp_path / "dataset.yaml"), tmp_path / "d")
    assert dataset.manifest.counts["events"] == 41_828


def test_a_folder_of_different_tables_is_not_a_log(tmp_path: Path) -> None:
    (tmp_path / "ratings.csv").write_text("user,item,rating,time\n1,2,3,4\n")
    (tmp_path / "movies.csv").write_text("item,title,year\n2,Heat,1995\n")
    with pytest.raises(
        DataError, match="have different columns, so they are not one log; pass the log alone as --from"
    ):
        infer(str(tmp_path))
