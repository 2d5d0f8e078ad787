"""Rankers that read the history in order: against loops, with candidates in blocks, with any batch mates."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from limerank.batch import RequestBatch
from limerank.bench.made_up import BUILT_IN, random_request
from limerank.data.batches import RequestLoader
from limerank.data.store.dataset import StoredDataset
from limerank.errors import LimerankError
from limerank.models import ItemState, Ranker, build_ranker
from limerank.models.hstu import HSTURanker
from limerank.models.lime_xor import LimeXORRanker
from limerank.models.mamba import MambaRanker
from limerank.models.sasrec import SASRecRanker
from limerank.nn.layers.mamba import MambaBlock
from limerank.nn.layers.sasrec import SASRecBlock
from limerank.nn.layers.stu import STULayer, STUStack
from limerank.ops import groups, selective_scan, silu_attention
from limerank.serve.user_stage_program import export_user_stage
from limerank.splits import Part

CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5}
EXACT: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-11}


def shaken(module: nn.Module) -> nn.Module:
    """Every parameter moved a little, so that a bias or a norm that is left out shows."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return module.eval()


def setting(dataset: StoredDataset, requests: int = 4, **model: Any) -> tuple[Ranker, RequestBatch]:
    """In fp64: layers of norms enlarge what rounding leaves behind."""
    torch.manual_seed(5)
    loader = RequestLoader(dataset, Part.TRAIN, batch_requests=8, max_history=20)
    ranker = build_ranker(model, dataset.encoders.space(), 2, "test")
    shaken(ranker).double()
    lengths = loader.history_lengths(loader.requests)
    mixed = [int(lengths.argmin()), int(lengths.argmax()), *range(len(lengths) // 2, len(lengths) // 2 + requests - 2)]
    return ranker, loader.assemble(loader.requests[mixed])


def interactions(ranker: Ranker, batch: RequestBatch) -> Tensor:
    user = ranker.encode_user(batch.inputs)
    items = ranker.encode_items(batch.candidates.items).take(batch.candidates.item_of_candidate)
    return ranker.interact(user, items, batch.candidates.offsets)


def sequences(ranker: Ranker, batch: RequestBatch) -> list[tuple[Tensor, Tensor]]:
    """E and T of each request."""
    embedded = ranker.history(batch.inputs)
    targets = ranker.item_tower.candidates(batch.candidates.items)[batch.candidates.item_of_candidate]
    events, candidates = batch.inputs.history.offsets.tolist(), batch.candidates.offsets.tolist()
    return [
        (embedded[events[b] : events[b + 1]], targets[candidates[b] : candidates[b + 1]])
        for b in range(len(batch.inputs))
    ]


def assert_firsts(ranker: Ranker, batch: RequestBatch, expected: list[Tensor]) -> None:
    """The first candidates of each request have these interactions."""
    found = interactions(ranker, batch)
    starts = batch.candidates.offsets.tolist()
    firsts = [found[start : start + len(rows)] for start, rows in zip(starts, expected, strict=False)]
    torch.testing.assert_close(torch.cat(firsts), torch.cat(expected), **EXACT)


def sees(row: int, column: int, events: int) -> bool:
    """The target-aware mask on [E; T]: history is causal, a candidate sees the history and itself."""
    return column <= row if row < events else column < events or column == row


def stu_in_loops(layer: STULayer, rows: Tensor, events: int) -> Tensor:
    """One layer on [E; T], pair by pair."""
    width, heads = rows.shape[1], layer.heads
    normed = functional.layer_norm(rows, (width,), layer.norm.weight, layer.norm.bias, 1e-6)
    projected = normed @ layer.uvqk.weight.T + layer.uvqk.bias
    if layer.all_activated:
        projected = projected * projected.sigmoid()
    gate, values, both = projected[:, :width], projected[:, width : 2 * width], projected[:, 2 * width :]
    queries, keys = both.chunk(2, 1)
    size, query_size = width // heads, queries.shape[1] // heads
    if not layer.all_activated:
        gate = gate * gate.sigmoid()
    attended = torch.zeros_like(rows)
    for head in range(heads):
        own = slice(head * size, (head + 1) * size)
        asked = slice(head * query_size, (head + 1) * query_size)
        for i in range(len(rows)):
            seen = [j for j in range(len(rows)) if sees(i, j, events)]
            scores = torch.stack([queries[i, asked] @ keys[j, asked] for j in seen]) / query_size**0.5
            if layer.activation == "softmax":
                weights = scores.exp() / scores.exp().sum()
            else:
                weights = scores * scores.sigmoid() / (events + 1)
            for weight, j in zip(weights, seen, strict=True):
                attended[i, own] += weight * values[j, own]
    mixed = functional.layer_norm(attended, (width,), layer.out_norm.weight, layer.out_norm.bias, 1e-6) * gate
    if layer.form == "concat":
        mixed = torch.cat([gate, attended, mixed], 1)
    return rows + mixed @ layer.output.weight.T


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"activation": "softmax"},
        {"output": "concat", "uvqk_activation": "all", "heads": 2},
        {"layers": 1, "readout": "sum", "encoding": "position"},
        {"layers": 2, "query_width": 4},
        {"layers": 2, "query_width": 80, "activation": "softmax"},
    ],
    ids=["default", "softmax", "concat", "one layer", "narrow queries", "wide queries"],
)
@torch.no_grad()
def test_hstu_is_its_layers_on_the_concatenated_sequence(dataset: StoredDataset, options: dict[str, Any]) -> None:
    """Prefill and append give what the explicit mask on [E; T] gives, empty history included."""
    ranker, batch = setting(dataset, name="hstu", **options)
    assert isinstance(ranker, HSTURanker)
    expected = []
    for history, targets in sequences(ranker, batch):
        rows = torch.cat([history, targets[:3]])
        for layer in ranker.stack.layers:
            assert isinstance(layer, STULayer)
            rows = stu_in_loops(layer, rows, len(history))
        last = rows[len(history) :]
        expected.append(last - targets[:3] if ranker.options.readout == "sum" else last)
    firsts = [
        slice(int(start), min(int(start) + 3, int(stop))) for start, stop in batch.candidates.offsets.unfold(0, 2, 1)
    ]
    found = interactions(ranker, batch)
    torch.testing.assert_close(torch.cat([found[first] for first in firsts]), torch.cat(expected), **EXACT)


