"""A prepared user stage leaves behind what the ranker's own leaves behind, and asks torch for little."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from limerank.batch import Features, History, UserInputs
from limerank.bench.made_up import BUILT_IN, MINUTE, random_features, random_items
from limerank.data.batches import distinct_items
from limerank.models import RANKERS, Ranker, UserState, build_ranker
from limerank.models.serving import EventTable, lime, prepare_user_stage, tower
from limerank.models.serving.events import BYTES_ALLOWED
from limerank.ops.xor_layer import fused
from limerank.schema import EncodedFeature, FeatureSpace, Kind

ITEMS = 40
RICH = FeatureSpace(
    item=(*BUILT_IN.item, EncodedFeature(name="image", kind=Kind.VECTOR, size=3)),
    event=(*BUILT_IN.event, EncodedFeature(name="watched", kind=Kind.CONTINUOUS, size=5)),
    user=(*BUILT_IN.user, EncodedFeature(name="likes", kind=Kind.MULTI_VALUED, size=9)),
    context=BUILT_IN.context,
)
"""Every kind of feature, and two things that can be said of an event."""
BARE = FeatureSpace(item=BUILT_IN.item[:1], event=(), user=(), context=())
LIME_OPTIONS: list[dict[str, Any]] = [
    {},
    {"context": "after"},
    {"context": "none"},
    {"select_from": 12},
    {"select_from": 12, "context": "none"},
    {"select_from": 12, "context": "after"},
    {"coarse_links": 2},
    {"value_norm": False},
    {"value_norm": False, "select_from": 12, "query_width": 256, "context": "after"},
    {"query_width": 16},
    {"query_width": 256},
    {"encoding": "position"},
    {"encoding": "recent_position"},
    {"encoding": "calendar"},
    {"encoding": "age"},
    {"tower_shortcut": False},
]


def made(name: str, space: FeatureSpace = BUILT_IN, **options: Any) -> Ranker:
    """An untrained ranker in which no parameter is what it starts as."""
    torch.manual_seed(3)
    ranker = build_ranker({"name": name, "width": 32, **options}, space, 1, "test").eval()
    with torch.no_grad():
        for parameter in ranker.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return ranker


def request(space: FeatureSpace, items: Features, events: int, seed: int = 0) -> UserInputs:
    """One request whose history names its items by row."""
    generator = torch.Generator().manual_seed(seed)
    times = torch.arange(events + 1) * 977 * MINUTE
    history = History(
        items,
        torch.randint(0, len(items), (events,), generator=generator),
        random_features(space.event, events, generator),
        torch.tensor([0, events]),
        times[:-1],
    )
    users, context = (random_features(features, 1, generator) for features in (space.user, space.context))
    return UserInputs(users, context, history, times[-1:])


def plainly(ranker: Ranker, inputs: UserInputs) -> UserState:
    """The ranker's own user stage, which holds each item's features once."""
    history = inputs.history
    items, item_of_event = distinct_items(history.items, history.item_of_event.numpy())
    with torch.inference_mode():
        return ranker.encode_user(replace(inputs, history=replace(history, items=items, item_of_event=item_of_event)))


def assert_same(got: UserState, expected: UserState) -> None:
    """To the rounding of fp32, which norms of short rows enlarge: 2e-5 on the least of CPUs."""
    torch.testing.assert_close((got.memory, got.head_part), (expected.memory, expected.head_part), rtol=1e-4, atol=1e-4)
    assert (got.offsets is None) == (expected.offsets is None)
    if got.offsets is not None and expected.offsets is not None:
        assert torch.equal(got.offsets, expected.offsets)


def check(
    ranker: Ranker, space: FeatureSpace, lengths: tuple[int, ...] = (0, 1, 7, 60, 7), bytes_allowed: int = BYTES_ALLOWED
) -> None:
    items = random_items(space, ITEMS)
    stage = prepare_user_stage(ranker, items, bytes_allowed)
    for seed, events in enumerate(lengths):
        inputs = request(space, items, events, seed)
        with torch.inference_mode():
            assert_same(stage(inputs), plainly(ranker, inputs))


@pytest.mark.parametrize("name", sorted(RANKERS))
def test_every_ranker_is_served_as_it_is_trained(name: str) -> None:
    """Whether it has a form of its own or not; every kind of feature, and hardly any."""
    check(made(name, RICH), RICH)
    check(made(name, BARE), BARE)


@pytest.mark.parametrize("options", LIME_OPTIONS, ids=str)
@pytest.mark.parametrize("name", ["lime-mha", "lime-xor", "lime-hstu", "isab"])
def test_every_option_of_lime(name: str, options: dict[str, Any]) -> None:
    check(made(name, links=6, **options), BUILT_IN)


@pytest.mark.parametrize("query_width", [32, 256])
@pytest.mark.parametrize("name", ["lime-mha", "lime-hstu"])
def test_links_without_norms(name: str, query_width: int) -> None:
    """Queries that are wide enough to absorb the keys, too: absorbing needs the norm that is not there."""
    check(made(name, links=6, projection_norm=False, query_width=query_width), BUILT_IN)


@pytest.mark.parametrize("name", ["lime-mha", "mha"])
def test_recency(name: str) -> None:
    check(made(name, recency=True), BUILT_IN)


@pytest.mark.parametrize(
    "options",
    [{"activation": "softmax"}, {"readout": "residual"}, {"normalizer": "none"}, {"output": "concat"}, {"layers": 1}],
    ids=str,
)
def test_every_design_of_lime_xor(options: dict[str, Any]) -> None:
    check(made("lime-xor", links=6, **options), BUILT_IN)


@pytest.mark.parametrize(
    "options",
    [{"relative_bias": "position-time", "positions": 9}, {"query_width": 16, "scale": 1.0, "output_norm": "group"}],
    ids=str,
)
def test_every_design_of_hstu(options: dict[str, Any]) -> None:
    check(made("hstu", **options), BUILT_IN)


@settings(max_examples=25)
@given(
    lengths=st.lists(st.integers(0, 90), min_size=1, max_size=4),
    name=st.sampled_from(["lime-mha", "lime-xor", "mha", "hstu"]),
    capacity=st.sampled_from([0, 1, 30, 70, 10_000]),
    whole=st.sampled_from([0, 2**14, 2**22]),
    long=st.sampled_from([1, 50, 1024]),
    chunk=st.sampled_from([1, 16, 1024]),
)
def test_any_histories_and_any_size_of_the_table(
    lengths: list[int], name: str, capacity: int, whole: int, long: int, chunk: int
) -> None:
    """Tables too small for one history, for the next, or for any; histories taken whole, or in chunks."""
    ranker = made(name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lime, "WHOLE_BYTES", whole)
        patch.setattr(lime, "CHUNK", chunk)
        patch.setattr(lime, "PART", 2 * chunk)
        patch.setattr(tower, "LONG", long)
        check(ranker, BUILT_IN, tuple(lengths), bytes_allowed=4 * 4 * ITEMS + 4 * 64 * capacity)


@pytest.mark.parametrize(("name", "kernel"), [("lime-mha", True), ("lime-mha", False), ("lime-xor", True)])
def test_parts_of_a_long_history_are_dealt(name: str, kernel: bool) -> None:
    """The same bits whoever does them, and what the ranker itself leaves, also by a torch without the fused kernel."""
    ranker, items = made(name), random_items(BUILT_IN, ITEMS)
    dealt: list[int] = []

    def backwards(works: Sequence[Callable[[], Any]]) -> list[Any]:
        dealt.append(len(works))
        return [work() for work in reversed(works)][::-1]

    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(lime, "WHOLE_BYTES", 1)
        if kernel:
            assert lime.fused_attention() is not None
        else:
            patch.setattr(lime, "fused_attention", lambda: None)
        for module in (lime, fused):
            patch.setattr(module, "CHUNK", 8)
            patch.setattr(module, "PART", 16)
        inputs = request(BUILT_IN, items, 100)
        got = prepare_user_stage(ranker, items, deal=backwards)(inputs)
        alone = prepare_user_stage(ranker, items)(inputs)
    assert set(dealt) == {7}
    assert torch.equal(got.memory[0], alone.memory[0])
    assert_same(got, plainly(ranker, inputs))


@pytest.mark.parametrize("kept_bytes", [0, 2**23])
@pytest.mark.parametrize("options", [{}, {"context": "after"}, {"select_from": 9, "links": 4}])
def test_links_are_kept_by_their_context(options: dict[str, Any], kept_bytes: int, monkeypatch: Any) -> None:
    """Contexts that come and go, and a store that holds only the last: each request gets the links of its own."""
    monkeypatch.setattr(lime, "ASKING_BYTES", kept_bytes)
    ranker, items = made("lime-mha", **options), random_items(BUILT_IN, ITEMS)
    stage = prepare_user_stage(ranker, items)
    requests = [request(BUILT_IN, items, 20, seed) for seed in range(4)]
    for number in (0, 0, 1, 2, 1, 3, 0, 3):
        assert_same(stage(requests[number]), plainly(ranker, requests[number]))
    with torch.inference_mode(), Calls() as known:
        stage(requests[3])
    with torch.inference_mode(), Calls() as other:
        stage(requests[2])
    assert (known.count < other.count) == (kept_bytes == 0)


def test_other_inputs_are_handed_to_the_ranker() -> None:
    """Several requests at once, or items of another table."""
    ranker, items = made("lime-mha"), random_items(BUILT_IN, ITEMS)
    stage = prepare_user_stage(ranker, items)
    foreign = request(BUILT_IN, random_items(BUILT_IN, ITEMS, seed=1), 9)
    assert_same(stage(foreign), plainly(ranker, foreign))
    assert not stage(foreign).head_part.requires_grad


def test_the_history_of_a_stage_is_e() -> None:
    ranker, items = made("mha"), random_items(BUILT_IN, ITEMS)
    inputs = request(BUILT_IN, items, 30)
    stage, history = prepare_user_stage(ranker, items), inputs.history
    with torch.no_grad():
        expected = ranker.item_tower.history(history)
    for _ in range(2):  # computed, then found
        rows = stage.history(history.item_of_event, history.events.indices)
        torch.testing.assert_close(rows, expected, rtol=1e-5, atol=1e-6)


def test_a_table_keeps_to_its_bytes_and_to_what_was_read() -> None:
    """However many pairs come by; what a thread found stays what it is when the table is replaced."""
    ranker, items = made("lime-mha"), random_items(BUILT_IN, ITEMS)
    tower_, allowed = ranker.item_tower, 4 * 4 * ITEMS + 4 * 32 * 50
    table = EventTable(tower_, items, bytes_allowed=allowed)
    assert table.capacity == 50
    first = request(BUILT_IN, items, 40, 0).history
    held = table.find(first.item_of_event, first.events.indices)
    assert held is not None
    before = held[0].index_select(0, held[1])
    for seed in range(20):
        history = request(BUILT_IN, items, 8 if seed % 2 else 40, seed).history
        with torch.no_grad():
            expected = tower_.history(history)
        with torch.inference_mode(seed % 2 == 0):  # who fills a table may be in another mode than who replaced it
            found = table(history.item_of_event, history.events.indices)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
        assert 0 < table.bytes <= allowed
    assert torch.equal(held[0].index_select(0, held[1]), before)


def test_many_threads_fill_one_table() -> None:
    """Each gets the rows it would have got alone, while the table fills and is replaced."""
    ranker, items = made("lime-mha"), random_items(BUILT_IN, ITEMS)
    stage = prepare_user_stage(ranker, items, bytes_allowed=4 * 4 * ITEMS + 4 * 64 * 60)
    asked = [request(BUILT_IN, items, 30, seed) for seed in range(24)]
    expected = [plainly(ranker, inputs).memory[0] for inputs in asked]

    def ask(number: int) -> Tensor:
        with torch.inference_mode():
            return stage(asked[number % len(asked)]).memory[0]

    with ThreadPoolExecutor(8) as executor:
        for number, got in enumerate(executor.map(ask, range(20 * len(asked)))):
            torch.testing.assert_close(got, expected[number % len(asked)], rtol=1e-5, atol=1e-5)


class Calls(TorchDispatchMode):
    """Counts what is asked of torch, views included."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("name", "most"),
    [("lime-mha", 40), ("mha", 30), ("lime-xor", 250)],
)
def test_a_request_takes_few_calls(name: str, most: int) -> None:
    """At the paper's industrial size and 100 known events: 36, 23 and 206 when this was written."""
    links: dict[str, Any] = {"links": 32} if name.startswith("lime") else {}
    ranker = made(name, width=256, **links)
    items = random_items(BUILT_IN, ITEMS)
    stage, inputs = prepare_user_stage(ranker, items), request(BUILT_IN, items, 100)
    with torch.inference_mode():
        assert_same(stage(inputs), plainly(ranker, inputs))
        with Calls() as calls:
            stage(inputs)
    assert 10 < calls.count <= most


def test_a_long_history_takes_as_many_calls_as_a_short_one() -> None:
    """As long as it fits the cache: calls are per request, not per event."""
    ranker, items = made("lime-mha"), random_items(BUILT_IN, ITEMS)
    stage, counts = prepare_user_stage(ranker, items), []
    with torch.inference_mode():
        for events in (10, 1000):
            inputs = request(BUILT_IN, items, events)
            stage(inputs)
            with Calls() as calls:
                stage(inputs)
            counts.append(calls.count)
    assert np.ptp(counts) == 0
