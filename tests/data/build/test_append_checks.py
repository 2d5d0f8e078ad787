"""Appending checks first: what is refused changes nothing, and a dry run says the same as the real one."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from logs_by_day import DAY, SCHEMA, contents, days_of, every_day, raw_of

from limerank.data.build.append import add, append
from limerank.data.build.prepare import prepare
from limerank.data.raw.log import RawLog
from limerank.data.store import states
from limerank.data.store.dataset import StoredDataset
from limerank.errors import ConflictError, DataError, UnavailableError
from limerank.schema import UNKNOWN_INDEX
from limerank.splits import Days

NEW = [("new", "late", 5 * DAY + 1, 1), ("newer", "later", 5 * DAY + 2, 0)]
ITEMS = pl.DataFrame({"item_id": ["late", "later"], "color": ["thing-ish", "blue"], "words": [["x"], ["x"]]})
USERS = pl.DataFrame({"user_id": ["new", "newer"], "country": ["a", "a"]})


@pytest.fixture
def dataset(tmp_path: Path) -> StoredDataset:
    return prepare(raw_of(*days_of(every_day([]))[:4]), tmp_path / "d")


def bare_day(items: pl.DataFrame | None = None, users: pl.DataFrame | None = None) -> RawLog:
    """A day with two new items and two new users, described by tables or not at all."""
    day = days_of(every_day(NEW))[4].drop("color", "words", "country")
    return replace(raw_of(day), items=items, users=users, names={"items": "new.csv", "users": "who.csv"})


def refused(dataset: StoredDataset, raw: RawLog) -> str:
    """What appending and its rehearsal both say, leaving every byte as it is."""
    before = contents(dataset.path)
    said = []
    for dry_run in (False, True):
        with pytest.raises(DataError) as refusal:
            add(dataset.path, raw, dry_run=dry_run)
        said.append(str(refusal.value))
    assert contents(dataset.path) == before
    assert said[0] == said[1]
    return said[0]


def test_new_items_and_users_without_a_description_are_refused_before_anything_changes(dataset: StoredDataset) -> None:
    assert refused(dataset, bare_day()) == (
        "part 0: 2 of 2 new items without a description ('late', 'later'; nothing tells 'color', 'words') and "
        "2 of 2 new users without a description ('new', 'newer'; nothing tells 'country'); nothing was appended: "
        "describe them with --items FILE and --users FILE, "
        "or pass --allow-undescribed to take them in with unknown features"
    )
    said = refused(dataset, bare_day(items=ITEMS))
    assert "new items" not in said
    assert "describe them with --users FILE, or" in said
    grown = append(dataset.path, bare_day(items=ITEMS, users=USERS))
    color = grown.item_table.indices[:, 1]
    assert color[grown.item_ids.to_list().index("late")] == color[grown.item_ids.to_list().index("thing")]


def test_they_are_taken_in_with_unknown_features_when_that_is_allowed(dataset: StoredDataset) -> None:
    addition = add(dataset.path, bare_day(), allow_undescribed=True)
    assert [(one.what, len(one.undescribed), one.examples) for one in addition.newcomers] == [
        ("items", 2, ["late", "later"]),
        ("users", 2, ["new", "newer"]),
    ]
    assert any(
        note.startswith("2 of 2 new items") and note.endswith("taken in with unknown features")
        for note in addition.notes
    )
    grown = StoredDataset.open(dataset.path, check_hashes=True)
    assert grown.item_table.indices[-2:].tolist() == [[UNKNOWN_INDEX] * 2] * 2


def test_a_table_may_describe_some_none_or_not_everything(dataset: StoredDataset) -> None:
    some = refused(dataset, bare_day(items=ITEMS[:1], users=USERS))
    assert "1 of 2 new items without a description ('later'; new.csv has only 1 of them)" in some
    none = refused(dataset, bare_day(items=ITEMS[:0], users=USERS))
    assert "('late', 'later'; new.csv has no new items: are their ids written alike?)" in none
    others = refused(dataset, bare_day(items=ITEMS.with_columns(item_id=pl.Series(["p", "q"])), users=USERS))
    assert "2 of 4 new items without a description ('late', 'later'; new.csv has only 2 of them)" in others
    columns = refused(dataset, bare_day(items=ITEMS.drop("words"), users=USERS))
    assert "2 of 2 new items without a description ('late', 'later'; neither new.csv nor the events have" in columns
    assert "the events have 'words')" in columns


def test_many_ids_are_not_all_shown(dataset: StoredDataset) -> None:
    rows = [("always", f"late{n}", 5 * DAY + n, 1) for n in range(9)]
    day = days_of(rows)[4].drop("color")
    said = refused(dataset, raw_of(day))
    assert "9 of 9 new items without a description ('late0', 'late1', 'late2', 'late3', 'late4' ...; nothing" in said


def test_a_table_without_anything_new_is_noted(dataset: StoredDataset) -> None:
    known = ITEMS[:1].with_columns(item_id=pl.lit("thing"))
    day = days_of(every_day([]))[4].drop("color", "words", "country")
    addition = add(dataset.path, replace(raw_of(day), items=known, names={"items": "new.csv", "users": "users"}))
    assert addition.notes == ["new.csv: has no new items; items that the dataset knows keep their description"]


def test_what_the_events_tell_needs_no_table(dataset: StoredDataset) -> None:
    assert add(dataset.path, raw_of(days_of(every_day(NEW))[4])).notes == []


def test_a_split_that_does_not_fit_the_longer_log_leaves_nothing_behind(tmp_path: Path) -> None:
    """The day after a gap is the test part, and the validation day falls into the gap."""
    schema = SCHEMA.model_copy(update={"split": Days(validation_days=1, test_days=1)})
    days = days_of(every_day([]))
    dataset = prepare(raw_of(*days[:4], schema=schema), tmp_path / "d")
    assert "leaves no request in the validation" in refused(dataset, raw_of(days[8], schema=schema))


def test_events_of_several_times_in_one_request_are_noted(tmp_path: Path) -> None:
    schema = SCHEMA.model_copy(update={"request_id": "visit"})
    days = [day.with_columns(visit=pl.col("time") // DAY, hour=pl.lit(1)) for day in days_of(every_day([]))]
    twice = pl.concat([days[4], days[4].with_columns(time=pl.col("time") + 7)])
    dataset = prepare(raw_of(*days[:4], schema=schema), tmp_path / "d")
    (note,) = add(dataset.path, raw_of(twice, schema=schema)).notes
    assert note.startswith("1 requests have events of several times under one 'visit'")


def test_a_dry_run_says_what_the_real_one_does_and_writes_nothing(
    dataset: StoredDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even for a moment: a folder in which something comes and goes has another time."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    raw = raw_of(days_of(every_day(NEW))[4])
    before = {path: path.stat().st_mtime_ns for path in [dataset.path, *dataset.path.rglob("*")]}
    rehearsed = add(dataset.path, raw, dry_run=True)
    assert {path: path.stat().st_mtime_ns for path in [dataset.path, *dataset.path.rglob("*")]} == before
    assert not list(scratch.iterdir())
    added = add(dataset.path, raw)
    for name in ("events", "requests", "items", "users"):
        assert getattr(rehearsed.segment, name) == getattr(added.segment, name) > 0, name
    assert (
        (rehearsed.first_time, rehearsed.last_time) == (added.first_time, added.last_time) == (5 * DAY + 1, 5 * DAY + 5)
    )


def test_a_dry_run_waits_for_nobody_and_keeps_nobody_waiting(dataset: StoredDataset) -> None:
    days = days_of(every_day([]))
    append(dataset.path, raw_of(days[4]))
    with states.locked(dataset.path), pytest.raises(ConflictError, match="another process is appending"):
        add(dataset.path, raw_of(days[5]), dry_run=True)
    with states.locked(dataset.path, dry_run=True), (dataset.path / states.LOCK).open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


FULL = """
import resource, signal, sys
from pathlib import Path
from limerank.cli import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
sys.argv = ["limerank", "append", *sys.argv[2:]]
main()
"""


def append_within(limit: int, tmp_path: Path, *options: str) -> str:
    """What `limerank append` says when the kernel refuses every file beyond some bytes."""
    command = [sys.executable, "-c", FULL, str(limit), "d", "--events", "day.csv", *options]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == UnavailableError.exit_code, done.stderr
    return done.stderr


def test_no_room_names_the_place_and_leaves_nothing(tmp_path: Path) -> None:
    """A small log, whose manifest is the largest file: there is no room for it when all else is in its place."""
    dataset = prepare(replace(raw_of(*days_of(every_day([]))[:4]), origin={"source": "table"}), tmp_path / "d")
    days_of(every_day([]))[4].drop("words").write_csv(tmp_path / "day.csv")
    manifest = (dataset.path / "dataset.json").stat().st_size
    assert manifest > max(path.stat().st_size for path in (dataset.path / "segments").rglob("*"))
    assert "error: d: no room left on the device; nothing was kept" in append_within(manifest, tmp_path)
    assert [path.name for path in (dataset.path / "segments").iterdir()] == ["0000"]
    assert StoredDataset.open(dataset.path, check_hashes=True).fingerprint == dataset.fingerprint
    said = append_within(1_000, tmp_path, "--dry-run")
    assert f"error: {tmp_path}: no room left on the device" in said
    assert "name another place in TMPDIR" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d", "day.csv"]
