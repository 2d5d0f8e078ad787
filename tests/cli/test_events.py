"""`limerank events`: from a shell, beside engines that run elsewhere."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from calling import answer, limerank, refusal

from limerank.serve.engine import Engine
from limerank.serve.histories.file import FILE, FOLDER

LATER = 1_790_000_000_000


@pytest.fixture
def shop(store: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(store, tmp_path / "store"))


def table(**columns: Any) -> pl.DataFrame:
    given = {
        "user_id": ["u1", "u1", "7"],
        "item_id": ["i3", "i4", "i5"],
        "time": [LATER, LATER + 1, LATER + 2],
        "clicked": [1, None, 0],
        "watched_fraction": [0.5, 1.0, None],
        "type": ["click", None, "buy"],
        "value": [None, None, 9.5],
        "in_history": [True, True, True],
    }
    return pl.DataFrame({**given, **columns})


def write(frame: pl.DataFrame, file: Path) -> Path:
    if file.suffix == ".csv":
        frame.write_csv(file)
    elif file.suffix == ".parquet":
        frame.write_parquet(file)
    else:
        frame.write_ndjson(file)
    return file


@pytest.mark.parametrize("ending", ["csv", "parquet", "jsonl"])
def test_events_go_in_and_out(shop: Path, tmp_path: Path, ending: str) -> None:
    """Every format; an engine that is open sees each step; what goes out comes in again as what is there already."""
    with Engine.open(shop) as engine:
        before = engine.answer("u1").history_as_of
        file = write(table(), tmp_path / f"events.{ending}")
        added = answer("events", "import", shop, "--file", file)
        assert added == {"events": 3, "accepted": 3, "duplicates": 0, "forgotten": 0}
        assert before != engine.answer("u1").history_as_of == LATER + 1
        assert engine.answer("7").known_user
        shown = answer("events", "show", shop, "--user", "u1")
        assert shown["events_stored"] == 2
        features = [{"watched_fraction": 1.0}, {"clicked": 1, "watched_fraction": 0.5}]
        if ending == "csv":  # in which everything is text, as in a log
            features = [{name: str(value) for name, value in one.items()} for one in features]  # type: ignore[misc]
        assert [one["features"] for one in shown["events"]] == features
        assert shown["events"][0]["time"].startswith("2026-09-21T")
        assert "clicked=1, watched_fraction=0.5" in limerank("events", "show", shop, "--user", "u1").stdout
        out = tmp_path / f"again.{ending}"
        told = answer("events", "export", shop, "--out", out)
        assert told["events"] == 3
        assert told["columns"][:4] == ["user_id", "item_id", "time", "type"]
        assert told["columns"][-2:] == ["clicked", "watched_fraction"]
        assert answer("events", "import", shop, "--file", out)["duplicates"] == 3
        assert "exists already" in refusal(5, "events", "export", shop, "--out", out)
        assert answer("events", "export", shop, "--out", out, "--overwrite", "--since", str(LATER + 2))["events"] == 1
        assert answer("events", "status", shop, "--verify")["events"] == 3
        erased = answer("events", "erase", shop, "--user", "u1")
        assert erased["deleted"] == {"events": 2, "rankings": 0}
        assert erased["hidden"] == {engine.bundle.manifest.id: 20}
        assert not engine.answer("u1").known_user
        assert answer("events", "show", shop, "--user", "u1")["erased_at"] == erased["erased_at"]
        assert "erased on" in limerank("events", "show", shop, "--user", "u1").stdout
        late = answer("events", "import", shop, "--file", file)
        assert (late["accepted"], late["duplicates"], late["forgotten"]) == (0, 1, 2)
        assert answer("events", "compact", shop)["bytes"] > 0
        assert "1 events of 1 users" in limerank("events", "status", shop).stdout
        assert b"u1" not in (shop / FOLDER / FILE).read_bytes()


def test_times_of_every_kind(shop: Path, tmp_path: Path) -> None:
    """Milliseconds, texts with and without a zone, and columns of dates and times say the same."""
    time = datetime(2026, 9, 21, 14, 13, 20, tzinfo=UTC)
    for number, times in enumerate(
        ([LATER] * 3, ["2026-09-21T14:13:20Z"] * 3, ["2026-09-21 14:13:20"] * 3, [time] * 3, [str(LATER)] * 3)
    ):
        added = answer("events", "import", shop, "--file", write(table(time=times), tmp_path / f"{number}.parquet"))
        assert added["duplicates"] == (0 if number == 0 else 3)


@pytest.mark.parametrize(
    ("columns", "code", "said"),
    [
        ({"time": ["soon"] * 3}, 3, "row 1: 'soon' is not a time"),
        ({"time": [LATER, LATER // 1000, LATER]}, 2, "row 2.time: 1790000000: is not in milliseconds"),
        ({"user_id": ["u1", None, "u2"]}, 3, "row 2: no user_id"),
        ({"position": ["1", "2", "first"]}, 3, "column 'position': must hold values of type Int64"),
        ({"watched_fraction": ["0.1", "0.2", "much"]}, 2, "row 3.features.watched_fraction: "),
        ({"clickd": [1, 1, 1]}, 2, "row 1.features: no event feature 'clickd'; did you mean 'clicked'?"),
    ],
)
def test_a_file_that_cannot_be_is_refused_as_a_whole(
    shop: Path, tmp_path: Path, columns: dict[str, Any], code: int, said: str
) -> None:
    file = write(table(**columns), tmp_path / "events.parquet")
    assert f"--file {file}, {said}" in refusal(code, "events", "import", shop, "--file", file)
    assert not (shop / FOLDER).exists()


def test_what_is_not_there(shop: Path, tmp_path: Path) -> None:
    """A store without events is none of an error, a folder without a store is."""
    assert answer("events", "status", shop)["events"] == 0
    assert answer("events", "show", shop, "--user", "u1")["events"] == []
    assert answer("events", "export", shop, "--out", tmp_path / "none.csv")["events"] == 0
    assert not (shop / FOLDER).exists()
    assert "must end with one of" in refusal(2, "events", "export", shop, "--out", tmp_path / "none.txt")
    assert "no bundle store here" in refusal(4, "events", "status", tmp_path)
    file = write(table().drop("time"), tmp_path / "events.csv")
    assert "no column 'time'" in refusal(3, "events", "import", shop, "--file", file)
