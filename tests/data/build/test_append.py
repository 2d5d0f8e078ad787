"""Appending: day by day gives what preparing at once gives, and a reader never sees half of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logs_by_day import DAY, SCHEMA, Row, days_of, every_day, raw_of
from snapshots import snapshot

from limerank.api.run import Run
from limerank.config import RunConfig, TrainConfig
from limerank.data.build import append as appending
from limerank.data.build.append import append
from limerank.data.build.prepare import prepare
from limerank.data.store import states
from limerank.data.store.dataset import StoredDataset
from limerank.errors import ConflictError, DataError
from limerank.progress import Progress
from limerank.schema import Histories
from limerank.splits import LastEvents, Part
from limerank.training.trainer import train

events_of_days = st.lists(
    st.tuples(
        st.sampled_from(["ann", "bob", "cyd"]),
        st.sampled_from(["p", "q", "r", "s"]),
        st.builds(lambda day, hour: day * DAY + hour * 3_600_000, st.integers(1, 11), st.integers(0, 5)),
        st.integers(0, 1),
    ),
    max_size=60,
)


def test_events_of_one_moment_keep_their_order(tmp_path: Path) -> None:
    """Whether an item is old or new to the dataset decides nothing: 'a' stands before 's' either way."""
    moments = [("s", 1), ("s", 10), ("a", 10), ("s", 11)]
    days = days_of(every_day([("ann", item, day * DAY, 1) for item, day in moments]))
    grown = prepare(raw_of(*days[:5]), tmp_path / "grown")
    for day in days[5:]:
        grown = append(grown.path, raw_of(day))
    assert grown.item_ids.to_list()[1:] == ["s", "thing", "a"]
    assert snapshot(grown) == snapshot(prepare(raw_of(*days), tmp_path / "once"))


@settings(max_examples=12, deadline=None)
@given(rows=events_of_days, first=st.integers(3, 10))
def test_day_by_day_is_at_once(tmp_path_factory: pytest.TempPathFactory, rows: list[Row], first: int) -> None:
    """Same requests, histories, features and parts; more days than segments are kept apart, so some are merged."""
    folder = tmp_path_factory.mktemp("grow")
    days = days_of(every_day(rows))
    at_once = prepare(raw_of(*days), folder / "once")
    dataset = prepare(raw_of(*days[:first]), folder / "grown")
    for day in days[first:]:
        dataset = append(dataset.path, raw_of(day))
    assert snapshot(dataset) == snapshot(at_once)
    assert snapshot(dataset, max_history=2) == snapshot(at_once, max_history=2)
    assert dataset.manifest.counts == at_once.manifest.counts
    assert len(dataset.segments) <= appending.MOST_SEGMENTS
    StoredDataset.open(dataset.path, check_hashes=True)


def test_merging_changes_nothing_but_the_number_of_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    days = days_of(every_day([("ann", "p", day * DAY + 7, 1) for day in range(1, 12)]))
    apart = prepare(raw_of(*days[:3]), tmp_path / "apart")
    for day in days[3:7]:
        apart = append(apart.path, raw_of(day))
    monkeypatch.setattr(appending, "MOST_SEGMENTS", 1)
    merged = prepare(raw_of(*days[:3]), tmp_path / "merged")
    for day in days[3:7]:
        merged = append(merged.path, raw_of(day))
    assert (len(apart.segments), len(merged.segments)) == (5, 1)
    assert snapshot(apart) == snapshot(merged)
    at_once = prepare(raw_of(*days[:7]), tmp_path / "once")
    for path in (at_once.segments[0] / "events").iterdir():  # the same users in the same order: the same columns
        name = f"events/{path.stem}"
        assert np.array_equal(merged.column(name), at_once.column(name)), name


def test_the_split_rule_is_applied_to_the_longer_log(tmp_path: Path) -> None:
    """Per user: what was the last event before is training now."""
    schema = SCHEMA.model_copy(update={"split": LastEvents()})
    days = days_of(every_day([]))
    dataset = prepare(raw_of(*days[:6], schema=schema), tmp_path / "d")
    before = [dataset.column("requests/part")[i] for i in range(6)]
    dataset = append(dataset.path, raw_of(days[6], schema=schema))
    assert before == [0, 0, 0, 0, 1, 2]
    assert dataset.column("requests/part").tolist() == [0, 0, 0, 0, 0, 1, 2]
    assert snapshot(dataset) == snapshot(prepare(raw_of(*days[:7], schema=schema), tmp_path / "once"))


def test_new_categories_stay_unknown_and_new_items_get_their_features(tmp_path: Path) -> None:
    days = days_of(every_day([("new", "late", 5 * DAY + 1, 1)]))
    dataset = append(prepare(raw_of(*days[:4]), tmp_path / "d").path, raw_of(days[4]))
    row = dataset.item_ids.to_list().index("late")
    assert dataset.item_table.indices[row].tolist() == [1, 1]  # neither the id nor the color was in training
    assert dataset.item_table.lists[0].take(pl.Series([row]).to_torch()).values.tolist()[1] >= 2  # 'x' was
    assert dataset.user_ids.to_list()[-1] == "new"


def test_a_new_day_may_leave_out_what_describes_known_items_and_users(tmp_path: Path) -> None:
    days = days_of(every_day([("ann", "p", 5 * DAY + 1, 1)]))
    complete = append(prepare(raw_of(*days[:4]), tmp_path / "a").path, raw_of(days[4].filter(pl.col("item_id") != "p")))
    bare = days[4].drop("color", "words", "country").filter(pl.col("item_id") != "p")
    assert snapshot(append(prepare(raw_of(*days[:4]), tmp_path / "b").path, raw_of(bare))) == snapshot(complete)


def test_earlier_events_another_schema_and_ready_made_histories_are_refused(tmp_path: Path) -> None:
    days = days_of(every_day([]))
    dataset = prepare(raw_of(*days[:4]), tmp_path / "d")
    for day in (days[3], days[0]):
        with pytest.raises(DataError, match="already reaches 1970-01-05 00:00:00; append only later events"):
            append(dataset.path, raw_of(day))
    with pytest.raises(DataError, match="another schema"):
        append(dataset.path, raw_of(days[4], schema=SCHEMA.model_copy(update={"max_history": 5})))
    assert StoredDataset.open(dataset.path, check_hashes=True).fingerprint == dataset.fingerprint
    schema = SCHEMA.model_copy(update={"histories": Histories(item_ids="past", events={"clicked": "past_click"})})
    past = [
        day.with_columns(past=pl.concat_list("item_id"), past_click=pl.concat_list(pl.lit("1"))) for day in days[:5]
    ]
    ready = prepare(raw_of(*past[:4], schema=schema), tmp_path / "ready")
    with pytest.raises(DataError, match="histories are ready-made"):
        append(ready.path, raw_of(past[4], schema=schema))


def test_a_dataset_that_drops_rare_items_takes_no_new_ones(tmp_path: Path) -> None:
    schema = SCHEMA.model_copy(update={"minimum_item_events": 2})
    days = days_of(every_day([("ann", "once", DAY + 1, 1), ("ann", "late", 5 * DAY + 1, 1)]))
    dataset = prepare(raw_of(*days[:4], schema=schema), tmp_path / "d")
    assert dataset.item_ids.to_list() == ["", "thing"]
    assert dataset.manifest.dropped == {"events": 1}
    dataset = append(dataset.path, raw_of(days[4], schema=schema))
    assert dataset.item_ids.to_list() == ["", "thing"]
    assert dataset.manifest.dropped == {"events": 2}


def test_a_run_stays_valid_when_its_dataset_grows(tmp_path: Path) -> None:
    days = days_of(every_day([("ann", "p", day * DAY + 7, (day + 1) % 2) for day in range(1, 8)]))
    dataset = prepare(raw_of(*days[:5]), tmp_path / "d")
    config = RunConfig(dataset=dataset.path, model={"name": "ttsn"}, train=TrainConfig(epochs=1), seed=1)
    train(config, tmp_path / "run", Progress(quiet=True))
    grown = append(dataset.path, raw_of(days[5]))
    assert grown.fingerprint != dataset.fingerprint
    opened = Run.open(tmp_path / "run")
    assert opened.dataset().fingerprint == grown.fingerprint
    prepare(raw_of(*days[:4]), tmp_path / "d", overwrite=True)
    with pytest.raises(DataError, match="is not that of run"):
        opened.dataset()


def test_a_reader_keeps_what_it_opened(tmp_path: Path) -> None:
    days = days_of(every_day([]))
    dataset = prepare(raw_of(*days[:4]), tmp_path / "d")
    append(dataset.path, raw_of(days[4]))
    append(dataset.path, raw_of(days[5]))
    assert len(dataset.column("events/item")) == 4
    assert len(dataset.requests_in(Part.TEST)) == 1


def test_one_append_at_a_time(tmp_path: Path) -> None:
    days = days_of(every_day([]))
    dataset = prepare(raw_of(*days[:4]), tmp_path / "d")
    with states.locked(dataset.path), pytest.raises(ConflictError, match="another process is appending"):
        append(dataset.path, raw_of(days[4]))


KILLED = """
import sys
from pathlib import Path
from limerank.data.build.append import append
from limerank.data.store.dataset import StoredDataset
from limerank.data.store.manifest import Manifest
from limerank.data.raw.log import EventFile, RawLog
import polars as pl
dataset = StoredDataset.open(Path(sys.argv[1]))
events = pl.read_parquet(sys.argv[2])
raw = RawLog(schema=dataset.schema, events=(EventFile.of_frame(events, "new"),), items=None, users=None, origin={})
print("ready", flush=True)
append(dataset.path, raw)
print("done", flush=True)
"""


def test_kill_9_in_the_middle_leaves_the_old_or_the_new_state(tmp_path: Path) -> None:
    """Killed after 0, 50, 100, ... milliseconds of work, until it is quick enough to finish."""
    users, items = 400, 50
    rows = [(f"u{n % users}", f"i{n % items}", (1 + n % 4) * DAY + n, n % 2) for n in range(8_000)]
    more = [(f"u{n % users}", f"i{n % items}", 5 * DAY + n, n % 2) for n in range(20_000)]
    days = days_of([*rows, *more])
    days[4].write_parquet(tmp_path / "new.parquet")
    dataset = prepare(raw_of(*days[:4]), tmp_path / "d")
    states = set()
    for attempt in range(20):
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(dataset.path), str(tmp_path / "new.parquet")],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "POLARS_MAX_THREADS": "1"},
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(attempt * 0.05)
        process.send_signal(signal.SIGKILL)
        finished = process.stdout.read() == "done\n"
        process.wait()
        process.stdout.close()
        found = StoredDataset.open(dataset.path, check_hashes=True)
        states.add(found.manifest.counts["events"])
        assert found.manifest.counts["events"] in (8_000, 28_000)
        if finished or found.manifest.counts["events"] == 28_000:
            break
    assert states == {8_000, 28_000}
    leftovers = [path.name for path in (dataset.path / "segments").iterdir() if "staging" in path.name]
    later = days_of([("u1", "i1", 6 * DAY, 1)])[5]
    assert append(dataset.path, replace(raw_of(later))).manifest.counts["events"] == 28_001
    assert not [path for path in (dataset.path / "segments").iterdir() if "staging" in path.name], leftovers


def test_parts_files_are_counted_as_numbers(tmp_path: Path) -> None:
    """After 9999 comes 10000, which is not older than 9993."""
    days = days_of(every_day([]))
    dataset = prepare(raw_of(*days[:4]), tmp_path / "d")
    for number in range(9992, 10_000):
        (dataset.path / "parts" / f"{number}.npy").write_bytes((dataset.path / "parts/0000.npy").read_bytes())
    dataset = append(dataset.path, raw_of(days[4]))
    assert dataset.manifest.parts == "parts/10000"
    assert len(dataset.requests_in(Part.TEST)) == 1


def test_every_state_that_was_ever_published_is_an_ancestor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appending, "MOST_SEGMENTS", 2)
    days = days_of(every_day([]))
    dataset = prepare(raw_of(*days[:4]), tmp_path / "d")
    published = [dataset.fingerprint]
    for day in days[4:8]:
        dataset = append(dataset.path, raw_of(day))
        published.append(dataset.fingerprint)
    assert [*dataset.manifest.grown_from, dataset.fingerprint] == published


def test_a_folder_that_is_no_dataset_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no dataset here"):
        append(tmp_path, raw_of(days_of(every_day([]))[0]))
    assert not list(tmp_path.iterdir())
