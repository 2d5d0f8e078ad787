"""Your own log: every way to lay out files reads the same, and every way to get them wrong is one clear line."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml

from limerank.data.build.prepare import prepare
from limerank.data.raw.log import EventFile, RawLog
from limerank.data.sources.table import read as table
from limerank.data.sources.table.files import Dialect, open_files
from limerank.data.sources.table.read import Tables, read_table_log, write_table_log
from limerank.data.store.dataset import StoredDataset
from limerank.errors import DataError, UsageError
from limerank.schema import Feature, Histories, Kind, Role, Schema, Task
from limerank.splits import ByColumn, Days, GlobalTime, LastEvents, LastFraction

DESCRIPTION: dict[str, Any] = {
    "features": [
        {"name": "kind", "role": "item"},
        {"name": "tags", "role": "item", "kind": "multi_valued"},
        {"name": "country", "role": "user"},
        {"name": "device", "role": "context"},
        {"name": "clicked", "role": "event", "column": "click"},
    ],
    "tasks": [{"name": "click"}],
}


def events(rows: int = 60, first: int = 0) -> pl.DataFrame:
    number = pl.int_range(first, first + rows, eager=True)
    return pl.DataFrame(
        {
            "user_id": "u" + (number % 4).cast(pl.String),
            "item_id": (number % 7).cast(pl.String).str.zfill(3),
            "time": 1_700_000_000_000 + number * 1000,
            "device": "d" + (number % 3).cast(pl.String),
            "click": (number * 7 % 5 < 2).cast(pl.Int8),
        }
    )


ITEMS = pl.DataFrame(
    {
        "item_id": [f"{n:03}" for n in range(7)],
        "kind": [f"k{n % 3}" for n in range(7)],
        "tags": ["a|b", "b", None, "c|a", "a", "b|c", "c"],
    }
)
USERS = pl.DataFrame({"user_id": ["u0", "u1", "u2", "u3"], "country": ["de", "fr", "de", None]})


def describe(folder: Path, **changes: Any) -> None:
    (folder / "dataset.yaml").write_text(yaml.safe_dump({**DESCRIPTION, **changes}))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A whole log in CSV, in the folder `raw` of the place where the user is."""
    monkeypatch.chdir(tmp_path)
    raw = Path("raw")
    raw.mkdir()
    events().write_csv(raw / "events.csv")
    ITEMS.write_csv(raw / "items.csv")
    USERS.write_csv(raw / "users.csv")
    describe(raw)
    return raw


def collected(raw: RawLog) -> pl.DataFrame:
    return pl.concat([batch for file in raw.events for batch in file.batches()], how="vertical_relaxed")


def refused(folder: Path) -> str:
    with pytest.raises(DataError) as caught:
        collected(read_table_log(folder))
    message = str(caught.value)
    assert "\n" not in message
    return message