def sasrec_in_loops(block: SASRecBlock, rows: Tensor, events: int) -> Tensor:
    """One block on [E; T], pair by pair."""
    width, heads = rows.shape[1], block.heads
    size = width // heads
    normed = functional.layer_norm(rows, (width,), block.norm.weight, block.norm.bias, 1e-6)
    queries = normed @ block.to_queries.weight.T + block.to_queries.bias
    projected = rows @ block.to_keys_values.weight.T + block.to_keys_values.bias
    keys, values = projected[:, :width], projected[:, width:]
    attended = torch.zeros_like(rows)
    for head in range(heads):
        own = slice(head * size, (head + 1) * size)
        for i in range(len(rows)):
            seen = [j for j in range(len(rows)) if sees(i, j, events)]
            scores = torch.stack([queries[i, own] @ keys[j, own] for j in seen]) / size**0.5
            for weight, j in zip(scores.exp() / scores.exp().sum(), seen, strict=True):
                attended[i, own] += weight * values[j, own]
    joined = normed + attended @ block.join_heads.weight.T + block.join_heads.bias
    mixed = functional.layer_norm(joined, (width,), block.out_norm.weight, block.out_norm.bias, 1e-6)
    hidden = (mixed @ block.to_hidden.weight.T + block.to_hidden.bias).clamp(min=0)
    return mixed + hidden @ block.to_output.weight.T + block.to_output.bias


