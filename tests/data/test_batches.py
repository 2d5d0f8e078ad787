"""The loader: every request once, an order that can be resumed exactly, the same batches with and without prefetch."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from limerank.batch import RequestBatch
from limerank.data.batches import Position, RequestLoader, distinct_items, order_in_blocks
from limerank.data.build.prepare import prepare
from limerank.data.raw.log import EventFile, RawLog
from limerank.data.store.dataset import StoredDataset
from limerank.data.store.ranges import LONG_RANGE, Ranges
from limerank.errors import DataError
from limerank.schema import Feature, Histories, Role, Schema, Task
from limerank.splits import ByColumn, Part


def loader_of(dataset: StoredDataset, **changes: object) -> RequestLoader:
    options: dict[str, object] = {"batch_requests": 16, "max_history": 12, "seed": 5} | changes
    return RequestLoader(dataset, Part.TRAIN, **options)  # type: ignore[arg-type]


def tensors(batch: RequestBatch) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    batch.map(keep)
    return found


def same(left: Iterable[RequestBatch], right: Iterable[RequestBatch]) -> bool:
    pairs = list(zip(left, right, strict=True))
    return bool(pairs) and all(
        torch.equal(a, b) for one, other in pairs for a, b in zip(tensors(one), tensors(other), strict=True)
    )


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 99), stopped=st.integers(0, 30), prefetch=st.integers(0, 3))
def test_a_loader_goes_on_exactly_where_another_stopped(
    dataset: StoredDataset, seed: int, stopped: int, prefetch: int
) -> None:
    """Two passes in one go equal the batches before and after a stop at any batch, in any pass."""
    whole = loader_of(dataset, seed=seed)
    expected = [*whole, *whole]
    first = loader_of(dataset, seed=seed, prefetch=prefetch)
    taken: list[RequestBatch] = []
    while len(taken) < min(stopped, len(expected)):
        for batch in first:
            taken.append(batch)
            if len(taken) == min(stopped, len(expected)):
                break
    second = loader_of(dataset, seed=seed, prefetch=prefetch, position=first.position)
    while len(taken) < len(expected):
        taken += list(second)
    assert same(taken, expected)
    assert first.position.passes * len(first) + first.position.batches == min(stopped, len(expected))


def test_position_tells_passes_and_batches(dataset: StoredDataset) -> None:
    loader = loader_of(dataset)
    assert loader.position == Position(0, 0)
    next(iter(loader))
    assert loader.position == Position(0, 1)
    list(loader)
    assert loader.position == Position(1, 0)


def test_prefetched_batches_are_the_same_and_come_from_another_thread(dataset: StoredDataset) -> None:
    assert same(loader_of(dataset, prefetch=3), loader_of(dataset))
    threads = set()
    loader = loader_of(dataset, prefetch=1)
    assemble = loader.assemble

    def noting(requests: NDArray[np.int64]) -> RequestBatch:
        threads.add(threading.current_thread().name)
        return assemble(requests)

    loader.assemble = noting  # type: ignore[method-assign]
    list(loader)
    assert {name.startswith("limerank-loader") for name in threads} == {True}


def test_an_error_in_the_background_reaches_the_consumer_and_no_thread_stays(dataset: StoredDataset) -> None:
    before = threading.active_count()
    loader = loader_of(dataset, prefetch=2)
    loader._item = loader._item[:3]
    with pytest.raises(IndexError):
        list(loader)
    broken_off = iter(loader_of(dataset, prefetch=2))
    next(broken_off)
    broken_off.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before


def test_requests_of_similar_length_share_a_batch(dataset: StoredDataset) -> None:
    loader = loader_of(dataset, max_history=1000)
    spreads = [int(np.ptp(loader.history_lengths(requests))) for requests in loader.plan()]
    unsorted = [int(np.ptp(loader.history_lengths(part))) for part in np.array_split(loader.requests, len(loader))]
    assert np.mean(spreads) < np.mean(unsorted) / 2


def test_a_batch_can_be_moved(dataset: StoredDataset) -> None:
    batch = next(iter(loader_of(dataset)))
    moved = batch.map(lambda tensor: tensor.to("meta"))
    assert {tensor.device.type for tensor in tensors(moved)} == {"meta"}
    assert len(tensors(moved)) == len(tensors(batch)) > 10


@settings(max_examples=15, deadline=None)
@given(batch=st.integers(1, 50), stopped=st.integers(0, 400), prefetch=st.integers(0, 2), seed=st.none() | st.just(3))
def test_the_order_of_time(dataset: StoredDataset, batch: int, stopped: int, prefetch: int, seed: int | None) -> None:
    """Every request once, in order of time and else as stored, in every pass; and from any position on."""
    loader = loader_of(dataset, order="time", batch_requests=batch, seed=seed)
    start, times = dataset.column("requests/start"), dataset.column("events/time")
    asked = sorted((int(times[start[request]]), int(request)) for request in dataset.requests_in(Part.TRAIN))
    planned = np.concatenate(loader.plan()).tolist()
    assert planned == [request for _, request in asked]
    assert loader.times(np.array(planned)).tolist() == [time for time, _ in asked]
    assert {len(one) for one in loader.plan()[:-1]} <= {batch}
    assert len(loader.plan()) == len(loader)
    done = stopped % len(loader)
    resumed = loader_of(
        dataset, order="time", batch_requests=batch, prefetch=prefetch, seed=9, position=Position(2, done)
    )
    assert same(list(loader)[done:], resumed)
    assert resumed.position == Position(3, 0)


def test_a_log_without_times_has_no_order_of_time(tmp_path: Path) -> None:
    events = pl.DataFrame(
        {"user_id": ["a"] * 9, "item_id": list("xyzxyzxyz"), "click": [0, 1, 0] * 3, "past": ["x^y"] * 9}
    ).with_columns(part=pl.Series(["train"] * 5 + ["validation"] * 2 + ["test"] * 2))
    schema = Schema(
        time=None,
        features=(Feature(name="item_id", role=Role.ITEM),),
        tasks=(Task(name="click"),),
        split=ByColumn(column="part", validation=("validation",)),
        histories=Histories(item_ids="past"),
    )
    raw = RawLog(schema, (EventFile.of_frame(events, "events"),), None, None, {"source": "test"})
    untimed = prepare(raw, tmp_path / "d")
    assert list(loader_of(untimed))
    with pytest.raises(DataError, match="has no times, so there is no order of time; use order: shuffled"):
        loader_of(untimed, order="time")


def test_requests_can_be_named_instead_of_a_part(dataset: StoredDataset) -> None:
    """Those of two parts, in any order: each once, in the order that the loader has, the same as by part."""
    wanted = np.concatenate([dataset.requests_in(Part.TEST), dataset.requests_in(Part.TRAIN)[::3]])
    for order in ("shuffled", "time"):
        loader = RequestLoader(dataset, wanted[::-1], batch_requests=16, max_history=12, seed=5, order=order)
        assert sorted(np.concatenate(loader.plan()).tolist()) == sorted(wanted.tolist())
        assert sum(len(batch.inputs) for batch in loader) == len(wanted)
    of_part = RequestLoader(dataset, dataset.requests_in(Part.TRAIN), batch_requests=16, max_history=12, seed=5)
    assert same(of_part, loader_of(dataset))
    none = RequestLoader(dataset, np.zeros(0, dtype=np.int64), batch_requests=16, max_history=12, seed=5)
    assert (len(none), list(none)) == (0, [])


@given(values=st.lists(st.integers(0, 70_000), max_size=60), block=st.integers(1, 20))
def test_blocks_are_sorted_as_one_sort_by_block_and_value_would(values: list[int], block: int) -> None:
    array = np.array(values, dtype=np.int64)
    expected = np.lexsort((array, np.arange(len(array)) // block))
    assert order_in_blocks(array, block).tolist() == expected.tolist()


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 3 * LONG_RANGE)), min_size=1, max_size=8))
def test_slices_and_rows_gather_the_same(pairs: list[tuple[int, int]]) -> None:
    start = np.array([a for a, _ in pairs])
    ranges = Ranges(start, start + np.array([n for _, n in pairs]))
    column = np.arange(50 + 3 * LONG_RANGE, dtype=np.uint8)
    expected = [value for a, n in pairs for value in range(a, a + n)]
    assert ranges.take(column).tolist() == ranges.rows.tolist() == expected


@settings(max_examples=30, deadline=None)
@given(rows=st.lists(st.integers(0, 200), min_size=1, max_size=2000))
def test_items_are_shared_without_changing_what_a_row_is(dataset: StoredDataset, rows: list[int]) -> None:
    """Whichever way the items of a batch are found: the whole table, a bitmap or sorting."""
    items, position = distinct_items(dataset.item_table, np.array(rows, dtype=np.uint8))
    taken, expected = items.take(position), dataset.item_table.take(torch.tensor(rows))
    assert torch.equal(taken.indices, expected.indices)
    assert torch.equal(taken.lists[0].values, expected.lists[0].values)
