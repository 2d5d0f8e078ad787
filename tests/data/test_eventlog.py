"""The event log: every event once, history strictly before the request, the same log whatever the order of rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limerank.data.batches import Position, RequestLoader
from limerank.data.eventlog import EventLog
from limerank.data.prepare import prepare
from limerank.data.ranges import expand_ranges
from limerank.data.raw import EventFile, RawLog
from limerank.data.sources.simulated import SimulatedConfig, simulate
from limerank.data.sources.table import read_table_log, write_table_log
from limerank.data.splits import Part
from limerank.errors import ConflictError, DataError
from limerank.protocols import GlobalTime
from limerank.schema import UNKNOWN_INDEX, Feature, Kind, Role, Schema, Task


def tiny_log(rows: list[tuple[str, str, int, int]]) -> RawLog:
    """A log of (user, item, time, click) rows."""
    events = pl.DataFrame(rows, schema=["user_id", "item_id", "time", "click"], orient="row")
    return RawLog(
        schema=Schema(
            features=(
                Feature(name="item_id", role=Role.ITEM),
                Feature(name="clicked", role=Role.EVENT, column="click"),
            ),
            tasks=(Task(name="click"),),
            split=GlobalTime(validation_fraction=0.2, test_fraction=0.2),
        ),
        events=(EventFile.of_frame(events, "events"),),
        items=None,
        users=None,
        origin={"source": "test"},
    )


def test_every_event_is_stored_once(log: EventLog, raw_log: RawLog) -> None:
    """Every column has one entry per event, and the parts together point at each event exactly once."""
    height = raw_log.collect_events().height
    columns = sorted(path.stem for path in (log.segments[0] / "events").iterdir())
    assert len(columns) == 10
    for name in columns:
        assert len(log.column(f"events/{name}")) == height
    loaders = [RequestLoader(log, part, batch_requests=8, max_history=5) for part in Part]
    rows = np.concatenate([loader.candidate_rows(loader.requests) for loader in loaders])
    assert sorted(rows.tolist()) == list(range(height))


@settings(max_examples=30, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(["x", "y", "z"]), st.integers(0, 12), st.integers(0, 1)),
        min_size=12,
        max_size=60,
    ),
    max_history=st.integers(1, 8),
)
def test_history_is_strictly_earlier_and_complete(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str, int, int]], max_history: int
) -> None:
    """The history of a request is exactly that user's events with a smaller time, the most recent ones kept."""
    rows = [*rows, ("a", "x", 100, 0), ("a", "x", 200, 1), ("a", "x", 300, 1), ("a", "x", 400, 0), ("a", "x", 500, 0)]
    log = prepare(tiny_log(rows), tmp_path_factory.mktemp("log") / "d")
    user, time = log.column("requests/user"), log.column("events/time")
    start = log.column("requests/start").astype(np.int64)
    user_of_row = np.repeat(np.arange(log.manifest.counts["users"]), np.diff(log.column("requests/user_offsets")))
    for part in Part:
        loader = RequestLoader(log, part, batch_requests=4, max_history=max_history)
        for requests in loader.plan():
            inputs = loader.user_inputs(requests)
            for place, request in enumerate(requests):
                moment = time[start[request]]
                earlier = np.flatnonzero((user_of_row == user[request]) & (time < moment))[-max_history:]
                history = inputs.history
                inside = slice(int(history.offsets[place]), int(history.offsets[place + 1]))
                assert inside.stop - inside.start == len(earlier)
                clicked = log.column("events/event.clicked")[earlier]
                assert history.events.indices[inside, 0].tolist() == clicked.tolist()
                items = log.item_table.indices[log.column("events/item")[earlier].astype(np.int64), 0]
                stored = history.items.indices[history.item_of_event[inside], 0]
                assert stored.tolist() == items.tolist()


def test_order_of_input_rows_does_not_matter(raw_log: RawLog, log: EventLog, tmp_path: Path) -> None:
    assert raw_log.items is not None
    assert raw_log.users is not None
    events = raw_log.collect_events().sample(fraction=1, shuffle=True, seed=1)
    shuffled = replace(
        raw_log,
        events=tuple(EventFile.of_frame(part, "part") for part in events.iter_slices(300)),
        items=raw_log.items.sample(fraction=1, shuffle=True, seed=2),
        users=raw_log.users.sample(fraction=1, shuffle=True, seed=3),
    )
    assert prepare(shuffled, tmp_path / "d").fingerprint == log.fingerprint


def test_raw_tables_on_disk_give_the_same_dataset(raw_log: RawLog, log: EventLog, tmp_path: Path) -> None:
    write_table_log(raw_log, tmp_path / "raw")
    assert prepare(read_table_log(tmp_path / "raw"), tmp_path / "d").fingerprint == log.fingerprint