@pytest.mark.parametrize("readout", ["last", "target"])
@pytest.mark.parametrize("final_norm", [True, False])
@torch.no_grad()
def test_sasrec_is_its_blocks_on_the_concatenated_sequence(
    dataset: StoredDataset, readout: str, final_norm: bool
) -> None:
    """`target` is the candidate's row; `last` that of the last event, and zero without events; a norm follows both."""
    ranker, batch = setting(dataset, name="sasrec", readout=readout, final_norm=final_norm, feed_forward=24)
    assert isinstance(ranker, SASRecRanker)
    assert ranker.encoding is not None
    assert ranker.factorized == ranker.foldable == (readout == "last")
    expected = []
    for history, targets in sequences(ranker, batch):
        rows = torch.cat([history, targets[:3]])
        for block in ranker.stack.layers:
            assert isinstance(block, SASRecBlock)
            rows = sasrec_in_loops(block, rows, len(history))
        norm = ranker.stack.final_norm
        assert (norm is not None) is final_norm
        if norm is not None:
            rows = functional.layer_norm(rows, rows.shape[1:], norm.weight, norm.bias, 1e-6)
        if readout == "last":
            rows[len(history) :] = rows[len(history) - 1] if len(history) else 0
        expected.append(rows[len(history) :])
    assert_firsts(ranker, batch, expected)


def mamba_in_steps(block: MambaBlock, rows: Tensor) -> Tensor:
    """One block over one sequence, event by event."""
    normed = rows / (rows.square().mean(1, keepdim=True) + 1e-6).sqrt() * block.norm.weight
    channels, gate = (normed @ block.to_inner.weight.T).chunk(2, dim=1)
    rank, size, _ = block.parts
    state = rows.new_zeros(channels.shape[1], size)
    out = []
    for t in range(len(rows)):
        mixed = block.taps_bias + sum(block.taps[k] * channels[t - k] for k in range(4) if t >= k)
        x = mixed * mixed.sigmoid()
        selected = block.to_selected.weight @ x
        low, write, read = selected[:rank], selected[rank : rank + size], selected[rank + size :]
        delta = (1 + (block.to_delta.weight @ low + block.to_delta.bias).exp()).log()
        state = (delta[:, None] * -block.log_decay.exp()).exp() * state + delta[:, None] * write * x[:, None]
        out.append((state @ read + block.skip * x) * gate[t] * gate[t].sigmoid())
    return rows + torch.stack(out) @ block.to_output.weight.T if out else rows


@pytest.mark.parametrize("readout", ["last", "state"])
def test_mamba_is_its_recurrence_event_by_event(dataset: StoredDataset, readout: str) -> None:
    """`state` is the output for [E; T_c], each candidate alone; `last` that for E, and zero without events."""
    ranker, batch = setting(dataset, name="mamba", readout=readout)
    assert isinstance(ranker, MambaRanker)
    assert ranker.factorized == ranker.foldable == (readout == "last")
    expected = []
    for history, targets in sequences(ranker, batch):
        for target in targets[:3]:
            rows = torch.cat([history, target[None]]) if readout == "state" else history
            for block in ranker.stack.layers:
                assert isinstance(block, MambaBlock)
                rows = mamba_in_steps(block, rows)
            expected.append(rows[-1:] if len(rows) else torch.zeros(1, rows.shape[1]))
    counts = batch.candidates.offsets.diff().clamp(max=3).tolist()
    assert_firsts(ranker, batch, list(torch.cat(expected).split(counts)))


def test_mamba_gradients_are_those_of_the_steps(dataset: StoredDataset) -> None:
    """Of every parameter of both blocks, through a batch of uneven histories."""
    ranker, batch = setting(dataset, name="mamba")
    assert isinstance(ranker, MambaRanker)
    rows, offsets = ranker.history(batch.inputs).detach(), batch.inputs.history.offsets
    parameters = list(ranker.stack.parameters())
    found = torch.autograd.grad(ranker.stack.last(rows, offsets).square().sum(), parameters)
    total = rows.new_zeros(())
    for start, stop in offsets.unfold(0, 2, 1).tolist():
        own = rows[start:stop]
        for block in ranker.stack.layers:
            assert isinstance(block, MambaBlock)
            own = mamba_in_steps(block, own)
        total = total + own[-1:].square().sum()
    for one, other in zip(found, torch.autograd.grad(total, parameters), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-9)


