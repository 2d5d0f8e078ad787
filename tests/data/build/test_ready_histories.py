"""Histories that stand ready-made in the rows: read right, kept once each, whatever the order of rows."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limerank.data.batches import RequestLoader
from limerank.data.build.prepare import prepare
from limerank.data.new_rows import RowReader
from limerank.data.raw.log import EventFile, RawLog
from limerank.data.store.dataset import StoredDataset
from limerank.data.store.history import HistoryIndex
from limerank.errors import DataError
from limerank.schema import Feature, Histories, Kind, Role, Schema, Task
from limerank.splits import ByColumn, LastEvents, Part

SCHEMA = Schema(
    time=None,
    features=(
        Feature(name="item_id", role=Role.ITEM),
        Feature(name="kind", role=Role.ITEM),
        Feature(name="price", role=Role.ITEM, kind=Kind.CONTINUOUS, buckets=3),
        Feature(name="did", role=Role.EVENT),
        Feature(name="seconds", role=Role.EVENT, kind=Kind.CONTINUOUS, buckets=2),
        Feature(name="spot", role=Role.CONTEXT),
    ),
    tasks=(Task(name="click"),),
    split=ByColumn(column="part"),
    histories=Histories(items={"kind": "kinds"}, events={"did": "dids", "seconds": "times"}),
)


def raw_of(events: pl.DataFrame, schema: Schema = SCHEMA, users: pl.DataFrame | None = None) -> RawLog:
    return RawLog(
        schema=schema,
        events=(EventFile.of_frame(events, "rows.csv"),),
        items=None,
        users=users,
        origin={"source": "test"},
        names={"items": "items.csv", "users": "users.csv"},
    )


def row(user: str, item: str, history: list[str], part: str, spot: str = "top", click: int = 0) -> dict[str, Any]:
    return {
        "user_id": user,
        "item_id": item,
        "kind": f"k{item[-1]}",
        "price": float(len(item)),
        "spot": spot,
        "click": click,
        "part": part,
        "kinds": "^".join(history),
        "dids": "^".join("buy" if n % 2 else "see" for n in range(len(history))),
        "times": "^".join(str(n) for n in range(len(history))),
    }


ROWS = [
    row("ann", "i1", ["k1", "k2"], "train", click=1),
    row("ann", "i2", ["k1", "k2"], "train"),
    row("ann", "i3", ["k1", "k2"], "train", spot="side"),
    row("ann", "i3", ["k1", "k2", "k9"], "test"),
    row("bob", "i1", ["k1", "k2"], "train"),
    row("bob", "i22", [], "test", click=1),
    *(row("cyd", "i1", ["k2"] * n, "train", click=n % 2) for n in range(1, 9)),
]


def decoded(dataset: StoredDataset) -> list[Any]:
    """Each candidate with its history in words."""
    index = HistoryIndex(dataset)
    kind = [e.name for e in dataset.encoders.item].index("kind")
    found = []
    start = dataset.column("requests/start")
    for request in range(dataset.manifest.counts["requests"]):
        rows, _ = index.rows(np.array([request]), 10**6)
        kinds = [
            dataset.encoders.item[kind].decode(int(index.table.indices[int(i), kind])) for i in rows.take(index.item)
        ]
        dids = [dataset.encoders.event[0].decode(int(i)) for i in rows.take(index.events[0])]
        for event in range(int(start[request]), int(start[request + 1])):
            found.append(
                (
                    dataset.user_ids[int(dataset.column("requests/user")[request])],
                    dataset.item_ids[int(dataset.column("events/item")[event])],
                    tuple(zip(kinds, dids, strict=True)),
                    int(dataset.column("events/label.click")[event]),
                )
            )
    return sorted(found)


def expected(rows: list[dict[str, Any]]) -> list[Any]:
    def parts(text: str) -> list[str]:
        return text.split("^") if text else []

    return sorted(
        (r["user_id"], r["item_id"], tuple(zip(parts(r["kinds"]), parts(r["dids"]), strict=True)), r["click"])
        for r in rows
    )


def test_every_row_keeps_its_history_and_each_distinct_history_is_stored_once(tmp_path: Path) -> None:
    dataset = prepare(raw_of(pl.DataFrame(ROWS)), tmp_path / "d")
    words = {("k9", "see"): ("unknown", "see")}  # k9 is only in the test part
    assert decoded(dataset) == sorted((u, i, tuple(words.get(e, e) for e in h), c) for u, i, h, c in expected(ROWS))
    distinct = {(r["kinds"], r["dids"]) for r in ROWS}
    elements = sum(len(kinds.split("^")) for kinds, _ in distinct if kinds)
    assert len(dataset.column("histories/item")) == elements
    assert len(dataset.column("histories/item")) < sum(len(r["kinds"].split("^")) for r in ROWS if r["kinds"])


def test_a_request_is_one_user_history_context_and_part(tmp_path: Path) -> None:
    """ann's two rows at the top with the same history are candidates together; the one at the side is not."""
    dataset = prepare(raw_of(pl.DataFrame(ROWS)), tmp_path / "d")
    ann = dataset.user_ids.to_list().index("ann")
    sizes = np.diff(dataset.column("requests/start").astype(int))[dataset.column("requests/user") == ann]
    assert sorted(sizes.tolist()) == [1, 1, 2]