def as_text(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.select(pl.all().cast(pl.String))


def write(frame: pl.DataFrame, path: Path) -> None:
    """Write a table in the format of its ending."""
    if path.suffix == ".parquet":
        frame.write_parquet(path)
        return
    separator = "\t" if ".tsv" in path.name else ","
    text = frame.write_csv(separator=separator)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    elif path.suffix == ".zst":
        frame.write_csv(path, separator=separator, compression="zstd")
    else:
        path.write_text(text)


@pytest.mark.parametrize("ending", ["csv", "CSV", "tsv", "csv.gz", "csv.zst", "tsv.gz", "tsv.zst", "parquet"])
def test_every_ending_reads_the_same(folder: Path, ending: str) -> None:
    (folder / "events.csv").unlink()
    write(events(), folder / f"events.{ending.lower()}")
    if ending.isupper():
        (folder / "events.csv").rename(folder / "LOG.CSV")
        describe(folder, tables={"events": "LOG.CSV"})
    raw = read_table_log(folder)
    assert as_text(collected(raw)).equals(as_text(events()))
    assert raw.events[0].columns == ("user_id", "item_id", "time", "device", "click")


def test_csv_is_text_and_an_empty_field_is_null(folder: Path) -> None:
    raw = read_table_log(folder)
    assert set(collected(raw).schema.values()) == {pl.String()}
    assert raw.items is not None
    assert raw.items["item_id"].to_list()[:2] == ["000", "001"]
    assert raw.items["tags"].to_list()[2] is None
    assert raw.users is not None
    assert raw.users["country"].to_list()[3] is None
    assert raw.names == {"items": "raw/items.csv", "users": "raw/users.csv"}
    assert raw.events[0].name == "raw/events.csv"
    csv: dict[str, Any] = {"separator": None, "quote": '"', "null_values": []}
    assert raw.origin == {"source": "table", "csv": csv}


def test_parquet_says_how_many_rows_it_has(folder: Path) -> None:
    (folder / "events.csv").unlink()
    events(45).write_parquet(folder / "events.parquet")
    assert read_table_log(folder).events[0].rows == 45


@pytest.mark.parametrize(
    "where",
    ["log", "log/*.csv", "log/**/*.csv", ["log/day-0.csv", "log/day-1.csv", "log/day-2.csv"], ["log/day-[012].csv"]],
)
def test_several_files_by_folder_pattern_or_list(folder: Path, where: Any) -> None:
    (folder / "events.csv").unlink()
    (folder / "log").mkdir()
    for day in range(3):
        events(20, first=20 * day).write_csv(folder / "log" / f"day-{day}.csv")
    describe(folder, tables={"events": where})
    raw = read_table_log(folder)
    assert [file.name for file in raw.events] == [f"raw/log/day-{day}.csv" for day in range(3)]
    assert as_text(collected(raw)).equals(as_text(events()))


def test_an_absolute_pattern_and_one_that_goes_up(folder: Path) -> None:
    elsewhere = Path("elsewhere")
    elsewhere.mkdir()
    (folder / "events.csv").rename(elsewhere / "a.csv")
    for where in (str(elsewhere.absolute() / "*.csv"), "../elsewhere/*.csv", "../elsewhere/a.csv"):
        describe(folder, tables={"events": where})
        assert collected(read_table_log(folder)).height == 60


def test_the_default_folder_of_parts_may_be_nested_and_hold_marks_of_other_programs(folder: Path) -> None:
    (folder / "events.csv").unlink()
    for day in range(2):
        part = folder / "events" / f"day={day}"
        part.mkdir(parents=True)
        events(30, first=30 * day).write_parquet(part / "part-0.parquet")
    (folder / "events" / "_SUCCESS").touch()
    (folder / "events" / "README.md").write_text("x")
    raw = read_table_log(folder)
    assert as_text(collected(raw)).equals(as_text(events()))
    assert "raw/events: not tables, so not read: README.md" in raw.notes


def test_the_items_may_be_several_files_whose_columns_stand_in_another_order(folder: Path) -> None:
    (folder / "items.csv").unlink()
    ITEMS.head(3).write_csv(folder / "items-a.csv")
    ITEMS.tail(4).select("tags", "kind", "item_id").write_csv(folder / "items-b.csv")
    describe(folder, tables={"items": ["items-a.csv", "items-b.csv"]})
    raw = read_table_log(folder)
    assert raw.items is not None
    assert raw.items.equals(ITEMS)
    assert raw.names["items"] == "raw/items-a.csv (and 1 more file)"


def test_the_description_itself_as_raw(folder: Path) -> None:
    other = Path("other.yaml")
    tables = {name: f"raw/{name}.csv" for name in ("events", "items", "users")}
    other.write_text(yaml.safe_dump({**DESCRIPTION, "tables": tables}))
    raw = read_table_log(other)
    assert raw.events[0].name == "raw/events.csv"
    assert raw.schema == read_table_log(folder).schema
    assert type(raw.schema) is Schema


def test_a_description_beside_the_folder(folder: Path) -> None:
    (folder / "dataset.yaml").rename("other.yaml")
    assert "limerank init" in refused(folder)
    assert read_table_log(folder, schema_file=Path("other.yaml")).events[0].name == "raw/events.csv"
    with pytest.raises(UsageError, match="is a description already"):
        read_table_log(Path("other.yaml"), schema_file=Path("other.yaml"))
    with pytest.raises(UsageError, match=r"is a table; .* limerank init --from raw/events.csv"):
        read_table_log(folder / "events.csv")


def test_separator_quote_and_null_values(folder: Path) -> None:
    rows = "'u1';003;5;'d;1';1\nu2;004;6;-;0\n"
    (folder / "events.csv").write_text("user_id;item_id;time;device;click\n" + rows)
    for name in ("items", "users"):
        text = (folder / f"{name}.csv").read_text()
        (folder / f"{name}.csv").write_text(text.replace(",", ";"))
    describe(folder, tables={"separator": ";", "quote": "'", "null_values": ["-"]})
    assert collected(read_table_log(folder))["device"].to_list() == ["d;1", None]


def test_quotes_can_be_ordinary_characters(folder: Path) -> None:
    (folder / "events.csv").write_text('user_id,item_id,time,device,click\nu1,003,5,5" screen,1\n')
    describe(folder, tables={"quote": None})
    assert collected(read_table_log(folder))["device"].to_list() == ['5" screen']


def test_empty_lines_and_windows_lines_and_a_byte_order_mark(folder: Path) -> None:
    text = events(5).write_csv().replace("\n", "\r\n")
    (folder / "events.csv").write_bytes(b"\xef\xbb\xbf" + text.encode() + b"\r\n\r\n")
    assert as_text(collected(read_table_log(folder))).equals(as_text(events(5)))


def test_extra_columns_are_noted_and_not_read(folder: Path) -> None:
    events().with_columns(page=pl.lit("x"), x=pl.lit(1)).write_csv(folder / "events.csv")
    raw = read_table_log(folder)
    assert raw.notes == ("raw/events.csv: columns not used: 'page', 'x'",)
    assert "page" not in collected(raw).columns


def test_item_features_may_stand_in_the_events(folder: Path) -> None:
    (folder / "items.csv").unlink()
    (folder / "users.csv").unlink()
    more = events().with_columns(kind=pl.lit("k"), tags=pl.lit("a|b"), country=pl.lit("de"))
    more.write_csv(folder / "events.csv")
    raw = read_table_log(folder)
    assert raw.items is None
    assert raw.users is None
    assert {"kind", "tags", "country"} <= set(raw.events[0].columns)


def test_an_empty_list_means_that_there_is_no_table(folder: Path) -> None:
    (folder / "users.csv").write_text("this is,something else\n1,2\n")
    describe(
        folder,
        tables={"users": []},
        features=[feature for feature in DESCRIPTION["features"] if feature["role"] != "user"],
    )
    assert read_table_log(folder).users is None
    describe(folder, tables={"events": []})
    assert "name it as tables.events" in refused(folder)


def test_batches_can_be_read_twice_and_lazily(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from limerank.data.sources.table import files as table_files

    monkeypatch.setattr(table_files, "ROWS_PER_BATCH", 7)
    (file,) = read_table_log(folder).events
    for _ in range(2):
        batches = list(file.batches())
        assert len(batches) > 1
        assert pl.concat(batches).height == 60


# What can be wrong: each is one line with the file, the column or key, and the fix.


def test_no_such_place(folder: Path) -> None:
    assert "nowhere: no such folder" in refused(Path("nowhere"))
    (folder / "events.csv").unlink()
    assert "raw/events.csv: no such file, nor events.parquet" in refused(folder)
    describe(folder, tables={"events": "logs/a.csv"})
    assert "raw/logs/a.csv: no such file or folder; correct tables.events" in refused(folder)
    describe(folder, tables={"events": "logs/*.csv"})
    assert "raw/logs/*.csv: no file matches; correct tables.events" in refused(folder)
    (folder / "logs").mkdir()
    describe(folder, tables={"events": "logs"})
    assert "raw/logs: no table in this folder; it should hold files ending in .csv" in refused(folder)


def test_empty_and_header_only_files(folder: Path) -> None:
    (folder / "events.csv").write_text("")
    assert "raw/events.csv: is empty (0 bytes)" in refused(folder)
    (folder / "events.csv").write_text("user_id,item_id,time,device,click\n")
    assert "raw/events.csv: has no rows" in refused(folder)
    (folder / "events.csv").write_bytes(gzip.compress(b""))
    (folder / "events.csv").rename(folder / "events.csv.gz")
    assert "raw/events.csv.gz: is empty, without even a header" in refused(folder)


def test_a_day_without_events_is_fine_beside_others(folder: Path) -> None:
    (folder / "quiet.csv").write_text("user_id,item_id,time,device,click\n")
    describe(folder, tables={"events": ["events.csv", "quiet.csv"]})
    assert collected(read_table_log(folder)).height == 60


def test_duplicate_column(folder: Path) -> None:
    (folder / "events.csv").write_text("user_id,item_id,time,device,click,device\nu,1,2,3,1,4\n")
    assert "raw/events.csv: column 'device' stands twice in the header" in refused(folder)


def test_a_column_that_is_really_called_duplicated_is_fine(folder: Path) -> None:
    events().with_columns(y_duplicated_0=pl.lit(1)).write_csv(folder / "events.csv")
    assert collected(read_table_log(folder)).height == 60


@pytest.mark.parametrize("ending", ["csv", "csv.gz"])
def test_bytes_that_are_not_utf8_late_in_the_file(folder: Path, ending: str) -> None:
    data = events(50_000).write_csv().encode()
    lines = data.split(b"\n")
    lines[41_234] = lines[41_234].replace(b",d", b",caf\xe9")
    (folder / "events.csv").unlink()
    data = b"\n".join(lines)
    (folder / f"events.{ending}").write_bytes(gzip.compress(data) if ending.endswith("gz") else data)
    assert f"raw/events.{ending}, line 41235: byte 0xe9 is not UTF-8; convert the file: iconv" in refused(folder)


def test_bytes_that_are_not_utf8_in_the_header_or_in_a_table(folder: Path) -> None:
    (folder / "items.csv").write_bytes(b"item_id,kind,tags,caf\xe9\n1,2,3,4\n")
    assert "raw/items.csv, line 1: byte 0xe9 is not UTF-8" in refused(folder)
    (folder / "items.csv").write_bytes(b"item_id,kind,tags\n1,2,caf\xe9\n")
    assert "raw/items.csv, line 2: byte 0xe9 is not UTF-8" in refused(folder)
    (folder / "items.csv").write_bytes("item_id,kind,tags\n1,2,3\n".encode("utf-16"))
    assert "raw/items.csv: is UTF-16, not UTF-8" in refused(folder)


def cut(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


@pytest.mark.parametrize(("ending", "said"), [("csv.gz", "cannot be read"), ("csv.zst", "cannot be read")])
def test_a_compressed_file_that_is_cut_off(folder: Path, ending: str, said: str) -> None:
    (folder / "events.csv").unlink()
    write(events(200_000), folder / f"events.{ending}")
    cut(folder / f"events.{ending}")
    message = refused(folder)
    assert f"raw/events.{ending}: {said}" in message
    assert "the file is cut off or damaged" in message


def test_parquet_that_is_cut_off_or_no_parquet(folder: Path) -> None:
    (folder / "events.csv").unlink()
    path = folder / "events.parquet"
    events().write_parquet(path)
    cut(path)
    assert "raw/events.parquet: cannot be read as a table" in refused(folder)
    path.write_text("user_id,item_id,time\n1,2,3\n")
    assert "raw/events.parquet: cannot be read as a table" in refused(folder)


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "csv.zst"])
def test_a_row_with_more_fields_than_the_header(folder: Path, ending: str) -> None:
    """Found even when the extra field stands after all columns that are needed."""
    text = events(30_000).with_columns(unused=pl.lit("x")).write_csv()
    lines = text.split("\n")
    lines[20_000] += ",extra"
    (folder / "events.csv").unlink()
    data = "\n".join(lines).encode()
    path = folder / f"events.{ending}"
    if ending.endswith("zst"):
        one_column = pl.DataFrame({lines[0]: lines[1:-1] if lines[-1] == "" else lines[1:]})
        one_column.write_csv(path, compression="zstd", quote_style="never")
    else:
        path.write_bytes(gzip.compress(data) if ending.endswith("gz") else data)
    message = refused(folder)
    assert f"raw/events.{ending}, line 20001: 7 fields, but the header has 6" in message
    assert "tables.separator" in message


def test_a_quote_that_is_never_closed(folder: Path) -> None:
    text = events(30).write_csv().replace("d2", '"d2', 1)
    (folder / "events.csv").write_text(text)
    message = refused(folder)
    assert "raw/events.csv, line 4: " in message
    assert "tables.quote" in message


def test_files_of_one_table_with_different_columns(folder: Path) -> None:
    events().drop("device").write_csv(folder / "more.csv")
    describe(folder, tables={"events": ["events.csv", "more.csv"]})
    expected = "raw/more.csv: no column 'device', which raw/events.csv of the same table has; give all files the same"
    assert expected in refused(folder)
    describe(folder, tables={"events": ["more.csv", "events.csv"]})
    assert expected in refused(folder)


def test_files_may_differ_in_columns_that_nothing_needs(folder: Path) -> None:
    events().with_columns(page=pl.lit("x")).write_csv(folder / "more.csv")
    describe(folder, tables={"events": ["events.csv", "more.csv"]})
    raw = read_table_log(folder)
    assert collected(raw).height == 120
    assert raw.notes == ("raw/events.csv (and 1 more file): columns not used: 'page'",)


def test_a_file_that_may_not_be_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests may read everything, so the refusal of the system is played."""
    honest = Path.open

    def refuses(path: Path, *arguments: Any, **options: Any) -> Any:
        if path.name == "events.csv":
            raise PermissionError(13, "Permission denied", str(path))
        return honest(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", refuses)
    assert "raw/events.csv: cannot be read (Permission denied)" in refused(folder)


def test_endings(folder: Path) -> None:
    (folder / "log.json").write_text("{}")
    describe(folder, tables={"events": "log.json"})
    assert "raw/log.json: not a table this can read; it must end in .csv" in refused(folder)
    events().write_parquet(folder / "more.parquet")
    describe(folder, tables={"events": ["events.csv", "more.parquet"]})
    assert "raw/more.parquet: is Parquet, but raw/events.csv of the same table is text" in refused(folder)
    describe(folder, tables={"events": ["events.csv", "../raw/events.csv"]})
    assert "raw/../raw/events.csv: named twice by tables.events" in refused(folder)
    describe(folder)
    events().write_parquet(folder / "events.parquet")
    assert "raw/events.csv: events.parquet is there too; remove one" in refused(folder)


def change_feature(number: int, **changes: Any) -> dict[str, Any]:
    features = [dict(feature) for feature in DESCRIPTION["features"]]
    features[number] |= changes
    return {"features": features}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"time": "tiem"}, "raw/events.csv: column 'tiem' is missing; did you mean 'time'? (time in raw/dataset.yaml"),
        ({"request_id": "request"}, "raw/events.csv: column 'request' is missing; known: click, device"),
        (
            change_feature(3, column="devcie"),
            "raw/events.csv: column 'devcie' is missing; did you mean 'device'? (feature 'device' in",
        ),
        (
            change_feature(0, column="kinds"),
            "raw/items.csv and raw/events.csv: column 'kinds' is missing; did you mean 'kind'? (feature 'kind' in",
        ),
        (
            change_feature(2, column="land"),
            "raw/users.csv and raw/events.csv: column 'land' is missing; known: ",
        ),
        (
            {"tasks": [{"name": "click", "column": "clicks"}]},
            "column 'clicks' is missing; did you mean 'click'? (task 'click'",
        ),
        (
            {"tasks": [{"name": "click", "true_probability": "p"}]},
            "column 'p' is missing; known: click, device, item_id, time, user_id (true_probability of task 'click'",
        ),
        (
            {"split": {"protocol": "column", "column": "fold"}},
            "column 'fold' is missing; known: click, device, item_id, time, user_id (split.column",
        ),
        ({"user_id": "user"}, "raw/events.csv: column 'user' is missing; did you mean 'user_id'? (user_id in"),
    ],
)
def test_a_column_that_is_nowhere(folder: Path, changes: dict[str, Any], expected: str) -> None:
    describe(folder, **changes)
    assert expected in refused(folder)


def test_a_table_without_its_id(folder: Path) -> None:
    ITEMS.rename({"item_id": "id"}).write_csv(folder / "items.csv")
    assert "raw/items.csv: column 'item_id' is missing; known: id, kind, tags (item_id in" in refused(folder)


def test_each_file_is_read_with_the_separator_it_has(folder: Path) -> None:
    """A log with semicolons beside items with commas, whatever the description says of one of them."""
    expected = read_table_log(folder).collect_events()
    (folder / "events.csv").write_text(events().write_csv(separator=";"))
    raw = read_table_log(folder)
    assert raw.collect_events().equals(expected)
    assert raw.items is not None
    assert "kind" in raw.items.columns


def test_lines_with_too_few_fields_are_refused(folder: Path) -> None:
    """At the beginning, and at the end of a file that was cut off in the middle of a line."""
    lines = (folder / "events.csv").read_text().splitlines()
    (folder / "events.csv").write_text("\n".join([*lines[:3], "u1,i1", *lines[3:]]) + "\n")
    assert "raw/events.csv, line 4: 2 fields, but the header has 5; complete or remove it" in refused(folder)
    many = [lines[0], *(lines[1:] * 4000)]
    (folder / "events.csv").write_text("\n".join(many) + "\nu1,i1,5")
    assert "raw/events.csv, last line: 3 fields, but the header has 5; the file is cut off" in refused(folder)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"tables": {"evnets": "a.csv"}}, "raw/dataset.yaml: unknown key 'tables.evnets'; did you mean 'events'?"),
        ({"tabels": {}}, "raw/dataset.yaml: unknown key 'tabels'; did you mean 'tables'?"),
        ({"tables": {"separator": ";;"}}, "raw/dataset.yaml: key 'tables.separator'"),
        ({"tables": {"events": 5}}, "raw/dataset.yaml: key 'tables.events'"),
    ],
)
def test_a_wrong_key(folder: Path, changes: dict[str, Any], expected: str) -> None:
    describe(folder, **changes)
    assert expected in refused(folder)


def test_the_how_to_names_every_key() -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "bring-your-own-log.md").read_text()
    models = (Schema, Feature, Task, Histories, GlobalTime, Days, LastEvents, LastFraction, ByColumn)
    keys = {key for model in models for key in model.model_fields} | {
        "tables.events",
        *(f"tables.{key}" for key in Tables.model_fields if key in ("separator", "quote", "null_values")),
    }
    without_blocks = re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)
    code = " ".join(re.findall(r"`([^`\n]+)`", without_blocks))
    assert not {key for key in keys if not re.search(rf"(?<![\w.]){re.escape(key)}\b", code)}


# Writing such a folder.


SCHEMA = Schema(
    features=(Feature(name="kind", role=Role.ITEM), Feature(name="tags", role=Role.ITEM, kind=Kind.MULTI_VALUED)),
    tasks=(Task(name="click"),),
    split=Days(test_days=2),
)


def raw_of(files: tuple[EventFile, ...], schema: Schema = SCHEMA) -> RawLog:
    return RawLog(schema=schema, events=files, items=ITEMS, users=None, origin={"source": "test"})


def test_a_small_log_is_written_as_one_file(tmp_path: Path) -> None:
    written = raw_of((EventFile.of_frame(events(20), "a"), EventFile.of_frame(events(40, first=20), "b")))
    write_table_log(written, tmp_path / "raw")
    assert sorted(p.name for p in (tmp_path / "raw").iterdir()) == ["dataset.yaml", "events.parquet", "items.parquet"]
    read = read_table_log(tmp_path / "raw")
    assert read.schema == SCHEMA, "the protocol of the split is written down"
    assert collected(read).equals(events().select(read.events[0].columns))
    assert read.items is not None
    assert read.items.equals(ITEMS)


def test_a_large_log_is_written_in_parts_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "ROWS_PER_PART", 25)
    alive: list[int] = []

    def batches() -> Iterator[pl.DataFrame]:
        for n in range(6):
            alive.append(len(list(tmp_path.glob("raw.staging-*/events/*.parquet"))))
            yield events(10, first=10 * n)

    log = raw_of((EventFile("a", tuple(events().columns), batches),))
    write_table_log(log, tmp_path / "raw")
    assert alive == [0, 0, 0, 1, 1, 2], "parts are on disk before the last batch is asked for"
    names = sorted(p.name for p in (tmp_path / "raw" / "events").iterdir())
    assert names == ["part-00000.parquet", "part-00001.parquet", "part-00002.parquet"]
    read = read_table_log(tmp_path / "raw")
    assert collected(read).equals(events().select(read.events[0].columns))


def test_files_of_other_types_are_not_forced_together(tmp_path: Path) -> None:
    log = raw_of((EventFile.of_frame(events(20), "a"), EventFile.of_frame(as_text(events(40, first=20)), "b")))
    write_table_log(log, tmp_path / "raw")
    read = read_table_log(tmp_path / "raw")
    assert len(read.events) == 2
    assert as_text(pl.concat([as_text(b) for f in read.events for b in f.batches()])).equals(
        as_text(events().select(read.events[0].columns))
    )


def test_a_log_without_time_and_with_ready_histories_reads_back(tmp_path: Path) -> None:
    schema = Schema.model_validate(
        {
            "time": None,
            "features": [{"name": "kind", "role": "item"}, {"name": "did", "role": "event"}],
            "tasks": [{"name": "click"}],
            "histories": {"items": {"kind": "kinds_before"}, "events": {"did": "did_before"}},
            "split": {"protocol": "column", "column": "fold", "select_on_test": True},
        }
    )
    frame = pl.DataFrame(
        {
            "user_id": ["u", "v"],
            "item_id": ["001", "002"],
            "click": [0, 1],
            "kinds_before": ["k1^k2", "k0"],
            "did_before": ["c^c", "v"],
            "fold": ["train", "test"],
        }
    )
    write_table_log(raw_of((EventFile.of_frame(frame, "a"),), schema), tmp_path / "raw")
    read = read_table_log(tmp_path / "raw")
    assert read.schema == schema
    assert set(read.events[0].columns) == set(frame.columns)


def test_ready_histories_in_the_users_table_are_looked_for_there(folder: Path) -> None:
    describe(
        folder,
        features=[{"name": "kind", "role": "item"}],
        histories={"item_ids": "sequence", "length": "seen"},
    )
    assert "raw/users.csv: column 'sequence' is missing; known: country, user_id (histories in" in refused(folder)
    USERS.with_columns(sequence=pl.lit("001^002")).write_csv(folder / "users.csv")
    events().with_columns(seen=pl.lit(1)).write_csv(folder / "events.csv")
    raw = read_table_log(folder)
    assert "seen" in raw.events[0].columns
    assert raw.users is not None
    assert "sequence" in raw.users.columns


# With the whole preparation behind it.


def prepared(folder: Path, out: Path) -> StoredDataset:
    return prepare(read_table_log(folder), out)


def test_every_layout_prepares_to_the_same_dataset(folder: Path, tmp_path: Path) -> None:
    one = prepared(folder, tmp_path / "one")
    (folder / "events.csv").unlink()
    (folder / "log").mkdir()
    for part, ending in enumerate(["csv", "csv.gz", "csv.zst"]):
        write(events(20, first=20 * part), folder / "log" / f"{part}.{ending}")
    describe(folder, tables={"events": "log/*"})
    three = prepared(folder, tmp_path / "three")
    (folder / "items.csv").unlink()
    ITEMS.with_columns(pl.col("tags").str.split("|")).write_parquet(folder / "items.parquet")
    describe(folder, tables={"events": ["log/2.csv.zst", "log/0.csv", "log/1.csv.gz"]})
    lists = prepared(folder, tmp_path / "lists")
    for other in (three, lists):
        assert other.fingerprint == one.fingerprint


def test_what_was_written_prepares_to_the_same_dataset(folder: Path, tmp_path: Path) -> None:
    raw = read_table_log(folder)
    one = prepare(raw, tmp_path / "one")
    write_table_log(raw, tmp_path / "again")
    assert prepared(tmp_path / "again", tmp_path / "two").fingerprint == one.fingerprint


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text.replace("d1", '"d1', 1),
        lambda text: text + "u1,001,5,d1,0,9\n",
        lambda text: text + "u1,001,5,caf\udce9,0\n",
    ],
)
def test_nothing_is_left_of_a_log_that_breaks_while_it_is_read(
    folder: Path, tmp_path: Path, spoil: Callable[[str], str]
) -> None:
    text = spoil((folder / "events.csv").read_text())
    (folder / "events.csv").write_text(text, errors="surrogateescape")
    with pytest.raises(DataError, match=r"raw/events.csv, line \d+"):
        prepared(folder, tmp_path / "out")
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".csv.zst"])
def test_the_number_of_rows_of_a_csv_is_estimated_for_the_time_left(tmp_path: Path, ending: str) -> None:
    """Within a fifth for plain and gzipped files of a few megabytes; unknown for zstd."""
    table = pl.DataFrame({"n": range(400_000), "m": [f"{n * n % 977}" for n in range(400_000)]})
    path = tmp_path / f"t{ending}"
    if ending == ".csv":
        table.write_csv(path)
    else:
        table.write_csv(path, compression="gzip" if ending == ".csv.gz" else "zstd")
    found = open_files([path], Dialect())[0].rows()
    assert found is None if ending == ".csv.zst" else found == pytest.approx(400_000, rel=0.2)
