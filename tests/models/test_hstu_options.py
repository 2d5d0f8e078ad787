"""What HSTU may be built with besides its defaults: against a plain reference, alone, in batches and exported."""

from __future__ import annotations

from dataclasses import replace
from math import floor, log2
from typing import Any

import numpy as np
import pytest
import torch
from dense_lime import EXACT, shaken
from torch import Tensor
from torch.nn import functional

from limerank.batch import RequestBatch
from limerank.bench.made_up import BUILT_IN, random_request
from limerank.config import finished_model
from limerank.data.batches import RequestLoader
from limerank.data.store.dataset import StoredDataset
from limerank.errors import DataError
from limerank.models import ItemState, build_ranker
from limerank.models.hstu import HSTURanker
from limerank.nn.layers.stu import HeadNorm, STULayer
from limerank.serve.bundles.bundle import NEWER_OPTIONS
from limerank.serve.user_stage_program import export_user_stage
from limerank.splits import Part

POSITIONS = 8
"""Fewer than the events of the longest history."""
DESIGNS: dict[str, dict[str, Any]] = {
    "position": {"relative_bias": "position"},
    "time": {"relative_bias": "time", "scale": 1.0},
    "both": {"relative_bias": "position-time", "output_norm": "group", "query_width": 8},
    "both, softmax": {"relative_bias": "position-time", "activation": "softmax", "query_width": 40},
    "softmax, as wide as values": {"relative_bias": "time", "activation": "softmax", "width": 36, "query_width": 32},
    "group": {"output_norm": "group", "output": "concat"},
    "none": {"output_norm": "none", "scale": 0.5},
}
each_design = pytest.mark.parametrize("options", DESIGNS.values(), ids=DESIGNS)


