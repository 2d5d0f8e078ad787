"""Walking histories whose rows are held once equals plain operators on the whole batch: values and all gradients."""

from __future__ import annotations

import pytest
import torch
from numeric import assert_three_way
from torch import Tensor, nn

from limerank.ops.gathered import Gathered, attend_gathered, distinct, gathers, weighs
from limerank.ops.gathered import absorbed as absorbed_module
from limerank.ops.gathered import attend as attend_module
from limerank.ops.gathered import by_head as by_head_module
from limerank.ops.gathered import walk as walk_module
from limerank.ops.target_attention import attend_jagged

HEADS, WIDTH = 4, 12
LENGTHS = [[7, 0, 30, 1, 12], [0, 0], [5]]
QUERIES = [[3, 2, 9, 0, 1], [2, 1], [11]]


def offsets_of(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0)


def attention_inputs(
    lengths: list[int], queries: list[int], *, gathered: bool, key_width: int = 3, value_width: int = 5
) -> dict[str, Tensor]:
    """Rows, queries, weight and bias in fp64, all with gradients, and an index that uses rows repeatedly or never."""
    torch.manual_seed(0)
    events = sum(lengths)
    rows = 9 if gathered else events
    outputs = HEADS * (key_width + value_width)
    made = {
        "queries": torch.randn(sum(queries), HEADS, key_width, dtype=torch.float64),
        "rows": torch.randn(rows, WIDTH, dtype=torch.float64),
        "weight": torch.randn(outputs, WIDTH, dtype=torch.float64),
        "bias": torch.randn(outputs, dtype=torch.float64),
    }
    made = {name: tensor.requires_grad_() for name, tensor in made.items()}
    return {**made, "index": torch.randint(0, 7, (events,)), "cotangent": torch.randn(sum(queries), HEADS, value_width)}


def walked(given: dict[str, Tensor], queries: list[int], lengths: list[int], gathered: bool) -> Tensor:
    history = Gathered(given["rows"], given["index"] if gathered else None)
    offsets = offsets_of(queries), offsets_of(lengths)
    return attend_gathered(given["queries"], offsets[0], history, offsets[1], given["weight"], given["bias"])


def plain(given: dict[str, Tensor], queries: list[int], lengths: list[int], gathered: bool) -> Tensor:
    rows = given["rows"].index_select(0, given["index"]) if gathered else given["rows"]
    keys, values = (rows @ given["weight"].T + given["bias"]).split(
        [HEADS * given["queries"].shape[2], given["weight"].shape[0] - HEADS * given["queries"].shape[2]], 1
    )
    return attend_jagged(
        given["queries"],
        offsets_of(queries),
        keys.unflatten(1, (HEADS, -1)),
        values.unflatten(1, (HEADS, -1)),
        offsets_of(lengths),
    )


def with_gradients(out: Tensor, given: dict[str, Tensor]) -> list[Tensor]:
    named = [given[name] for name in ("queries", "rows", "weight", "bias")]
    gradients = torch.autograd.grad(out, named, given["cotangent"].to(out.dtype), allow_unused=True)
    return [out.detach(), *(torch.zeros_like(a) if g is None else g for a, g in zip(named, gradients, strict=True))]


@pytest.mark.parametrize("few", [0, 10**9], ids=["by head", "absorbed"])
@pytest.mark.parametrize("gathered", [True, False], ids=["rows held once", "a row per event"])
@pytest.mark.parametrize("kept", [0, 2**20], ids=["weights again", "weights kept"])
@pytest.mark.parametrize(("lengths", "queries"), list(zip(LENGTHS, QUERIES, strict=True)), ids=str)
def test_attention_equals_operators(
    lengths: list[int], queries: list[int], kept: int, gathered: bool, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ways, in fp64: empty histories, requests without queries, several blocks of queries, a != v."""
    monkeypatch.setattr(attend_module, "FEW_QUERIES", few)
    monkeypatch.setattr(walk_module, "KEPT", kept)
    monkeypatch.setattr(by_head_module, "MOST_QUERIES", 4)
    monkeypatch.setattr(absorbed_module, "MOST_PAIRS", 5)
    given = attention_inputs(lengths, queries, gathered=gathered)
    ours, theirs = (with_gradients(way(given, queries, lengths, gathered), given) for way in (walked, plain))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("few", [0, 10**9], ids=["by head", "absorbed"])
def test_as_exact_as_operators_in_fp32(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """fp32 against fp64 by the three-way rule, for the result and every gradient."""
    monkeypatch.setattr(attend_module, "FEW_QUERIES", few)
    lengths, queries = [300, 0, 700], [20, 3, 40]
    exact = attention_inputs(lengths, queries, gathered=True)
    truth = with_gradients(plain(exact, queries, lengths, True), exact)
    given = {
        name: one.detach().float().requires_grad_(one.requires_grad) if one.is_floating_point() else one
        for name, one in exact.items()
    }
    ours, theirs = (with_gradients(way(given, queries, lengths, True), given) for way in (walked, plain))
    assert_three_way(ours, theirs, truth, 5, ["out", "queries", "rows", "weight", "bias"])


def test_a_request_does_not_see_its_batch_mates() -> None:
    """A batch is its requests one by one, in fp64 to rounding."""
    lengths, queries = [40, 3, 0, 25], [9, 12, 10, 11]
    given = attention_inputs(lengths, queries, gathered=True)
    together = walked(given, queries, lengths, True).detach()
    events, asked = offsets_of(lengths), offsets_of(queries)
    for number, (length, count) in enumerate(zip(lengths, queries, strict=True)):
        own = {
            **given,
            "queries": given["queries"][asked[number] : asked[number + 1]],
            "index": given["index"][events[number] : events[number + 1]],
        }
        alone = walked(own, [count], [length], True).detach()
        torch.testing.assert_close(alone, together[asked[number] : asked[number + 1]], rtol=1e-10, atol=1e-10)


def test_where_it_is_used() -> None:
    """Long histories and narrow heads in training; not without gradients, for wide heads or in half precision."""
    rows = torch.zeros(1, 32)
    assert gathers(rows, 2560, 10, 4)
    assert not gathers(rows, 2559, 10, 4)
    assert not gathers(rows, 2560, 10, 1)
    assert not gathers(torch.zeros(1, 128), 2560, 10, 4)
    assert not gathers(rows.half(), 2560, 10, 4)
    assert not gathers(rows.to("meta"), 2560, 10, 4)
    assert weighs(rows, 1280, 10)
    assert not weighs(rows, 1279, 10)
    with torch.no_grad():
        assert not gathers(rows, 2560, 10, 4)
        assert not weighs(rows, 1280, 10)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not gathers(rows, 2560, 10, 4)


def test_distinct_is_unique() -> None:
    """Numbers and where each code stands among them, as sorting finds them."""
    codes = torch.randint(0, 50, (40,), generator=torch.Generator().manual_seed(0))
    numbers, position = distinct(codes, 60)
    expected, inverse = torch.unique(codes, return_inverse=True)
    assert torch.equal(numbers, expected)
    assert torch.equal(position, inverse)
    assert [len(one) for one in distinct(codes[:0], 0)] == [0, 0]


def test_a_gathered_matrix_changes_row_by_row() -> None:
    """What is done to the rows that are held is done to all of them."""
    rows, layer = torch.randn(5, 4), nn.Linear(4, 3)
    gathered = Gathered(rows, torch.tensor([4, 4, 0]))
    assert torch.equal(gathered.map(layer).all(), layer(rows)[[4, 4, 0]])
    assert Gathered(rows).all() is rows
