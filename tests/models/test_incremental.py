"""User stages that grow: whatever was appended and dropped, in whatever steps, they leave what `encode_user` leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from dense_lime import EXACT, shaken
from hypothesis import given, settings
from hypothesis import strategies as st

from limerank.batch import UserInputs
from limerank.bench.made_up import BUILT_IN, random_request
from limerank.errors import ArgumentError
from limerank.models import RANKERS, Ranker, build_ranker
from limerank.models.incremental import Events, GrowingRows, IncrementalUser, Reading, incremental_user
from limerank.models.incremental.windows import WindowReading
from limerank.ops.link_pool import absorbed
from limerank.ops.xor_layer import fused

EVENTS = 60
SMALL: dict[str, Any] = {"width": 8, "embedding_width": 4, "tower_hidden": 8, "head": [8]}
LIME: dict[str, Any] = {**SMALL, "heads": 2, "links": 4}
SLIDING = {
    "ttsn": {"name": "ttsn", **SMALL},
    "ttsn mean": {"name": "ttsn", "pooling": "mean", "encoding": "calendar", **SMALL},
    "ttsn dot": {"name": "ttsn", "interaction": "dot", **SMALL},
    "inttower": {"name": "inttower", "user_layers": [6, 6], **SMALL},
    "linear": {"name": "linear-attention", "heads": 2, **SMALL},
    "linear events": {"name": "linear-attention", "heads": 2, "feature_map": "silu", "normalizer": "events", **SMALL},
    "performer": {"name": "performer", "heads": 2, "rank": 6, **SMALL},
    "lime-mha": {"name": "lime-mha", **LIME},
    "lime-mha after": {"name": "lime-mha", "context": "after", "encoding": "calendar", **LIME},
    "lime-mha no context": {"name": "lime-mha", "context": "none", **LIME},
    "lime-mha recency": {"name": "lime-mha", "recency": True, **LIME},
    "lime-mha absorbs": {"name": "lime-mha", "recency": True, **LIME, "width": 32, "links": 2},
    "lime-mha projects": {"name": "lime-mha", "recency": True, **LIME, "heads": 4, "links": 6},
    "lime-mha selects": {"name": "lime-mha", "select_from": 9, "context": "after", **LIME},
    "lime-mha coarse": {"name": "lime-mha", "coarse_links": 2, **LIME},
    "lime-mha sizes": {"name": "lime-mha", "value_norm": False, **LIME},
    "lime-mha sizes, absorbs": {"name": "lime-mha", "value_norm": False, **LIME, "width": 32, "links": 2},
    "pma": {"name": "pma", **LIME},
    "pma projects": {"name": "pma", **LIME, "heads": 4, "links": 6},
    "lime-xor": {"name": "lime-xor", **LIME},
    "lime-xor softmax": {"name": "lime-xor", "activation": "softmax", "layers": 2, "readout": "residual", **LIME},
    "lime-xor absorbs": {"name": "lime-xor", "activation": "softmax", **LIME, "width": 32, "links": 2},
    "lime-xor no context": {"name": "lime-xor", "context": "none", "layers": 2, **LIME},
    "lime-xor one layer": {"name": "lime-xor", "layers": 1, "select_from": 6, **LIME},
    "lime-xor sizes": {"name": "lime-xor", "value_norm": False, **LIME},
    "lime-xor odd": {"name": "lime-xor", "normalizer": "none", "output": "concat", "uvqk_activation": "all", **LIME},
}
GROWING = {
    "lime-mha position": {"name": "lime-mha", "encoding": "position", "positions": 25, **LIME},
    "lime-xor position": {"name": "lime-xor", "encoding": "position", **LIME},
    "lightning": {"name": "lightning", "heads": 2, **SMALL},
    "lightning one layer": {"name": "lightning", "heads": 2, "layers": 1, **SMALL},
    "mamba": {"name": "mamba", "state": 3, **SMALL},
    "mamba state": {"name": "mamba", "state": 3, "readout": "state", **SMALL},
}


@cache
def setting(case: str) -> tuple[Ranker, IncrementalUser, UserInputs]:
    """A ranker in fp64, its incremental user stage, and a request with a long history."""
    torch.manual_seed(3)
    ranker = build_ranker({**SLIDING, **GROWING}[case], BUILT_IN, 2, "test")
    shaken(ranker)
    user = incremental_user(ranker)
    assert user is not None
    return ranker, user, random_request(BUILT_IN, EVENTS)


def cut(inputs: UserInputs, first: int, stop: int) -> UserInputs:
    """The same request with the events `first` up to `stop`."""
    history = inputs.history
    times = history.times
    assert times is not None
    part = replace(
        history,
        item_of_event=history.item_of_event[first:stop],
        events=replace(history.events, indices=history.events.indices[first:stop]),
        offsets=torch.tensor([0, stop - first]),
        times=times[first:stop] * 977,  # more than a day apart from first to last
    )
    return replace(inputs, history=part)


def events_of(ranker: Ranker, inputs: UserInputs, first: int, stop: int) -> Events:
    part = cut(inputs, first, stop).history
    rows = ranker.item_tower.history(part)
    if ranker.encoding is not None:
        rows = ranker.encoding.part(rows, part.times, before=first)
    return Events(rows, part.times)


def check(ranker: Ranker, user: IncrementalUser, reading: Reading, inputs: UserInputs, **close: float) -> None:
    request = cut(inputs, reading.first, reading.stop)
    expected = ranker.encode_user(request)
    found = user.finish(reading, ranker.context_tower(inputs.users, inputs.context))
    assert len(found.memory) == len(expected.memory)
    for mine, theirs in zip((*found.memory, found.head_part), (*expected.memory, expected.head_part), strict=True):
        torch.testing.assert_close(mine, theirs, **(close or EXACT))


def started(ranker: Ranker, user: IncrementalUser, inputs: UserInputs, count: int) -> Reading:
    context = ranker.context_tower(inputs.users, inputs.context)
    return user.start(events_of(ranker, inputs, 0, count), context)


@pytest.mark.parametrize("case", [*SLIDING, *GROWING])
@settings(max_examples=12)
@given(first=st.integers(0, 20), steps=st.lists(st.integers(1, 9), max_size=5))
def test_growing_equals_reading_again(case: str, first: int, steps: list[int]) -> None:
    ranker, user, inputs = setting(case)
    with torch.inference_mode():
        reading = started(ranker, user, inputs, first)
        check(ranker, user, reading, inputs)
        for step in steps:
            stop = min(reading.stop + step, EVENTS)
            reading.append(events_of(ranker, inputs, reading.stop, stop))
            check(ranker, user, reading, inputs)


@pytest.mark.parametrize("case", ["lime-mha absorbs", "pma", "lime-xor", "lime-xor absorbs"])
def test_parts_of_a_history_may_be_read_by_others(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In any order: what is left is what `encode_user` leaves, and the same bits as when one reads all."""
    ranker, _, inputs = setting(case)
    for module in (absorbed, fused):
        monkeypatch.setattr(module, "PART", 8)
    monkeypatch.setattr(fused, "CHUNK", 8)
    dealt: list[int] = []

    def backwards(works: Sequence[Callable[[], Any]]) -> list[Any]:
        dealt.append(len(works))
        return [work() for work in reversed(works)][::-1]

    helped, alone = incremental_user(ranker, deal=backwards), incremental_user(ranker)
    assert helped is not None
    assert alone is not None
    with torch.inference_mode():
        context = ranker.context_tower(inputs.users, inputs.context)
        found = [user.finish(started(ranker, user, inputs, EVENTS), context) for user in (helped, alone)]
        assert torch.equal(found[0].memory[0], found[1].memory[0])
        check(ranker, helped, started(ranker, helped, inputs, EVENTS), inputs)
    assert set(dealt) == {8}


