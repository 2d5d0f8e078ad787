"""The loader: every request once, an order that can be resumed exactly, the same batches with and without prefetch."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from limerank.batch import RequestBatch
from limerank.data.batches import Position, RequestLoader, distinct_items
from limerank.data.store.dataset import StoredDataset
from limerank.data.store.ranges import LONG_RANGE, Ranges
from limerank.splits import Part


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


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 3 * LONG_RANGE)), min_size=1, max_size=8))
def test_slices_and_rows_gather_the_same(pairs: list[tuple[int, int]]) -> None:
    start = np.array([a for a, _ in pairs])
    ranges = Ranges(start, start + np.array([n for _, n in pairs]))
    column = np.arange(200, dtype=np.uint8)
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