VARIANTS: list[dict[str, Any]] = [
    {"name": "hstu"},
    {"name": "hstu", "activation": "softmax", "output": "concat"},
    {"name": "hstu", "query_width": 64},
    {"name": "hstu", "query_width": 8, "activation": "softmax"},
    {"name": "sasrec"},
    {"name": "sasrec", "readout": "last"},
    {"name": "sasrec", "final_norm": False},
    {"name": "mamba"},
    {"name": "mamba", "readout": "state"},
]
each_variant = pytest.mark.parametrize("model", VARIANTS, ids=lambda model: "-".join(map(str, model.values())))


@each_variant
@torch.no_grad()
def test_candidates_in_blocks_and_in_any_order(dataset: StoredDataset, model: dict[str, Any]) -> None:
    """A request prefilled once scores its candidates the same in blocks, reversed, all at once, and as in training."""
    ranker, _ = setting(dataset, **model)
    loader = RequestLoader(dataset, Part.TRAIN, batch_requests=1, max_history=20)
    for length in (0, 20):
        request = loader.requests[loader.history_lengths(loader.requests) == length][:1]
        user = ranker.encode_user(loader.assemble(request).inputs)
        rows = ranker.encode_items(dataset.item_table.take(torch.arange(1, 100))).rows

        def interact(part: Tensor, user: Any = user) -> Tensor:
            items = ItemState(part, part.new_zeros(len(part), 0))
            return ranker.interact(user, items, torch.tensor([0, len(part)]))

        together = interact(rows)
        assert torch.isfinite(together).all()
        torch.testing.assert_close(torch.cat([interact(part) for part in rows.split(7)]), together, **EXACT)
        torch.testing.assert_close(interact(rows.flip(0)).flip(0), together, **EXACT)
        with torch.enable_grad():
            torch.testing.assert_close(interact(rows.requires_grad_()).detach(), together, **EXACT)


@each_variant
def test_a_batch_is_its_requests_one_by_one(dataset: StoredDataset, model: dict[str, Any]) -> None:
    """In the values and in the gradients: no request reads the padding of another."""
    ranker, _ = setting(dataset, **model)
    loader = RequestLoader(dataset, Part.TRAIN, batch_requests=8, max_history=20)
    requests = loader.requests[[0, 5, 60, 100, 101, 200]]
    batch = loader.assemble(requests)
    lengths = batch.inputs.history.offsets.diff()
    assert lengths.min() == 0
    assert len(lengths.unique()) > 2
    singles = [loader.assemble(requests[i : i + 1]) for i in range(len(requests))]
    together, alone = ranker(batch), torch.cat([ranker(single) for single in singles])
    torch.testing.assert_close(together, alone, rtol=1e-9, atol=1e-10)
    weights = torch.randn_like(together)
    parameters = list(ranker.parameters())
    found = torch.autograd.grad((together * weights).sum(), parameters, allow_unused=True)
    expected = torch.autograd.grad((alone * weights).sum(), parameters, allow_unused=True)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(
    "model",
    [
        {"name": "hstu", "activation": "softmax", "layers": 2},
        {"name": "hstu", "query_width": 64, "layers": 2},
        {"name": "sasrec"},
        {"name": "sasrec", "readout": "last"},
        {"name": "mamba", "readout": "state", "taps": 2},
    ],
    ids=["hstu", "hstu with wide queries", "sasrec", "sasrec-last", "mamba"],
)
def test_the_user_stage_of_every_readout_is_exported(model: dict[str, Any]) -> None:
    """With histories shorter and longer than the example, and than a chunk of the traced scan."""
    torch.manual_seed(2)
    ranker = shaken(build_ranker(model, BUILT_IN, 1, "test"))
    assert isinstance(ranker, Ranker)
    program = export_user_stage(ranker, random_request(BUILT_IN, 5))
    for length in (1, 31, 32, 33, 100):
        inputs = random_request(BUILT_IN, length, seed=length)
        with torch.no_grad():
            torch.testing.assert_close(program.module()(inputs).memory, ranker.encode_user(inputs).memory, **CLOSE)


