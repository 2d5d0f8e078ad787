"""Link pooling: streamed, merged, absorbed and incremental states all equal one softmax over the whole history."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numeric import assert_three_way, poisoned_buffers
from torch import Tensor

from limerank.errors import ArgumentError
from limerank.ops.link_pool import (
    HistoryProjection,
    LinkPool,
    PoolState,
    absorb_keys,
    absorbed,
    merge_states,
    pool,
    pool_absorbed,
    project_pooled,
)
from limerank.ops.target_attention import attend_dense

HEADS, LINKS, WIDTH, VALUE = 2, 3, 4, 5


def events(count: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Keys, values and times (seconds since 1970, as logs have them) of one history."""
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randn(count, HEADS, WIDTH, generator=generator, dtype=torch.float64)
    values = torch.randn(count, HEADS, VALUE, generator=generator, dtype=torch.float64)
    times = 1_700_000_000 + torch.randint(0, 3 * 365 * 86_400, (count,), generator=generator)
    return keys.to(dtype), values.to(dtype), times.sort().values


def links(seed: int = 9, dtype: torch.dtype = torch.float64, decay: float | None = None) -> LinkPool:
    generator = torch.Generator().manual_seed(seed)
    queries = torch.randn(HEADS, LINKS, WIDTH, generator=generator, dtype=torch.float64).to(dtype)
    faster = torch.arange(1, HEADS + 1, dtype=dtype)
    return LinkPool(queries, None if decay is None else decay * faster)


def one_softmax(pool: LinkPool, keys: Tensor, values: Tensor, times: Tensor | None, now: int = 1_800_000_000) -> Tensor:
    """The definition: a softmax over all events at once, with the age at a time `now` that must not matter."""
    scores = torch.einsum("hla,nha->hln", pool.queries.double(), keys.double())
    if pool.decay is not None and times is not None:
        scores = scores - pool.decay.double()[:, None, None] * (now - times)
    return torch.einsum("hln,nhv->hlv", scores.softmax(-1), values.double())


@pytest.mark.parametrize("decay", [None, 1e-6])
@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 1023, 1024, 1025, 3000])
def test_streamed_equals_one_softmax(count: int, decay: float | None) -> None:
    pool_, (keys, values, times) = links(decay=decay), events(count)
    given_times = times if decay else None
    state = pool_.pool(keys, values, given_times)
    torch.testing.assert_close(state.finalize(), one_softmax(pool_, keys, values, given_times), rtol=1e-9, atol=1e-12)


def test_recency_is_exact_in_fp32_over_years_of_seconds() -> None:
    """Times of 1.7e9 seconds lose nothing: levels are fp64 and ages are taken before they are rounded."""
    exact, single = links(decay=1e-5), links(decay=1e-5, dtype=torch.float32)
    keys, values, times = events(2000, dtype=torch.float32)
    expected = one_softmax(exact, keys, values, times)
    state = single.pool(keys[:1500], values[:1500], times[:1500])
    for position in range(1500, 2000):
        part = slice(position, position + 1)
        single.append(state, keys[part], values[part], times[part])
    torch.testing.assert_close(state.finalize().double(), expected, rtol=1e-5, atol=1e-5)


