"""The event log: every event once, history strictly before the request, the same log whatever the order of rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limerank.data.batches import Position, RequestLoader
from limerank.data.build.prepare import prepare
from limerank.data.raw.log import EventFile, RawLog
from limerank.data.sources.simulated import SimulatedConfig, simulate
from limerank.data.sources.table.read import read_table_log, write_table_log
from limerank.data.store.dataset import StoredDataset
from limerank.data.store.ranges import expand_ranges
from limerank.errors import ConflictError, DataError
from limerank.schema import UNKNOWN_INDEX, Feature, Kind, Role, Schema, Task
from limerank.splits import GlobalTime, Part


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


def test_every_event_is_stored_once(dataset: StoredDataset, raw_log: RawLog) -> None:
    """Every column has one entry per event, and the parts together point at each event exactly once."""
    height = raw_log.collect_events().height
    columns = sorted(path.stem for path in (dataset.segments[0] / "events").iterdir())
    assert len(columns) == 10
    for name in columns:
        assert len(dataset.column(f"events/{name}")) == height
    loaders = [RequestLoader(dataset, part, batch_requests=8, max_history=5) for part in Part]
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
    dataset = prepare(tiny_log(rows), tmp_path_factory.mktemp("log") / "d")
    user, time = dataset.column("requests/user"), dataset.column("events/time")
    start = dataset.column("requests/start").astype(np.int64)
    user_of_row = np.repeat(
        np.arange(dataset.manifest.table_rows["users"]), np.diff(dataset.column("requests/user_offsets"))
    )
    for part in Part:
        loader = RequestLoader(dataset, part, batch_requests=4, max_history=max_history)
        for requests in loader.plan():
            inputs = loader.user_inputs(requests)
            for place, request in enumerate(requests):
                moment = time[start[request]]
                earlier = np.flatnonzero((user_of_row == user[request]) & (time < moment))[-max_history:]
                history = inputs.history
                inside = slice(int(history.offsets[place]), int(history.offsets[place + 1]))
                assert inside.stop - inside.start == len(earlier)
                clicked = dataset.column("events/event.clicked")[earlier]
                assert history.events.indices[inside, 0].tolist() == clicked.tolist()
                items = dataset.item_table.indices[dataset.column("events/item")[earlier].astype(np.int64), 0]
                stored = history.items.indices[history.item_of_event[inside], 0]
                assert stored.tolist() == items.tolist()


def test_order_of_input_rows_does_not_matter(raw_log: RawLog, dataset: StoredDataset, tmp_path: Path) -> None:
    assert raw_log.items is not None
    assert raw_log.users is not None
    events = raw_log.collect_events().sample(fraction=1, shuffle=True, seed=1)
    shuffled = replace(
        raw_log,
        events=tuple(EventFile.of_frame(part, "part") for part in events.iter_slices(300)),
        items=raw_log.items.sample(fraction=1, shuffle=True, seed=2),
        users=raw_log.users.sample(fraction=1, shuffle=True, seed=3),
    )
    assert prepare(shuffled, tmp_path / "d").fingerprint == dataset.fingerprint


def test_raw_tables_on_disk_give_the_same_dataset(raw_log: RawLog, dataset: StoredDataset, tmp_path: Path) -> None:
    write_table_log(raw_log, tmp_path / "raw")
    assert prepare(read_table_log(tmp_path / "raw"), tmp_path / "d").fingerprint == dataset.fingerprint


def test_vocabularies_come_from_training_rows_only(tmp_path: Path) -> None:
    """An item, a category and a user that occur only after the training part are unknown, not memorized."""
    rows = [("a", "x", t, t % 2) for t in range(10)] + [("new", "late", 20 + t, 0) for t in range(5)]
    dataset = prepare(tiny_log(rows), tmp_path / "d")
    (item,) = dataset.encoders.item
    assert item.vocabulary == ("x",)
    late = dataset.item_ids.to_list().index("late")
    assert int(dataset.item_table.indices[late, 0]) == UNKNOWN_INDEX


def test_parts_are_ordered_in_time(dataset: StoredDataset) -> None:
    start = dataset.column("requests/start").astype(np.int64)[:-1]
    moment = dataset.column("events/time")[start]
    bounds = [(moment[dataset.requests_in(part)].min(), moment[dataset.requests_in(part)].max()) for part in Part]
    assert bounds[0][1] < bounds[1][0] <= bounds[1][1] < bounds[2][0]


def test_the_store_uses_narrow_columns_and_is_refused_when_damaged(raw_log: RawLog, tmp_path: Path) -> None:
    dataset = prepare(raw_log, tmp_path / "d")
    assert dataset.column("events/label.click").dtype == np.uint8
    assert dataset.column("events/item").dtype == np.uint8  # 200 items
    column = dataset.segments[0] / "events" / "item.npy"
    content = column.read_bytes()
    column.write_bytes(content[:-1])
    with pytest.raises(DataError, match="events/item.npy: has .* bytes, should have"):
        StoredDataset.open(tmp_path / "d")
    column.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DataError, match="item.npy: content does not match"):
        StoredDataset.open(tmp_path / "d", check_hashes=True)
    column.unlink()
    with pytest.raises(DataError, match="item.npy: missing"):
        StoredDataset.open(tmp_path / "d")


def test_an_existing_dataset_is_kept_unless_overwrite(raw_log: RawLog, tmp_path: Path) -> None:
    prepare(raw_log, tmp_path / "d")
    with pytest.raises(ConflictError, match="exists already"):
        prepare(raw_log, tmp_path / "d")
    prepare(raw_log, tmp_path / "d", overwrite=True)
    assert [p.name for p in tmp_path.iterdir()] == ["d"]


def test_shuffling_depends_on_seed_and_pass_only(dataset: StoredDataset) -> None:
    def plans(seed: int) -> list[list[int]]:
        loader = RequestLoader(dataset, Part.TRAIN, batch_requests=7, max_history=5, seed=seed)
        plans = []
        for number in range(2):
            loader.position = Position(passes=number)
            plans.append(np.concatenate(loader.plan()).tolist())
        return plans

    first, second = plans(1)
    assert plans(1) == [first, second]
    assert first != second
    assert plans(2)[0] != first
    assert sorted(first) == dataset.requests_in(Part.TRAIN).tolist()


def test_a_batch_holds_each_distinct_item_once(dataset: StoredDataset) -> None:
    loader = RequestLoader(dataset, Part.TRAIN, batch_requests=16, max_history=20)
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
    dataset = prepare(simulate(SimulatedConfig(users=20, items=5, topics=9, sessions=6, slots=4)), tmp_path / "d")
    assert dataset.manifest.counts["items"] == 5
    assert dataset.manifest.table_rows["items"] == len(dataset.item_table) == 6, "the unknown item has a row too"


def test_multi_valued_lists_are_kept_jagged(dataset: StoredDataset, raw_log: RawLog) -> None:
    (tags,) = dataset.item_table.lists
    assert raw_log.items is not None
    lengths = raw_log.items.sort("item_id")["tags"].list.len().to_list()
    assert tags.offsets.diff().tolist() == [0, *lengths]
    assert [f.name for f in dataset.schema.with_role(Role.ITEM) if f.kind is Kind.MULTI_VALUED] == ["tags"]


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
    dataset = prepare(raw, tmp_path / "d")
    assert dataset.manifest.counts["requests"] == 12
    loader = RequestLoader(dataset, Part.TEST, batch_requests=8, max_history=50)
    assert loader.history_lengths(np.array([10, 11])).tolist() == [10, 10]


def raw_of(
    events: pl.DataFrame, items: pl.DataFrame | None = None, users: pl.DataFrame | None = None, **schema: Any
) -> RawLog:
    """A log of any columns; by default split by time with plenty of both sides."""
    values: dict[str, Any] = {
        "features": (Feature(name="item_id", role=Role.ITEM),),
        "tasks": (Task(name="click"),),
        "split": GlobalTime(validation_fraction=0.2, test_fraction=0.2),
    }
    files = (EventFile.of_frame(events, "events"),)
    return RawLog(schema=Schema(**(values | schema)), events=files, items=items, users=users, origin={"source": "test"})


def rows(count: int, **columns: Any) -> pl.DataFrame:
    base: dict[str, Any] = {
        "user_id": [f"u{n % 3}" for n in range(count)],
        "item_id": [f"i{n % 5}" for n in range(count)],
        "time": range(count),
        "click": [n % 2 for n in range(count)],
    }
    return pl.DataFrame(base | columns)


def test_event_and_context_encoders_see_training_rows_only(tmp_path: Path) -> None:
    """The last rows say other words and larger numbers; neither a vocabulary nor a bucket knows of them."""
    late = [n >= 24 for n in range(40)]
    events = rows(
        40,
        word=["late" if x else "early" for x in late],
        number=[1000.0 if x else float(n) for n, x in enumerate(late)],
        place=["late" if x else "early" for x in late],
        request=[f"r{n}" for n in range(40)],
    )
    features = (
        Feature(name="item_id", role=Role.ITEM),
        Feature(name="word", role=Role.EVENT),
        Feature(name="number", role=Role.EVENT, kind=Kind.CONTINUOUS, buckets=4),
        Feature(name="place", role=Role.CONTEXT),
    )
    dataset = prepare(raw_of(events, features=features), tmp_path / "d")
    word, number = dataset.encoders.event
    assert word.vocabulary == ("early",)
    assert max(number.boundaries) < 40
    assert dataset.encoders.context[0].vocabulary == ("early",)


def test_rare_users_are_counted_without_the_events_of_rare_items(tmp_path: Path) -> None:
    """'few' has three events, two of them with an item that is dropped: then only one is left, and he goes too."""
    events = pl.concat([rows(30), rows(3, user_id=["few"] * 3, item_id=["rare", "rare", "i1"], time=[30, 31, 32])])
    dataset = prepare(raw_of(events, minimum_item_events=3, minimum_user_events=2), tmp_path / "d")
    assert "few" not in dataset.user_ids.to_list()
    assert "rare" not in dataset.item_ids.to_list()
    assert dataset.manifest.dropped == {"events": 3}
    kept = prepare(raw_of(events, minimum_user_events=3), tmp_path / "all")
    assert "few" in kept.user_ids.to_list()


def test_a_request_whose_events_differ_in_time_is_one_request_at_its_first_moment(tmp_path: Path) -> None:
    """Impressions of one page are logged milliseconds apart: the second must not see what happened to the first."""
    events = rows(
        40,
        user_id=["u"] * 40,
        time=[1000 * (n // 2) + n % 2 for n in range(40)],
        page=[f"p{n // 2}" for n in range(40)],
    )
    dataset = prepare(raw_of(events, request_id="page"), tmp_path / "d")
    assert dataset.manifest.counts["requests"] == 20
    loader = RequestLoader(dataset, Part.TRAIN, batch_requests=1, max_history=100)
    assert loader.history_lengths(np.arange(20)).tolist() == [2 * n for n in range(20)]
    assert dataset.manifest.notes == [
        "20 requests have events of several times under one 'page'; the earliest counts for all of them"
    ]


@pytest.mark.parametrize("pages", [["a", "b"] * 20, [f"p{n % 10}" for n in range(40)]])
def test_requests_that_reach_into_each_other_are_refused(tmp_path: Path, pages: list[str]) -> None:
    """Two sessions side by side, or ids that are used again: neither names a moment."""
    events = rows(40, user_id=["u"] * 40, page=pages)
    with pytest.raises(
        DataError, match="requests begin while another of the same user still goes on.*leave request_id out"
    ):
        prepare(raw_of(events, request_id="page"), tmp_path / "d")


def test_requests_that_touch_are_refused_too(tmp_path: Path) -> None:
    """One ends in the moment the next begins: moved to its beginning, its last event would become history."""
    times = [n // 2 + n % 2 for n in range(40)]
    events = rows(40, user_id=["u"] * 40, time=times, page=[f"p{n // 2}" for n in range(40)])
    with pytest.raises(DataError, match="19 requests begin while another of the same user still goes on"):
        prepare(raw_of(events, request_id="page"), tmp_path / "d")


def test_features_may_be_called_anything(tmp_path: Path) -> None:
    """Names that the store uses itself: id, code, when, item, element, events, text, row."""
    names = ("id", "code", "when", "item", "element", "events", "text", "row", "user", "time")
    events = rows(40, **{f"c_{name}": [f"{name}{n % 5}" for n in range(40)] for name in names})
    in_table = events.select("item_id", "c_id", "c_text").unique("item_id")
    features = tuple(Feature(name=name, column=f"c_{name}", role=Role.ITEM) for name in names)
    dataset = prepare(raw_of(events, items=in_table, features=features), tmp_path / "d")
    assert dataset.item_ids.to_list() == ["", "i0", "i1", "i2", "i3", "i4"]
    for encoder in dataset.encoders.item:
        assert encoder.vocabulary == tuple(f"{encoder.name}{n}" for n in range(5))
    for ending in (".values", ".offsets"):
        with pytest.raises(ValueError, match="must not end in"):
            Feature(name=f"genres{ending}", role=Role.ITEM)


def test_an_open_dataset_is_never_mixed_with_one_that_took_its_place(tmp_path: Path) -> None:
    old = prepare(raw_of(rows(40)), tmp_path / "d")
    prepare(raw_of(rows(80)), tmp_path / "d", overwrite=True)
    with pytest.raises(DataError, match="was replaced while it was open; open it again"):
        old.column("events/item")
    assert len(StoredDataset.open(tmp_path / "d").column("events/item")) == 80


def test_a_missing_value_never_hides_a_known_one_of_the_same_moment(tmp_path: Path) -> None:
    events = rows(40, brand=[None if n < 20 else f"b{n % 5}" for n in range(40)], time=[n % 20 for n in range(40)])
    features = (Feature(name="brand", role=Role.ITEM),)
    dataset = prepare(raw_of(events, features=features), tmp_path / "d")
    assert dataset.encoders.item[0].vocabulary == ("b0", "b1", "b2", "b3", "b4")


def test_context_that_is_sometimes_missing_within_a_request_is_refused(tmp_path: Path) -> None:
    features = (Feature(name="item_id", role=Role.ITEM), Feature(name="speed", role=Role.CONTEXT, kind=Kind.CONTINUOUS))
    events = rows(40, user_id=["u"] * 40, time=[n // 2 for n in range(40)], speed=[None, 0.0] * 20)
    with pytest.raises(DataError, match="context column 'speed' differs within a request, in 20 rows"):
        prepare(raw_of(events, features=features), tmp_path / "d")


def test_vectors_may_be_missing_in_a_whole_file_but_not_differ_in_width(tmp_path: Path) -> None:
    features = (Feature(name="v", role=Role.ITEM, kind=Kind.VECTOR),)
    known = rows(30, v=[[1.0, float(n % 5)] for n in range(30)])
    none = rows(10, time=range(30, 40), v=pl.Series([None] * 10, dtype=pl.List(pl.Float64)))
    wide = rows(10, time=range(30, 40), item_id=["new"] * 10, v=[[1.0, 2.0, 3.0]] * 10)
    base = raw_of(known, features=features)
    files = (EventFile.of_frame(none, "none"), EventFile.of_frame(known, "known"))
    dataset = prepare(replace(base, events=files), tmp_path / "d")
    assert dataset.item_table.vectors[0][1:].tolist() == [[1.0, float(n)] for n in range(5)]
    files = (EventFile.of_frame(known, "known"), EventFile.of_frame(wide, "wide"))
    with pytest.raises(DataError, match="feature 'v': has vectors of width 2 and 3"):
        prepare(replace(base, events=files), tmp_path / "bad")
    with pytest.raises(DataError, match="feature 'v': no item or user has a vector"):
        prepare(
            replace(base, events=(EventFile.of_frame(none.with_columns(time=pl.int_range(pl.len())), "n"),)),
            tmp_path / "bad",
        )


def test_a_feature_that_changes_between_events_is_noted(tmp_path: Path) -> None:
    features = (Feature(name="price", role=Role.ITEM), Feature(name="item_id", role=Role.ITEM))
    dataset = prepare(raw_of(rows(40, price=[str(n % 2) for n in range(40)]), features=features), tmp_path / "d")
    assert dataset.manifest.notes == [
        "feature 'price' differs between events of one item for 5 of 5 items; the value of the first event counts"
    ]


def test_seconds_without_a_unit_are_asked_about(tmp_path: Path) -> None:
    events = rows(40, time=[1_700_000_000 + n for n in range(40)])
    with pytest.raises(DataError, match="milliseconds of 1970-01-20, or seconds of 2023-11-14 .* say time_unit: s"):
        prepare(raw_of(events), tmp_path / "d")
    assert prepare(raw_of(events, time_unit="s"), tmp_path / "s").manifest.last_time == 1_700_000_039_000
    assert prepare(raw_of(events, time_unit="ms"), tmp_path / "ms").manifest.last_time == 1_700_000_039