@pytest.mark.parametrize("causal", [True, False])
def test_tiles_are_the_whole_matrix(monkeypatch: pytest.MonkeyPatch, causal: bool) -> None:
    """SiLU attention in tiles, values and gradients, against one masked matrix."""
    monkeypatch.setattr(silu_attention, "SCORES_PER_TILE", 1)
    torch.manual_seed(1)
    queries, keys, values = (torch.randn(3, width, 70, dtype=torch.double, requires_grad=True) for width in (4, 4, 5))
    found = silu_attention.silu_attention(queries, keys, values, causal=causal)
    mask = torch.ones(70, 70, dtype=torch.double)
    expected = torch.einsum(
        "gqk,gvk->gvq", functional.silu(queries.mT @ keys) * (mask.tril() if causal else mask), values
    )
    torch.testing.assert_close(found, expected, **EXACT)
    weights = torch.randn_like(found)
    inputs = (queries, keys, values)
    for one, other in zip(
        torch.autograd.grad((found * weights).sum(), inputs),
        torch.autograd.grad((expected * weights).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(one, other, **EXACT)


@pytest.mark.parametrize("reads", [True, False])
def test_both_forms_of_the_scan_are_the_recurrence(monkeypatch: pytest.MonkeyPatch, reads: bool) -> None:
    """Values and gradients, with decays so strong that products of their inverses would overflow."""
    monkeypatch.setattr(selective_scan, "STATES_PER_CHUNK", 100)
    torch.manual_seed(1)
    shapes = [(2, 75, 3), (2, 75, 3), (3, 4), (2, 75, 4), (2, 75, 4)]
    raw = [torch.randn(shape, dtype=torch.double, requires_grad=True) for shape in shapes]
    delta, inputs, decay, write, read = raw[0].abs(), raw[1], -(4 * raw[2]).exp(), raw[3], raw[4]
    state, rows = torch.zeros(2, 3, 4, dtype=torch.double), []
    for t in range(75):
        kept = (delta[:, t, :, None] * decay).exp() * state
        state = kept + (delta[:, t] * inputs[:, t])[..., None] * write[:, t, None]
        rows.append((state * read[:, t, None]).sum(-1))
    weights, last_weights = torch.randn(2, 75, 3, dtype=torch.double), torch.randn_like(state)

    def gradients(out: Tensor | None, last: Tensor) -> tuple[Tensor, ...]:
        total = (last * last_weights).sum() + (0 if out is None else (out * weights).sum())
        return torch.autograd.grad(total, raw if reads else raw[:-1], retain_graph=True)

    expected = gradients(torch.stack(rows, 1) if reads else None, state)
    for scan in (selective_scan.selective_scan, selective_scan._side_by_side):
        out, last = scan(delta, inputs, decay, write, read if reads else None)
        torch.testing.assert_close(last, state, **EXACT)
        if out is not None:
            torch.testing.assert_close(out, torch.stack(rows, 1), **EXACT)
        for one, other in zip(gradients(out, last), expected, strict=True):
            torch.testing.assert_close(one, other, **EXACT)


def test_groups_hold_every_row_once_and_waste_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Padding and back is the identity; lists of very different lengths share no group; padding is zero."""
    monkeypatch.setattr(groups, "ROWS", 200)
    lengths = torch.tensor([0, 100, 3, 0, 90, 40, 16, 1, 95, 0])
    offsets = functional.pad(lengths.cumsum(0), (1, 0))
    rows = torch.arange(1.0, int(offsets[-1]) + 1)[:, None]
    groups._group.cache_clear()
    cut = groups.group_lists(offsets)
    groups._group.cache_clear()
    padded = cut.pad(rows)
    torch.testing.assert_close(cut.unpad(padded), rows)
    assert [tuple(one.shape[:2]) for one in padded] == [(2, 100), (1, 90), (1, 40), (3, 16)]
    assert cut.numbers.tolist() == [1, 8, 4, 5, 6, 2, 7]
    for number, own in zip(cut.numbers.tolist(), (one for group in padded for one in group), strict=True):
        start, stop = offsets[number : number + 2].tolist()
        torch.testing.assert_close(own[: stop - start], rows[start:stop])
        assert (own[stop - start :] == 0).all()


@torch.no_grad()
def test_a_stack_along_histories_is_causal() -> None:
    """STUStack.forward, which other rankers build on: an event never changes the rows before it, nor other lists."""
    torch.manual_seed(3)
    stack = shaken(STUStack(8, 2, 2))
    assert isinstance(stack, STUStack)
    rows, offsets = torch.randn(12, 8), torch.tensor([0, 7, 7, 12])
    before = stack(rows, offsets)
    rows[4] = -rows[4]
    after = stack(rows, offsets)
    changed = (before != after).any(1).nonzero()[:, 0].tolist()
    assert changed == [4, 5, 6]
    layer_by_layer = rows[:7]
    for layer in stack.layers:
        assert isinstance(layer, STULayer)
        layer_by_layer = stu_in_loops(layer, layer_by_layer, 7)
    torch.testing.assert_close(after[:7], layer_by_layer, **CLOSE)


def fraction_of_pairs(events: int, requests: int = 1, heads: int = 4) -> float:
    """How much of N^2 causal SiLU attention computes."""
    rows = torch.empty(requests * heads, 8, events)
    tiles = silu_attention._tiles(rows, rows, causal=True)
    return sum((stop - start) * seen for start, stop, seen in tiles) / events**2


def test_the_docs_say_how_many_pairs_a_causal_layer_computes() -> None:
    page = " ".join((Path(__file__).parents[2] / "docs/rankers/sequence.md").read_text().split())
    (whole,) = map(int, re.findall(r"all N² pairs, up to N = (\d+),", page))
    assert fraction_of_pairs(whole) == 1 > fraction_of_pairs(whole + 1)
    assert "three quarters of them at 512" in page
    assert fraction_of_pairs(512) == 0.75
    assert f"and {fraction_of_pairs(1024):.2f} N² at 1,024" in page
    assert f"{fraction_of_pairs(256, groups.ROWS // 256):.3f} N² at 256" in page
    assert fraction_of_pairs(10_000) == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("name", ["hstu", "lime-xor"])
@torch.no_grad()
def test_queries_may_be_as_narrow_and_as_wide_as_in_the_papers_sweep(name: str) -> None:
    """16 and 4,096 of QK width at d = 256; the interaction stays d wide."""
    for query_width in (16, 4096):
        options = {"name": name, "width": 256, "layers": 2, "query_width": query_width}
        ranker = build_ranker(options, BUILT_IN, 1, "test").eval()
        user = ranker.encode_user(random_request(BUILT_IN, 6))
        rows = torch.randn(3, 256)
        items = ItemState(ranker.item_rows(rows), rows.new_zeros(3, 0))
        interaction = ranker.interact(user, items, torch.tensor([0, 3]))
        assert interaction.shape == (3, 256)
        assert torch.isfinite(interaction).all()


@pytest.mark.parametrize("query_width", [None, 32, 64])
def test_lime_xor_streams_whatever_the_width_of_its_queries(query_width: int | None) -> None:
    ranker = build_ranker({"name": "lime-xor", "width": 32, "query_width": query_width}, BUILT_IN, 1, "test")
    assert isinstance(ranker, LimeXORRanker)
    assert ranker.stack.design.fusible


def test_queries_that_heads_cannot_share_are_refused() -> None:
    with pytest.raises(LimerankError, match="query_width 18 cannot be split into 4 heads"):
        build_ranker({"name": "hstu", "query_width": 18}, BUILT_IN, 1, "test")