@settings(max_examples=50, deadline=None)
@given(
    cuts=st.lists(st.integers(0, 60), max_size=6),
    order=st.randoms(use_true_random=False),
    decay=st.sampled_from([None, 1e-7]),
    sharpness=st.sampled_from([1.0, 40.0]),
)
def test_any_cut_merged_in_any_order_is_the_whole(
    cuts: list[int], order: Any, decay: float | None, sharpness: float
) -> None:
    """Merging is associative and commutative, and the empty state is neutral."""
    pool_, (keys, values, times) = links(decay=decay), events(60)
    keys = keys * sharpness
    bounds = sorted([0, 60, *cuts])
    parts = [slice(a, b) for a, b in pairwise(bounds)]
    states = [pool_.pool(keys[p], values[p], times[p] if decay else None) for p in parts]
    whole = one_softmax(pool_, keys, values, times if decay else None)
    order.shuffle(states)
    left = states[0]
    for state in states[1:]:
        left = left.merge(state)
    right = states[-1]
    for state in reversed(states[:-1]):
        right = state.merge(right)
    for merged in (left, right, merge_states(states)):
        torch.testing.assert_close(merged.finalize(), whole, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(merged.level, left.level)
        torch.testing.assert_close(merged.mass, left.mass)


@pytest.mark.parametrize("decay", [None, 1e-6])
def test_appending_one_by_one_equals_all_at_once(decay: float | None) -> None:
    """Incremental equals full to 1e-5 in fp32, also when scores rise event by event, so that the level has to."""
    pool_, (keys, values, times) = links(decay=decay, dtype=torch.float32), events(500, dtype=torch.float32)
    keys = keys * torch.linspace(0.1, 40, 500)[:, None, None]
    whole = one_softmax(pool_, keys, values, times if decay else None)
    state = PoolState.empty(HEADS, LINKS, VALUE)
    for position in range(500):
        part = slice(position, position + 1)
        pool_.append(state, keys[part], values[part], times[part] if decay else None)
    torch.testing.assert_close(state.finalize().double(), whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("decay", [None, 1e-6])
def test_a_single_absorbed_event(decay: float | None) -> None:
    """`append_row` is `append` for one row that all heads share; a row far above the level raises it."""
    pool_ = links(decay=decay)
    rows = torch.randn(300, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rows[200] *= 100
    times = torch.arange(300, dtype=torch.float64) * 3600
    shared = rows[:, None]
    expected = pool_.pool(shared, shared, times if decay else None)
    state = PoolState.empty(HEADS, LINKS, WIDTH, dtype=torch.float64)
    for row, time in zip(rows, times.tolist(), strict=True):
        pool_.append_row(state, row, time if decay else None)
    torch.testing.assert_close(state.finalize(), expected.finalize())
    with pytest.raises(ArgumentError, match="keys .* holds 4 values that are not finite"):
        pool_.append_row(state, rows[0] * torch.nan, 0.0 if decay else None)
    torch.testing.assert_close(state.finalize(), expected.finalize(), msg="a refused event must leave no trace")


def projection(width: int, heads: int, dtype: torch.dtype) -> HistoryProjection:
    generator = torch.Generator().manual_seed(4)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    weight = draw(2, heads * 6, width) / width**0.5
    return HistoryProjection(1 + 0.1 * draw(width), 0.1 * draw(width), 1e-6, weight[0], weight[1], draw(heads * 6))


@pytest.mark.parametrize("count", [0, 1, 1500])
def test_absorbed_equals_projected(count: int) -> None:
    """No key and no value of the history is computed, and the pooled values are the same (three-way rule)."""
    width, heads = 10, 2
    generator = torch.Generator().manual_seed(5)
    rows = torch.randn(count, width, generator=generator)
    queries = torch.randn(heads, 3, 6, generator=generator)

    def projected(dtype: torch.dtype) -> Tensor:
        maps = projection(width, heads, dtype)
        normal = maps.normalized(rows.to(dtype))[:, 0]
        keys = (normal @ maps.key_weight.T).view(count, heads, 6)
        values = (normal @ maps.value_weight.T + maps.value_bias).view(count, heads, 6)
        return attend_dense(queries.to(dtype).transpose(0, 1)[None], keys, values, torch.tensor([0, count]))[0]

    maps = projection(width, heads, torch.float32)
    state = pool_absorbed(rows, LinkPool(absorb_keys(queries, maps.key_weight, 6**-0.5)), maps)
    got = project_pooled(state.finalize(), maps.value_weight, maps.value_bias, count).transpose(0, 1)
    assert_three_way([got], [projected(torch.float32)], [projected(torch.float64)], 2, ["pooled"])


def test_nothing_uninitialized_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    pool_, (keys, values, _) = links(), events(1500)
    expected = pool_.pool(keys, values).finalize()
    with poisoned_buffers(monkeypatch):
        assert torch.equal(pool_.pool(keys, values).finalize(), expected)
        state = pool_.pool(keys[:9], values[:9]).merge(pool_.pool(keys[9:], values[9:]))
    torch.testing.assert_close(state.finalize(), expected)


def test_empty_states() -> None:
    """An empty history pools to zero, alone and merged; its copy is independent."""
    empty = PoolState.empty(HEADS, LINKS, VALUE)
    assert empty.finalize().eq(0).all()
    assert empty.merge(empty).finalize().eq(0).all()
    other = empty.copy()
    links(dtype=torch.float32).append(other, *events(3, dtype=torch.float32)[:2])
    assert empty.mass.eq(0).all()
    assert other.mass.gt(0).all()
    assert empty.bytes == HEADS * LINKS * (8 + 4 + 4 + 4 * VALUE)


def call(**changes: Any) -> Callable[[], object]:
    keys, values, times = events(5)
    arguments: dict[str, Any] = {
        "pool": links(),
        "keys": keys,
        "values": values,
        "times": None,
        "state": PoolState.empty(HEADS, LINKS, VALUE, dtype=torch.float64),
    } | {name: change(keys, values, times) if callable(change) else change for name, change in changes.items()}
    return lambda: arguments["pool"].append(
        arguments["state"], arguments["keys"], arguments["values"], arguments["times"]
    )


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (call(keys=lambda k, v, t: k[..., :3]), r"keys \[5, 2, 3\] do not fit queries \[2, 3, 4\].*\[n, 2, 4\]"),
        (call(values=lambda k, v, t: v[:4]), r"values \[4, 2, 5\] do not fit keys \[5, 2, 4\]"),
        (call(state=PoolState.empty(2, 3, 4, dtype=torch.float64)), r"state \[2, 3, 4\] does not fit.*\[2, 3, 5\]"),
        (call(values=lambda k, v, t: v.float()), "values is torch.float32, but queries is torch.float64"),
        (call(keys=lambda k, v, t: k * torch.nan), r"keys \[5, 2, 4\] holds 40 values that are not finite"),
        (call(values=lambda k, v, t: v * torch.inf), r"values \[5, 2, 5\] holds 50 values that are not finite"),
        (call(times=lambda k, v, t: t), "times and decay belong together"),
        (call(pool=links(decay=0.1)), "times and decay belong together"),
        (call(pool=links(decay=0.1), times=lambda k, v, t: t[:3]), r"times \[3\] of torch.int64 must be one.*\[5\]"),
        (call(pool=links(decay=0.1), times=lambda k, v, t: t.float()), "of torch.float32 must be one int64 or float64"),
        (lambda: LinkPool(torch.zeros(2, 3)), r"queries must be \[H, l, a\], but has shape \[2, 3\]"),
        (lambda: LinkPool(torch.zeros(2, 3, 4), torch.zeros(3)), r"decay \[3\] does not fit queries \[2, 3, 4\]"),
        (lambda: links().append_row(PoolState.empty(2, 3, 4), torch.zeros(5)), r"row \[5\] and state \[2, 3, 4\]"),
        (lambda: merge_states([]), "nothing to merge"),
        (
            lambda: PoolState.empty(2, 3, 4).merge(PoolState.empty(2, 3, 5)),
            r"states\[1\].total \[2, 3, 5\] does not fit states\[0\].total \[2, 3, 4\]",
        ),
        (
            lambda: absorb_keys(torch.zeros(2, 3, 4), torch.zeros(6, 9), 1.0),
            r"queries \[2, 3, 4\] does not fit key_weight per head \[2, 3, 9\]",
        ),
    ],
)
def test_bad_input_names_the_argument_and_both_shapes(broken: Callable[[], object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        broken()


def test_the_stream_holds_one_chunk_of_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tensor of size N x H x l exists: the longest score matrix is a chunk's."""
    seen: list[int] = []
    add = pool.add_scores

    def spy(state: PoolState, scores: Tensor, values: Tensor, shift: Tensor | None = None) -> None:
        seen.append(scores.numel())
        add(state, scores, values, shift)

    monkeypatch.setattr(pool, "add_scores", spy)
    links().pool(*events(10 * pool.CHUNK)[:2])
    assert len(seen) == 10
    assert max(seen) == pool.CHUNK * HEADS * LINKS


def test_an_event_appended_to_a_long_history_is_exact() -> None:
    """At LIME-MHA's industrial size, 16,384 events and one more: the same as pooling all of them, to 1e-5."""
    width, heads, count = 256, 4, 16_384
    generator = torch.Generator().manual_seed(6)
    rows = torch.randn(count + 1, width, generator=generator)
    maps = HistoryProjection(
        torch.ones(width),
        torch.zeros(width),
        1e-6,
        torch.randn(width, width, generator=generator) / 16,
        torch.randn(width, width, generator=generator) / 16,
        torch.zeros(width),
    )
    queries = torch.randn(heads, 32, width // heads, generator=generator)
    pool_ = LinkPool(absorb_keys(queries, maps.key_weight, 0.125))
    state = pool_absorbed(rows[:count], pool_, maps)
    pool_.append_row(state, maps.normalized(rows[count:])[0, 0])
    full = pool_absorbed(rows, pool_, maps)
    torch.testing.assert_close(state.finalize(), full.finalize(), rtol=1e-5, atol=1e-5)


def test_infinity_hides_nowhere() -> None:
    """A row whose scores are all minus infinity would weigh nothing and poison the sums."""
    pool_ = LinkPool(-torch.ones(1, 2, 3))
    state = pool_.pool(torch.zeros(2, 1, 3), torch.zeros(2, 1, 3))
    refusals: list[Callable[[Tensor], object]] = [
        lambda row: pool_.append_row(state, row),
        lambda row: pool_.append(state, row[None, None], row[None, None]),
        lambda row: pool_.append(state, row[None, None], torch.zeros(1, 1, 3)),
    ]
    for refuse in refusals:
        with pytest.raises(ArgumentError, match="keys .* holds 1 values that are not finite"):
            refuse(torch.tensor([torch.inf, 1.0, 1.0]))
    assert torch.equal(state.finalize(), torch.zeros(1, 2, 3))


@pytest.mark.parametrize("position", [5, 2500])
def test_refused_events_leave_no_trace_however_many(position: int) -> None:
    """A bad key, value or time anywhere in 3,000 events leaves the state as it was."""
    pool_, (keys, values, times) = links(decay=1e-6), events(3000)
    stamps = times.double()
    state = pool_.pool(keys[:4], values[:4], stamps[:4])
    before = state.copy()
    for broken in (keys, values, stamps):
        kept = broken[position].clone()
        broken[position] = torch.nan
        with pytest.raises(ArgumentError, match="not finite"):
            pool_.append(state, keys, values, stamps)
        broken[position] = kept
    keys[position] = 1e308  # finite, but its scores are not
    with pytest.raises(ArgumentError, match="scores of an event are not finite"):
        pool_.append(state, keys, values, stamps)
    for mine, theirs in ((state.level, before.level), (state.mass, before.mass), (state.total, before.total)):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("decay", [None, 2e-4])
def test_absorbed_over_several_chunks_and_appends(decay: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without recency: chunks, parts in any order, a second append and single rows all equal one softmax."""
    pool_, count = links(decay=decay), 2 * pool.CHUNK + 300
    generator = torch.Generator().manual_seed(8)
    rows = torch.randn(count, WIDTH, generator=generator, dtype=torch.float64)
    times = torch.arange(count, dtype=torch.float64) * 60 if decay else None
    same = torch.eye(WIDTH, dtype=torch.float64)
    maps = HistoryProjection(same.new_ones(WIDTH), same.new_zeros(WIDTH), 1e-6, same, same, same.new_zeros(WIDTH))
    normal = maps.normalized(rows)
    shared = normal.expand(count, HEADS, WIDTH)
    expected = one_softmax(pool_, shared, shared, times, now=10**6)
    streamed = pool_absorbed(rows, pool_, maps, times)
    monkeypatch.setattr(absorbed, "PART", 500)
    dealt = pool_absorbed(rows, pool_, maps, times, deal=lambda works: [work() for work in works[::-1]][::-1])
    assert torch.equal(dealt.total, pool_absorbed(rows, pool_, maps, times).total)
    appended = pool_.pool(normal[:7], normal[:7], None if times is None else times[:7])
    pool_.append(appended, normal[7:-1], normal[7:-1], None if times is None else times[7:-1])
    pool_.append_row(appended, normal[-1, 0], None if times is None else float(times[-1]))
    for state in (streamed, dealt, appended):
        torch.testing.assert_close(state.finalize(), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("base", [-1_700_000_000, -100_000, 0, 1_700_000_000])
def test_times_of_any_origin_in_fp32(base: int) -> None:
    """Before 1970 and after: ages are taken against the latest event."""
    keys, values, _ = events(200, dtype=torch.float32)
    times = torch.arange(200) * 3600 + base
    decay = torch.tensor([1e-4, -3e-6])
    pool_ = LinkPool(links(dtype=torch.float32).queries, decay)
    expected = one_softmax(pool_, keys, values, times, now=base)
    torch.testing.assert_close(pool_.pool(keys, values, times).finalize().double(), expected, rtol=1e-5, atol=1e-5)


def test_half_precision_is_refused() -> None:
    """Thousands of events do not add up in half precision."""
    with pytest.raises(ArgumentError, match="queries must be float32 or float64, not torch.float16"):
        LinkPool(torch.zeros(1, 2, 3, dtype=torch.float16))