def test_vocabularies_come_from_training_rows_only(tmp_path: Path) -> None:
    """An item, a category and a user that occur only after the training part are unknown, not memorized."""
    rows = [("a", "x", t, t % 2) for t in range(10)] + [("new", "late", 20 + t, 0) for t in range(5)]
    log = prepare(tiny_log(rows), tmp_path / "d")
    (item,) = log.encoders.item
    assert item.vocabulary == ("x",)
    late = log.item_ids.to_list().index("late")
    assert int(log.item_table.indices[late, 0]) == UNKNOWN_INDEX


def test_parts_are_ordered_in_time(log: EventLog) -> None:
    start = log.column("requests/start").astype(np.int64)[:-1]
    moment = log.column("events/time")[start]
    bounds = [(moment[log.requests_in(part)].min(), moment[log.requests_in(part)].max()) for part in Part]
    assert bounds[0][1] < bounds[1][0] <= bounds[1][1] < bounds[2][0]


def test_the_store_uses_narrow_columns_and_is_refused_when_damaged(raw_log: RawLog, tmp_path: Path) -> None:
    log = prepare(raw_log, tmp_path / "d")
    assert log.column("events/label.click").dtype == np.uint8
    assert log.column("events/item").dtype == np.uint8  # 200 items
    column = log.segments[0] / "events" / "item.npy"
    content = column.read_bytes()
    column.write_bytes(content[:-1])
    with pytest.raises(DataError, match="events/item.npy: has .* bytes, should have"):
        EventLog.open(tmp_path / "d")
    column.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DataError, match="item.npy: content does not match"):
        EventLog.open(tmp_path / "d", check_hashes=True)
    column.unlink()
    with pytest.raises(DataError, match="item.npy: missing"):
        EventLog.open(tmp_path / "d")


def test_an_existing_dataset_is_kept_unless_overwrite(raw_log: RawLog, tmp_path: Path) -> None:
    prepare(raw_log, tmp_path / "d")
    with pytest.raises(ConflictError, match="exists already"):
        prepare(raw_log, tmp_path / "d")
    prepare(raw_log, tmp_path / "d", overwrite=True)
    assert [p.name for p in tmp_path.iterdir()] == ["d"]


def test_shuffling_depends_on_seed_and_pass_only(log: EventLog) -> None:
    def plans(seed: int) -> list[list[int]]:
        loader = RequestLoader(log, Part.TRAIN, batch_requests=7, max_history=5, seed=seed)
        plans = []
        for number in range(2):
            loader.position = Position(passes=number)
            plans.append(np.concatenate(loader.plan()).tolist())
        return plans

    first, second = plans(1)
    assert plans(1) == [first, second]
    assert first != second
    assert plans(2)[0] != first
    assert sorted(first) == log.requests_in(Part.TRAIN).tolist()


def test_a_batch_holds_each_distinct_item_once(log: EventLog) -> None:
    loader = RequestLoader(log, Part.TRAIN, batch_requests=16, max_history=20)
    batch = next(iter(loader))
    for items in (batch.inputs.history.items, batch.candidates.items):
        assert len(set(items.indices[:, 0].tolist())) >= len(items) - 1  # several unseen items share 'unknown'
    assert len(batch.candidates.item_of_candidate) == len(batch.labels) > len(batch.inputs)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), min_size=1, max_size=20))
def test_expand_ranges(pairs: list[tuple[int, int]]) -> None:
    start = np.array([a for a, _ in pairs])
    end = start + np.array([n for _, n in pairs])
    rows, offsets = expand_ranges(start, end)
    assert rows.tolist() == [value for a, n in pairs for value in range(a, a + n)]
    assert offsets.tolist() == [0, *np.cumsum(end - start).tolist()]


def test_a_simulation_with_more_topics_than_items_still_prepares(tmp_path: Path) -> None:
    log = prepare(simulate(SimulatedConfig(users=20, items=5, topics=9, sessions=6, slots=4)), tmp_path / "d")
    assert log.manifest.counts["items"] == 6


def test_multi_valued_lists_are_kept_jagged(log: EventLog, raw_log: RawLog) -> None:
    (tags,) = log.item_table.lists
    assert raw_log.items is not None
    lengths = raw_log.items.sort("item_id")["tags"].list.len().to_list()
    assert tags.offsets.diff().tolist() == [0, *lengths]
    assert [f.name for f in log.schema.with_role(Role.ITEM) if f.kind is Kind.MULTI_VALUED] == ["tags"]


def test_another_request_of_the_same_moment_is_not_history(tmp_path: Path) -> None:
    """Two requests of one user at one time: neither sees what happened in the other."""
    rows = [("a", f"i{t}", t, 1) for t in range(10)] + [("a", "x", 20, 1), ("a", "y", 20, 1)]
    base = tiny_log(rows)
    events = base.collect_events().with_columns(request=pl.int_range(pl.len()))
    raw = replace(
        base,
        schema=base.schema.model_copy(update={"request_id": "request"}),
        events=(EventFile.of_frame(events, "events"),),
    )
    log = prepare(raw, tmp_path / "d")
    assert log.manifest.counts["requests"] == 12
    loader = RequestLoader(log, Part.TEST, batch_requests=8, max_history=50)
    assert loader.history_lengths(np.array([10, 11])).tolist() == [10, 10]