@settings(max_examples=15, deadline=None)
@given(
    order=st.permutations(range(len(ROWS))),
    cuts=st.lists(st.integers(1, len(ROWS) - 1), max_size=3, unique=True),
)
def test_order_and_batches_of_rows_do_not_matter(
    tmp_path_factory: pytest.TempPathFactory, order: list[int], cuts: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("ready")
    events = pl.DataFrame(ROWS)
    shuffled = events[order]
    edges = [0, *sorted(cuts), len(ROWS)]
    parts = [shuffled[a:b] for a, b in pairwise(edges)]
    raw = replace(raw_of(events), events=tuple(EventFile.of_frame(part, "part") for part in parts))
    assert prepare(raw, folder / "b").fingerprint == prepare(raw_of(events), folder / "a").fingerprint


def test_lists_and_texts_newest_first_or_last_and_the_longest_kept(tmp_path: Path) -> None:
    events = pl.DataFrame(ROWS)
    base = prepare(raw_of(events), tmp_path / "text")
    as_lists = events.with_columns(
        pl.when(pl.col(c) != "").then(pl.col(c).str.split("^")).otherwise(pl.lit([], dtype=pl.List(pl.String))).alias(c)
        for c in ("kinds", "dids", "times")
    )
    assert prepare(raw_of(as_lists), tmp_path / "lists").fingerprint == base.fingerprint
    turned = as_lists.with_columns(pl.col(c).list.reverse() for c in ("kinds", "dids", "times"))
    assert SCHEMA.histories is not None
    first = SCHEMA.histories.model_copy(update={"newest": "first"})
    reversed_log = prepare(raw_of(turned, SCHEMA.model_copy(update={"histories": first})), tmp_path / "turned")
    assert decoded(reversed_log) == decoded(base)
    short = prepare(raw_of(events, SCHEMA.model_copy(update={"max_history": 2})), tmp_path / "short")
    assert {len(r[2]) for r in decoded(short)} == {0, 1, 2}
    assert sorted(r[2][-2:] for r in decoded(base)) == sorted(r[2] for r in decoded(short))


def test_histories_of_item_ids_point_into_the_catalog(tmp_path: Path) -> None:
    events = pl.DataFrame(ROWS).with_columns(
        past=pl.lit("i1^i2^never"), dids=pl.lit("see^see^buy"), times=pl.lit("1^2^3")
    )
    histories = Histories(item_ids="past", events={"did": "dids", "seconds": "times"})
    dataset = prepare(raw_of(events, SCHEMA.model_copy(update={"histories": histories})), tmp_path / "d")
    assert dataset.history_items is None
    rows, _ = HistoryIndex(dataset).rows(np.array([0]), 100)
    ids = [dataset.item_ids[int(i)] for i in rows.take(dataset.column("histories/item"))]
    assert ids == ["i1", "i2", "never"]
    assert len(dataset.column("histories/item")) == 3


def test_prefixes_of_a_users_sequence_are_pointers(tmp_path: Path) -> None:
    """LongCTR's layout: one full sequence per user, and per row how much of it counts."""
    users = pl.DataFrame(
        {
            "user_id": ["ann", "bob", "cyd"],
            "past": [["i1", "i2", "i3"], ["i2"], []],
            "dids": [["see", "buy", "see"], ["buy"], []],
            "times": [["1", "2", "3"], ["4"], []],
        },
        schema_overrides={"past": pl.List(pl.String), "dids": pl.List(pl.String), "times": pl.List(pl.String)},
    )
    events = pl.DataFrame(
        [
            {**row("ann", f"i{1 + n % 3}", [], "test" if n > 5 else "train", click=n % 2), "seen": n % 4}
            for n in range(9)
        ]
        + [{**row("cyd", "i1", [], "train"), "seen": 0}]
    ).drop("kinds", "dids", "times")
    histories = Histories(item_ids="past", events={"did": "dids", "seconds": "times"}, length="seen")
    schema = SCHEMA.model_copy(update={"histories": histories})
    dataset = prepare(raw_of(events, schema, users), tmp_path / "d")
    assert len(dataset.column("histories/item")) == 3  # ann's sequence once; bob has no events, cyd no past
    loader = RequestLoader(dataset, Part.TRAIN, batch_requests=1, max_history=2)
    lengths = {int(loader.history_lengths(np.array([r]))[0]) for r in range(dataset.manifest.counts["requests"])}
    assert lengths == {0, 1, 2}
    bad = events.with_columns(seen=pl.lit(7))
    with pytest.raises(DataError, match="users.csv: a row asks for 7 elements of a sequence that has 3"):
        prepare(raw_of(bad, schema, users), tmp_path / "bad")
    with pytest.raises(DataError, match="users.csv: user 'ann' has events but no sequence"):
        prepare(raw_of(events, schema, users.filter(pl.col("user_id") != "ann")), tmp_path / "bad")
    with pytest.raises(DataError, match="column 'seen' is not a number of events"):
        prepare(raw_of(events.with_columns(seen=pl.lit(-1)), schema, users), tmp_path / "bad")
    assert not (tmp_path / "bad").exists()


def test_lists_of_different_length_are_refused_with_their_row(tmp_path: Path) -> None:
    events = pl.DataFrame([*ROWS[:3], {**ROWS[3], "dids": "see"}, *ROWS[4:]])
    with pytest.raises(DataError, match=r"rows.csv: row 4: 'dids' has 1 elements, 'kinds' has 3"):
        prepare(raw_of(events), tmp_path / "d")
    assert not list(tmp_path.iterdir())


def test_an_empty_element_is_a_missing_value(tmp_path: Path) -> None:
    events = pl.DataFrame([{**r, "kinds": "k1^^k2", "dids": "see^^buy", "times": "1^^2"} for r in ROWS])
    dataset = prepare(raw_of(events), tmp_path / "d")
    assert "" not in dataset.encoders.event[0].vocabulary
    assert decoded(dataset)[0][2] == (("k1", "see"), ("unknown", "unknown"), ("k2", "buy"))


def test_buckets_and_vocabularies_see_training_histories_only(tmp_path: Path) -> None:
    """Test rows show other numbers, kinds and deeds: none of them shapes an encoder."""
    rows = [row(f"u{n}", f"i{n % 3}", ["k1", "k2"], "train", click=n % 2) for n in range(12)]
    late = {**row("ann", "i1", ["k8", "k9"], "test"), "times": "1000^2000", "dids": "fly^fly"}
    dataset = prepare(raw_of(pl.DataFrame([*rows, late])), tmp_path / "d")
    did, seconds = dataset.encoders.event
    assert max(seconds.boundaries) <= 1
    assert did.vocabulary == ("buy", "see")
    assert not {"k8", "k9"} & set(dataset.encoders.item[1].vocabulary)


def test_what_lies_behind_a_prefix_is_the_future_and_not_counted(tmp_path: Path) -> None:
    users = pl.DataFrame({"user_id": ["ann", "bob"], "kinds": ["a^FUT1^FUT2", "a"], "did": ["see^see^see", "see"]})
    events = pl.DataFrame(
        [{**row("ann", "i1", [], "train", click=n % 2), "kind": "a", "seen": 1} for n in range(6)]
        + [
            {**row("bob", "i1", [], "train"), "kind": "a", "seen": 1},
            {**row("ann", "i1", [], "test"), "kind": "a", "seen": 3},
        ]
    ).drop("kinds", "dids", "times")
    schema = Schema(
        time=None,
        features=(Feature(name="kind", role=Role.ITEM), Feature(name="did", role=Role.EVENT)),
        tasks=(Task(name="click"),),
        split=ByColumn(column="part", select_on_test=True),
        histories=Histories(items={"kind": "kinds"}, events={"did": "did"}, length="seen"),
    )
    dataset = prepare(raw_of(events, schema, users), tmp_path / "d")
    assert dataset.encoders.item[0].vocabulary == ("a",)


def by_id(events: pl.DataFrame, **changes: Any) -> RawLog:
    histories = Histories(item_ids="past", events={"did": "dids", "seconds": "times"})
    return raw_of(events, SCHEMA.model_copy(update={"histories": histories, **changes}))


def test_items_that_only_histories_show_are_known_and_missing_ones_unknown(tmp_path: Path) -> None:
    past = {"past": "h1^^h2", "dids": "see^see^buy", "times": "1^2^3"}
    dataset = prepare(by_id(pl.DataFrame([{**r, **past} for r in ROWS])), tmp_path / "d")
    assert {"h1", "h2"} <= set(dataset.encoders.item[0].vocabulary)
    assert dataset.item_ids.to_list().count("") == 1
    rows, _ = HistoryIndex(dataset).rows(np.array([0]), 100)
    assert [dataset.item_ids[int(i)] for i in rows.take(dataset.column("histories/item"))] == ["h1", "", "h2"]
    with_null = pl.DataFrame([{**r, **past} for r in ROWS]).with_columns(
        past=pl.Series([["h1", None, "h2"]] * len(ROWS)),
        dids=pl.col("dids").str.split("^"),
        times=pl.col("times").str.split("^"),
    )
    assert (
        prepare(by_id(with_null), tmp_path / "null").column("histories/item").tolist()
        == dataset.column("histories/item").tolist()
    )


def test_the_latest_history_is_exported_when_there_are_times(tmp_path: Path) -> None:
    pasts = ["a^b^c", "b^c", "b^c^d", "e", "e", "e"]
    events = pl.DataFrame(
        [
            {
                **row("ann", "i1", [], "train", click=n % 2),
                "past": past,
                "at": n,
                "dids": "^".join(["see"] * len(past.split("^"))),
                "times": "^".join(["1"] * len(past.split("^"))),
            }
            for n, past in enumerate(pasts)
        ]
    )
    dataset = prepare(by_id(events, time="at", split=LastEvents()), tmp_path / "d")
    index = HistoryIndex(dataset)
    rows, offsets = index.rows_of_users(10)
    ann = dataset.user_ids.to_list().index("ann")
    assert [dataset.item_ids[int(i)] for i in rows.take(index.item)[offsets[ann] : offsets[ann + 1]]] == ["e"]


def test_empty_lists_and_lists_of_nothing_differ_and_cut_ones_are_shared(tmp_path: Path) -> None:
    """[] and [""] are two histories in any order; what is equal after max_history is one, and one request."""
    lists = pl.DataFrame(
        {
            "user_id": ["ann"] * 8,
            "item_id": [f"i{n}" for n in range(8)],
            "click": [0, 1] * 4,
            "part": ["train"] * 6 + ["test"] * 2,
            "past": [[], [""]] * 4,
        },
        schema_overrides={"past": pl.List(pl.String)},
    )
    schema = Schema(
        time=None,
        features=(Feature(name="item_id", role=Role.ITEM),),
        tasks=(Task(name="click"),),
        split=ByColumn(column="part", select_on_test=True),
        histories=Histories(item_ids="past"),
    )
    first, second = prepare(raw_of(lists, schema), tmp_path / "a"), prepare(raw_of(lists[::-1], schema), tmp_path / "b")
    assert first.fingerprint == second.fingerprint
    assert sorted((first.column("requests/history_end") - first.column("requests/history_start")).tolist()) == [
        0,
        0,
        1,
        1,
    ]
    cut = lists.with_columns(past=pl.Series(["x^a^b", "y^a^b"] * 4))
    dataset = prepare(raw_of(cut, schema.model_copy(update={"max_history": 2})), tmp_path / "c")
    assert dataset.manifest.counts["requests"] == 2  # one per part
    assert len(dataset.column("histories/item")) == 2


def test_new_rows_of_such_a_log_are_refused_for_scoring(tmp_path: Path) -> None:
    """Their histories would have to come with them; the user's latest would be a guess, and may be of the future."""
    dataset = prepare(raw_of(pl.DataFrame(ROWS)), tmp_path / "d")
    with pytest.raises(DataError, match="its histories are ready-made"):
        RowReader(dataset)