@pytest.mark.parametrize("case", SLIDING)
@settings(max_examples=12)
@given(
    first=st.integers(0, 30),
    steps=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 12)), max_size=8),
)
def test_a_window_that_slides_equals_reading_again(case: str, first: int, steps: list[tuple[int, int]]) -> None:
    """Also down to an empty window, and on after it."""
    ranker, user, inputs = setting(case)
    with torch.inference_mode():
        reading = started(ranker, user, inputs, first)
        for more, fewer in steps:
            stop = min(reading.stop + more, EVENTS)
            if stop > reading.stop:
                reading.append(events_of(ranker, inputs, reading.stop, stop))
            if fewer:
                kept = min(reading.first + fewer, reading.stop)

                def fetch(start: int, end: int, kept: int = kept, stop: int = stop) -> Events:
                    assert kept <= start <= end <= stop, "only events of the window may be asked for"
                    return events_of(ranker, inputs, start, end)

                reading.drop(kept, fetch)
            check(ranker, user, reading, inputs)


@pytest.mark.parametrize("case", ["lime-mha", "lime-mha recency", "linear", "performer", "ttsn", "lime-xor one layer"])
def test_thousands_of_appended_events_do_not_drift(case: str) -> None:
    """3,000 events one by one in fp32, some far above the others: within 1e-5 of fp64 over the whole history."""
    torch.manual_seed(0)
    exact = build_ranker(SLIDING[case], BUILT_IN, 2, "test")
    shaken(exact)
    single = build_ranker(SLIDING[case], BUILT_IN, 2, "test").eval()
    single.load_state_dict(exact.state_dict())
    user = incremental_user(single)
    assert user is not None
    inputs = random_request(BUILT_IN, 3000)
    with torch.inference_mode():
        rows = events_of(single, inputs, 0, 3000)
        reading = user.start(rows.part(0, 10), single.context_tower(inputs.users, inputs.context))
        for number in range(10, 3000):
            reading.append(rows.part(number, number + 1))
        found = user.finish(reading, single.context_tower(inputs.users, inputs.context)).memory[0]
        expected = exact.encode_user(cut(inputs, 0, 3000)).memory[0]
    scale = float(expected.abs().max())
    torch.testing.assert_close(found.double() / scale, expected / scale, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layers", [2, 3])
def test_the_stale_form_of_lime_xor_is_bounded_by_its_budget(layers: int) -> None:
    """It reports what it left out, asks for a refresh beyond its budget, and a refreshed one is exact."""
    torch.manual_seed(1)
    ranker = build_ranker({"name": "lime-xor", "layers": layers, **LIME}, BUILT_IN, 2, "test")
    shaken(ranker)
    user = incremental_user(ranker, stale_budget=0.1)
    assert user is not None
    assert not user.exact
    inputs = random_request(BUILT_IN, EVENTS)
    with torch.inference_mode():
        reading = started(ranker, user, inputs, 40)
        check(ranker, user, reading, inputs)
        errors = []
        while not reading.stale:
            reading.append(events_of(ranker, inputs, reading.stop, reading.stop + 1))
            expected = ranker.encode_user(cut(inputs, 0, reading.stop)).memory[0]
            found = user.finish(reading, ranker.context_tower(inputs.users, inputs.context)).memory[0]
            errors.append(float((found - expected).norm() / expected.norm()))
        assert 0 < len(errors) < 20
        assert max(errors) < 0.1
    with pytest.raises(ArgumentError, match="stale_budget must be more than 0"):
        incremental_user(ranker, stale_budget=0.0)


def test_what_cannot_grow_says_so() -> None:
    """Rows that change with every event or request, and rankers in which every event changes everything."""
    growing = {case["name"] for case in (*SLIDING.values(), *GROWING.values())}
    for name in RANKERS:
        ranker = build_ranker({"name": name, "encoding": "none"}, BUILT_IN, 1, "test").eval()
        assert (incremental_user(ranker) is not None) == (name in growing), name
        for encoding in ("recent_position", "age"):
            aged = build_ranker({"name": name, "encoding": encoding}, BUILT_IN, 1, "test").eval()
            assert incremental_user(aged) is None


def test_bytes_are_those_of_the_tensors_held() -> None:
    ranker, user, inputs = setting("lime-mha")
    with torch.inference_mode():
        reading = started(ranker, user, inputs, 20)
        heads, links, width, number = 2, 4, 8, 8
        # absorbed: whole rows per head and link, projected only in states of the past
        newest, state = (heads * links * (8 + number + number + number * one) for one in (width, width // heads))
        queries = heads * links * width * number
        assert reading.bytes == newest + queries
        assert isinstance(reading, WindowReading)
        reading.drop(1, lambda start, stop: events_of(ranker, inputs, start, stop))
        assert reading.older is not None
        states = {id(one): one.bytes for one in [*reading.older.suffixes, *reading.older.within] if one is not None}
        block = reading.older.block
        assert block.times is not None
        rows = block.rows.numel() * 8 + block.times.numel() * 8
        assert reading.bytes == newest + state + queries + sum(states.values()) + rows


def test_growing_rows_keep_what_was_handed_out() -> None:
    numbers = torch.arange(300.0)[:, None]
    rows, handed = GrowingRows(numbers[:3], first=0), []
    for stop in range(4, 300):
        rows.append(numbers[stop - 1 : stop])
        if stop % 3 == 0:
            rows.drop(rows.first + 2)
        handed.append((rows.first, stop, rows.all()))
    for first, stop, view in handed:
        assert torch.equal(view, numbers[first:stop])
    assert rows.bytes < 4 * 3 * len(rows.all())
