"""The example of docs/explanation/how-a-value-travels.md, made by the code it describes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from limerank.data.build.append import append
from limerank.data.build.builder import Rows, SegmentBuilder, read_log
from limerank.data.build.prepare import NO_ROWS, prepare
from limerank.data.raw.log import EventFile, RawLog
from limerank.data.store.column_files import map_column
from limerank.data.store.dataset import StoredDataset
from limerank.progress import Progress
from limerank.schema import Feature, Role, Schema, Task
from limerank.splits import ByColumn, Part

PAGE = (Path(__file__).parents[3] / "docs" / "explanation" / "how-a-value-travels.md").read_text()
SCHEMA = Schema(
    features=(Feature(name="item_id", role=Role.ITEM), Feature(name="action", role=Role.EVENT)),
    tasks=(Task(name="click"),),
    split=ByColumn(column="part", select_on_test=True),
)
EVENTS = pl.DataFrame(
    [
        ("bob", "tea", 3, "see", "train"),
        ("ann", "jam", 1, "buy", "train"),
        ("ann", "tea", 2, None, "train"),
        ("bob", "oil", 4, "cart", "test"),
        ("ann", "oil", 5, "see", "test"),
    ],
    schema=["user_id", "item_id", "time", "action", "part"],
    orient="row",
)
COLUMNS = ("user", "item", "time", "event.action")


def raw_of(events: pl.DataFrame) -> RawLog:
    file = EventFile.of_frame(events.with_columns(click=pl.lit(0)), "events.csv")
    return RawLog(schema=SCHEMA, events=(file,), items=None, users=None, origin={"source": "test"})


def shown(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table as the page writes it."""
    lines = [names, ["---"] * len(names), *([("" if v is None else v) for v in row] for row in rows)]
    return "\n".join("|" + "|".join(str(v) if v == "---" else f" {v} " for v in line) + "|" for line in lines) + "\n"


def columns_of(folder: Path, action: str, user_offsets: np.ndarray) -> Iterable[Sequence[Any]]:
    """User, item, time and action of the sorted events."""
    names = ("events/item", "events/time", action)
    user = np.repeat(np.arange(len(user_offsets) - 1), np.diff(user_offsets.astype(int)))
    return zip(user, *(map_column(folder / f"{name}.npy") for name in names), strict=True)


def test_codes_ranks_and_indices_are_those_of_the_page(tmp_path: Path) -> None:
    scratch, folder, quiet = tmp_path / "scratch", tmp_path / "segment", Progress(quiet=True)
    scratch.mkdir()
    assert shown(EVENTS.columns, EVENTS.rows()) in PAGE
    intake, items, users = read_log(raw_of(EVENTS), scratch, quiet)
    spill = pl.read_ipc(intake.spills[0])
    assert shown(COLUMNS, spill.select(COLUMNS).rows()) in PAGE
    assert intake.spills[0].name == "spill-000000.arrow"
    assert spill.schema["event.action"] == pl.UInt32
    ids = {"items": intake.items.ordered()[0], "users": intake.users.ordered()[0]}
    rows = Rows(items.of(ids["items"]), NO_ROWS), Rows(users.of(ids["users"]), NO_ROWS)
    builder = SegmentBuilder(intake, *rows, folder, quiet)
    assert ids["users"].to_list() == ["ann", "bob"]
    assert ids["items"].to_list() == ["jam", "oil", "tea"]
    assert intake.dictionaries["event.action"].ordered()[0].to_list() == ["buy", "cart", "see"]
    assert shown(COLUMNS, columns_of(folder, "raw/event.action", builder.events.user_offsets)) in PAGE
    assert map_column(folder / "raw/event.action.npy").dtype == np.uint32
    parts = np.where(builder.requests().named == Part.TRAIN.code, Part.TRAIN.code, Part.TEST.code).astype(np.uint8)
    encoders = builder.fit(parts)
    assert encoders.event[0].vocabulary == ("buy", "see")
    assert encoders.item[0].vocabulary == ("jam", "tea")
    builder.write(encoders, "segments/0000")
    assert shown(COLUMNS, columns_of(folder, "events/event.action", builder.events.user_offsets)) in PAGE
    assert map_column(folder / "events/event.action.npy").dtype == np.uint8
    assert not (folder / "raw").exists()


@pytest.fixture
def dataset(tmp_path: Path) -> StoredDataset:
    return prepare(raw_of(EVENTS), tmp_path / "d")


def table_of(dataset: StoredDataset) -> list[tuple[int, str, int]]:
    ids, indices = dataset.item_ids.to_list(), dataset.item_table.indices[:, 0].tolist()
    return list(zip(range(len(ids)), ids, indices, strict=True))


def test_the_item_table_is_that_of_the_page_and_grows_behind(dataset: StoredDataset) -> None:
    names = ("row", "id", "item_id")
    assert shown(names, table_of(dataset)) in PAGE
    assert dataset.column("events/event.action").tolist() == [2, 1, 3, 3, 1]
    later = pl.DataFrame([("ann", "fig", 6, "buy", "test")], schema=EVENTS.schema, orient="row")
    grown = append(dataset.path, raw_of(later))
    assert shown(names, table_of(grown)[4:]) in PAGE
    assert grown.item_ids[4] == "fig"


def test_the_order_of_arrival_does_not_matter(dataset: StoredDataset, tmp_path: Path) -> None:
    assert prepare(raw_of(EVENTS[::-1]), tmp_path / "turned").fingerprint == dataset.fingerprint