def setting(dataset: StoredDataset, **options: Any) -> tuple[HSTURanker, RequestLoader, RequestBatch]:
    """In fp64, with tables as large as scores; a batch of an empty history, short and long ones."""
    torch.manual_seed(5)
    model = {"name": "hstu", "layers": 2, "positions": POSITIONS, **options}
    ranker = build_ranker(model, dataset.encoders.space(), 2, "test")
    assert isinstance(ranker, HSTURanker)
    shaken(ranker)
    for name, parameter in ranker.named_parameters():
        if "relative_bias" in name:
            torch.nn.init.normal_(parameter)
    loader = RequestLoader(dataset, Part.TRAIN, batch_requests=8, max_history=20, with_times=True)
    lengths = loader.history_lengths(loader.requests)
    chosen = [int(np.flatnonzero(lengths == length)[0]) for length in (0, 20)]
    batch = loader.assemble(loader.requests[[*chosen, len(lengths) // 2, len(lengths) // 2 + 1]])
    return ranker, loader, batch


def added(layer: STULayer, times: Tensor, events: int) -> Tensor:
    """The bias of all pairs of [E; T]: candidates stand behind the last event, at the time of the request."""
    rows = len(times)
    position = [min(row, events) for row in range(rows)]
    total = torch.zeros(rows, rows, dtype=torch.double)
    tables = layer.relative_bias
    if tables is None:
        return total
    for i in range(rows):
        for j in range(i + 1):
            if tables.position is not None:
                total[i, j] += tables.position[min(position[i] - position[j], POSITIONS - 1)]
            if tables.time is not None:
                age = int(times[i] - times[j])
                total[i, j] += tables.time[0 if age < 1000 else floor(2 * log2(age / 1000)) + 1]
    return total


def in_matrices(layer: STULayer, options: dict[str, Any], rows: Tensor, times: Tensor, events: int) -> Tensor:
    """One layer on [E; T] of one request, every pair at once under the target-aware mask."""
    width, heads = rows.shape[1], layer.heads
    projected = layer.uvqk(functional.layer_norm(rows, (width,), layer.norm.weight, layer.norm.bias, 1e-6))
    gate, values = functional.silu(projected[:, :width]), projected[:, width : 2 * width].unflatten(1, (heads, -1))
    queries, keys = (part.unflatten(1, (heads, -1)) for part in projected[:, 2 * width :].chunk(2, 1))
    mask = torch.ones(len(rows), len(rows)).tril().bool()
    mask[events:, events:] = torch.eye(len(rows) - events).bool()
    scale = options.get("scale") or queries.shape[-1] ** -0.5
    scores = scale * torch.einsum("iha,jha->hij", queries, keys) + added(layer, times, events)
    if options.get("activation") == "softmax":
        weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
    else:
        weights = functional.silu(scores) * mask / (events + 1)
    read = torch.einsum("hij,jhv->ihv", weights, values).flatten(1)
    match options.get("output_norm", "layer"):
        case "layer":
            normed = functional.layer_norm(read, (width,), layer.out_norm.weight, layer.out_norm.bias, 1e-6)
        case "group":
            grouped = read.unflatten(1, (heads, -1))
            normed = functional.group_norm(grouped, heads, layer.out_norm.weight, layer.out_norm.bias, 1e-6).flatten(1)
        case _:
            normed = read
    mixed = torch.cat([gate, read, normed * gate], 1) if options.get("output") == "concat" else normed * gate
    return rows + mixed @ layer.output.weight.T


def check_layers(ranker: HSTURanker, options: dict[str, Any], batch: RequestBatch) -> None:
    embedded = ranker.history(batch.inputs)
    targets = ranker.item_tower.candidates(batch.candidates.items)[batch.candidates.item_of_candidate]
    happened, asked = batch.inputs.history.times, batch.inputs.times
    assert happened is not None
    assert asked is not None
    user = ranker.encode_user(batch.inputs)
    items = ItemState(targets, targets.new_zeros(len(targets), 0))
    found = ranker.interact(user, items, batch.candidates.offsets)
    expected = []
    events = batch.inputs.history.offsets.unfold(0, 2, 1).tolist()
    candidates = batch.candidates.offsets.unfold(0, 2, 1).tolist()
    for now, (start, stop), (first, last) in zip(asked, events, candidates, strict=True):
        rows = torch.cat([embedded[start:stop], targets[first:last]])
        times = torch.cat([happened[start:stop], now.expand(last - first)])
        for layer in ranker.stack.stu_layers():
            rows = in_matrices(layer, options, rows, times, stop - start)
        expected.append(rows[stop - start :])
    torch.testing.assert_close(found, torch.cat(expected), **EXACT)


@each_design
@torch.no_grad()
def test_every_design_is_its_layers_on_the_concatenated_sequence(
    dataset: StoredDataset, options: dict[str, Any]
) -> None:
    """Histories that are empty, longer than the table of distances, and of one event; then one whose events all
    happened at once.
    """
    ranker, loader, batch = setting(dataset, **options)
    check_layers(ranker, options, batch)
    one_event = RequestLoader(dataset, Part.TRAIN, batch_requests=8, max_history=1, with_times=True)
    batch = one_event.assemble(one_event.requests[-2:])
    assert batch.inputs.history.offsets.tolist() == [0, 1, 2]
    check_layers(ranker, options, batch)
    longest = int(loader.history_lengths(loader.requests).argmax())
    batch = loader.assemble(loader.requests[longest : longest + 1])
    history, now = batch.inputs.history, batch.inputs.times
    assert now is not None
    tied = replace(history, times=now.expand(len(history.item_of_event)))
    check_layers(ranker, options, replace(batch, inputs=replace(batch.inputs, history=tied)))


@each_design
def test_no_score_depends_on_batch_mates_or_other_candidates(dataset: StoredDataset, options: dict[str, Any]) -> None:
    """Values and gradients of a batch are those of its requests; candidates may come in any blocks and order."""
    ranker, loader, _ = setting(dataset, **options)
    requests = loader.requests[[0, 5, 60, 100, 101, 200]]
    batch = loader.assemble(requests)
    assert batch.inputs.history.offsets.diff().min() == 0
    together = ranker(batch)
    alone = torch.cat([ranker(loader.assemble(requests[i : i + 1])) for i in range(len(requests))])
    torch.testing.assert_close(together, alone, rtol=1e-9, atol=1e-10)
    weights, parameters = torch.randn_like(together), list(ranker.parameters())
    found = torch.autograd.grad((together * weights).sum(), parameters, allow_unused=True)
    expected = torch.autograd.grad((alone * weights).sum(), parameters, allow_unused=True)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-9)
    with torch.no_grad():
        user = ranker.encode_user(loader.assemble(requests[-1:]).inputs)
        rows = torch.randn(30, ranker.options.width, dtype=torch.double)

        def interact(part: Tensor) -> Tensor:
            return ranker.interact(user, ItemState(part, part.new_zeros(len(part), 0)), torch.tensor([0, len(part)]))

        every = interact(rows)
        torch.testing.assert_close(torch.cat([interact(part) for part in rows.split(7)]), every, **EXACT)
        torch.testing.assert_close(interact(rows.flip(0)).flip(0), every, **EXACT)


def test_every_table_learns(dataset: StoredDataset) -> None:
    """Of each layer, the last one's too, which only candidates read."""
    ranker, _, batch = setting(dataset, relative_bias="position-time")
    ranker.loss(batch).backward()
    tables = {name: one for name, one in ranker.named_parameters() if "relative_bias" in name}
    assert len(tables) == 4
    for name, table in tables.items():
        assert table.grad is not None, name
        assert (table.grad != 0).sum() > 2, name
        assert table.ndim == 1, "one number for all heads"


def test_half_precision_reads_the_bias_too(dataset: StoredDataset) -> None:
    """As training in bf16 does: near the scores of fp32, and not those without a bias."""
    ranker, _, batch = setting(dataset, relative_bias="position-time")
    ranker.float()
    with torch.no_grad():
        exact = ranker(batch)
    with torch.autocast("cpu", torch.bfloat16):
        found = ranker(batch)
        ranker.loss(batch).backward()
    with torch.no_grad():
        for name, parameter in ranker.named_parameters():
            if "relative_bias" in name:
                parameter.zero_()
        without = ranker(batch)
    assert (found.float() - exact).abs().mean() < 0.3 * (without - exact).abs().mean()


@pytest.mark.parametrize("bias", ["time", "position-time"])
def test_a_bias_for_time_needs_times(dataset: StoredDataset, bias: str) -> None:
    ranker, _, batch = setting(dataset, relative_bias=bias)
    assert ranker.needs_times
    assert ranker.reads_now
    inputs = batch.inputs
    for less in (replace(inputs, times=None), replace(inputs, history=replace(inputs.history, times=None))):
        with pytest.raises(DataError, match=r"key 'model.relative_bias': .* use none or position"):
            ranker.encode_user(less)


def test_other_designs_read_no_times(dataset: StoredDataset) -> None:
    for bias in ("none", "position"):
        ranker, _, batch = setting(dataset, relative_bias=bias)
        assert not ranker.needs_times
        assert not ranker.reads_now
        history = replace(batch.inputs.history, times=None)
        with torch.no_grad():
            bare = ranker.encode_user(replace(batch.inputs, history=history, times=None))
            for mine, theirs in zip(bare.memory, ranker.encode_user(batch.inputs).memory, strict=True):
                torch.testing.assert_close(mine, theirs, **EXACT)


def test_a_head_norm_is_a_group_norm_with_one_weight_per_head() -> None:
    torch.manual_seed(1)
    norm = HeadNorm(3).double()
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    rows = torch.randn(5, 12, dtype=torch.double)
    expected = functional.group_norm(rows.view(5, 3, 4), 3, norm.weight, norm.bias, 1e-6).flatten(1)
    torch.testing.assert_close(norm(rows), expected, **EXACT)


def test_the_user_stage_with_a_bias_is_exported() -> None:
    """With histories shorter and longer than the example."""
    torch.manual_seed(2)
    ranker = build_ranker({"name": "hstu", "layers": 2, "relative_bias": "position-time"}, BUILT_IN, 1, "test").eval()
    program = export_user_stage(ranker, random_request(BUILT_IN, 5))
    for length in (0, 1, 40):
        inputs = random_request(BUILT_IN, length, seed=length)
        with torch.no_grad():
            exported, own = program.module()(inputs).memory, ranker.encode_user(inputs).memory
        torch.testing.assert_close(exported, own, rtol=1e-4, atol=1e-5)


def test_rankers_of_before_these_options_are_what_they_were() -> None:
    """A finished run that names none of them has the same parameters, and fingerprints that leave them out."""
    newer = {"query_width", "scale", "relative_bias", "output_norm"}
    assert newer <= NEWER_OPTIONS["hstu"]
    before = {"name": "hstu", "width": 16, "layers": 1, "tower_shortcut": True, "sharpness": 3.0}
    ranker = build_ranker(finished_model(before), BUILT_IN, 1, "test")
    assert isinstance(ranker, HSTURanker)
    shapes = {name: tuple(one.shape) for name, one in ranker.stack.state_dict().items()}
    assert shapes == {
        "layers.0.norm.weight": (16,),
        "layers.0.norm.bias": (16,),
        "layers.0.uvqk.weight": (64, 16),
        "layers.0.uvqk.bias": (64,),
        "layers.0.out_norm.weight": (16,),
        "layers.0.out_norm.bias": (16,),
        "layers.0.output.weight": (16, 16),
    }
    user = ranker.encode_user(random_request(BUILT_IN, 4))
    assert [tuple(one.shape) for one in user.memory] == [(4, 4, 4), (4, 4, 4)]
