"""DIN, truncated MHA, SIM and TWIN against literal implementations of their equations."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from dense_lime import EXACT
from torch import Tensor, nn

from limerank.batch import RequestBatch
from limerank.data.batches import RequestLoader
from limerank.data.store.dataset import StoredDataset
from limerank.errors import UsageError
from limerank.models import Ranker, build_ranker
from limerank.models.din import DINRanker
from limerank.models.mha import MHARanker
from limerank.models.sim import SIMRanker, category_digits, category_of_digits
from limerank.models.truncated_mha import TruncatedMHARanker
from limerank.models.twin import TWINRanker
from limerank.nn.layers import activation_unit
from limerank.nn.layers.activation_unit import Dice
from limerank.nn.layers.attention import HeadProjection
from limerank.ops import top_events as top_events_op
from limerank.ops.gathered import Gathered
from limerank.ops.top_events import attend_chosen, search_jagged, top_events
from limerank.schema import UNKNOWN_INDEX
from limerank.serve.bundles.offline import compute_rows
from limerank.serve.scorer import score_candidates
from limerank.serve.user_stage_program import export_user_stage
from limerank.splits import Part

CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5}
"""For what is served, in fp32."""
NEARLY: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-6}
"""For fp64 with one constant that is rounded to fp32: a momentum, a length's reciprocal."""
DIN_KINDS: list[dict[str, Any]] = [
    {"activation": activation, "normalization": normalization, "hidden": hidden}
    for activation, normalization, hidden in (
        ("relu", "none", [80, 40]),
        ("relu", "softmax", [5]),
        ("dice", "none", [7, 6, 5]),
        ("dice", "softmax", [8, 4]),
    )
]


def make(dataset: StoredDataset, name: str, **options: Any) -> Ranker:
    """A ranker in fp64, none of whose parameters or running statistics is at a special value."""
    torch.manual_seed(5)
    ranker = build_ranker({"name": name, **options}, dataset.encoders.space(), 2, "test").eval()
    with torch.no_grad():
        for parameter in ranker.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
        for module in ranker.modules():
            if isinstance(module, Dice):
                module.mean.normal_()
                module.variance.uniform_(0.5, 2)
    return ranker.double()


def some_requests(dataset: StoredDataset, max_history: int = 20) -> RequestBatch:
    """Histories of all lengths from none, and 6 candidates each."""
    loader = RequestLoader(dataset, Part.TRAIN, batch_requests=8, max_history=max_history)
    lengths = loader.history_lengths(loader.requests)
    order = np.argsort(lengths, kind="stable")[:: len(lengths) // 7]
    assert lengths[order[0]] == 0
    assert lengths[order].max() > 16
    return loader.assemble(loader.requests[order])


def interactions(ranker: Ranker, batch: RequestBatch) -> Tensor:
    user = ranker.encode_user(batch.inputs)
    items = ranker.encode_items(batch.candidates.items).take(batch.candidates.item_of_candidate)
    return ranker.interact(user, items, batch.candidates.offsets)


def pairs(ranker: Ranker, batch: RequestBatch) -> list[tuple[Tensor, Tensor, range]]:
    """T_c, the E of its request and the numbers of its events in the batch, for every candidate."""
    targets = ranker.item_tower.candidates(batch.candidates.items)[batch.candidates.item_of_candidate]
    history = ranker.item_tower.history(batch.inputs.history)
    events, candidates = batch.inputs.history.offsets.tolist(), batch.candidates.offsets.tolist()
    return [
        (targets[c], history[events[b] : events[b + 1]], range(events[b], events[b + 1]))
        for b in range(len(batch.inputs))
        for c in range(candidates[b], candidates[b + 1])
    ]


def projected(module: HeadProjection, rows: Tensor, output: int = 0) -> Tensor:
    """Output number `output` of a projection, heads side by side."""
    start = sum(module.outputs[:output])
    part = slice(start, start + module.outputs[output])
    result: Tensor = module.norm(rows) @ module.linear.weight[part].T + module.linear.bias[part]
    return result


def best(scores: Tensor, events: Tensor, count: int, precision: torch.dtype) -> list[int]:
    """The positions of the largest scores; what just misses them is an equal event or smaller by more than rounding."""
    order = scores.detach().argsort(descending=True).tolist()
    if count < len(order):
        last, missed = order[count - 1], order[count]
        rounding = 32 * torch.finfo(precision).eps * scores.abs().max()  # scores are sums of at most 32 products
        clear = scores[last] - scores[missed] > rounding or torch.allclose(events[last], events[missed])
        assert clear, "a near tie, which each machine decides in its own way: take another seed"
    return order[:count]


def check_all_paths(ranker: Ranker, batch: RequestBatch, expected: Tensor) -> None:
    """With gradients, without, and as it is served: one request, padded blocks, rows from a store."""
    torch.testing.assert_close(interactions(ranker, batch), expected, **EXACT)
    with torch.inference_mode():
        torch.testing.assert_close(interactions(ranker, batch), expected, **EXACT)
    logits = ranker(batch).detach()
    offsets = batch.candidates.offsets.tolist()
    single = copy.deepcopy(ranker).float()
    rows = compute_rows(single, batch.candidates.items, "fp32")
    for b in range(len(batch.inputs)):
        only = one_request(batch, b)
        chosen = batch.candidates.item_of_candidate[offsets[b] : offsets[b + 1]]
        with torch.inference_mode():
            served = score_candidates(single, single.encode_user(only.inputs), rows, chosen)
        torch.testing.assert_close(served.double(), logits[offsets[b] : offsets[b + 1]], **CLOSE)
        torch.testing.assert_close(ranker(only).detach(), logits[offsets[b] : offsets[b + 1]], **EXACT)


def one_request(batch: RequestBatch, b: int) -> RequestBatch:
    history, candidates = batch.inputs.history, batch.candidates
    start, stop = history.offsets[b : b + 2].tolist()
    first, last = candidates.offsets[b : b + 2].tolist()
    row = torch.tensor([b])
    return RequestBatch(
        dataclasses.replace(
            batch.inputs,
            users=batch.inputs.users.take(row),
            context=batch.inputs.context.take(row),
            times=None if batch.inputs.times is None else batch.inputs.times[row],
            history=dataclasses.replace(
                history,
                item_of_event=history.item_of_event[start:stop],
                events=history.events.take(torch.arange(start, stop)),
                offsets=torch.tensor([0, stop - start]),
                times=None if history.times is None else history.times[start:stop],
            ),
        ),
        dataclasses.replace(
            candidates,
            item_of_candidate=candidates.item_of_candidate[first:last],
            offsets=torch.tensor([0, last - first]),
        ),
        batch.labels[first:last],
    )


def gradients(ranker: Ranker, output: Tensor) -> dict[str, Tensor]:
    """Of an arbitrary function of the output, for every parameter; zero where it does not reach."""
    ranker.zero_grad()
    (output * torch.linspace(1, 2, output.numel()).view(output.shape)).sum().backward()
    named = ranker.named_parameters()
    return {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in named}


def check_gradients(ranker: Ranker, output: Tensor, expected: Tensor, close: dict[str, Any] = EXACT) -> None:
    """Of every parameter, against its own largest gradient; those far below all others may be nothing but rounding."""
    mine, theirs = gradients(ranker, output), gradients(ranker, expected)
    largest = max(float(gradient.abs().max()) for gradient in theirs.values())
    assert largest > 0
    for name in theirs:
        scale = max(float(theirs[name].abs().max()), 1e-3 * largest)
        torch.testing.assert_close(mine[name] / scale, theirs[name] / scale, **close, msg=name)


def din_by_concatenation(ranker: DINRanker, batch: RequestBatch) -> Tensor:
    """The network on the concatenation, candidate by candidate; nothing is split or cached."""
    unit, outputs = ranker.unit, []
    for target, history, _ in pairs(ranker, batch):
        z = torch.cat([target.expand_as(history), history, target - history, target * history], 1)
        for position, layer in enumerate([unit.first, *unit.later]):
            z = layer(z)
            if unit.dice is None:
                z = torch.relu(z)
            else:
                dice = unit.dice[position]
                assert isinstance(dice, Dice)
                p = torch.sigmoid((z - dice.mean) / torch.sqrt(dice.variance + 1e-6))
                z = p * z + (1 - p) * dice.alpha * z
        weights = unit.last(z)[:, 0]
        if ranker.options.normalization == "softmax":
            weights = weights.softmax(0)
        outputs.append(sum((w * e for w, e in zip(weights, history, strict=True)), torch.zeros_like(target)))
    return torch.stack(outputs)


@pytest.mark.parametrize("options", DIN_KINDS, ids=lambda o: f"{o['activation']}-{o['normalization']}")
def test_din_against_the_network_on_the_concatenation(
    dataset: StoredDataset, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values on every path and gradients of every parameter, also where blocks cut histories and candidates."""
    ranker, batch = make(dataset, "din", **options), some_requests(dataset)
    assert isinstance(ranker, DINRanker)
    expected = din_by_concatenation(ranker, batch)
    check_gradients(ranker, interactions(ranker, batch), expected)
    check_all_paths(ranker, batch, expected.detach())
    for events, total in ((7, 14), (1, 1), (16, 3)):
        monkeypatch.setattr(activation_unit, "EVENTS_PER_BLOCK", events)
        monkeypatch.setattr("limerank.models.din.EVENTS_PER_BLOCK", events)
        monkeypatch.setattr("limerank.models.din.PAIRS_PER_BLOCK", total)
        with torch.inference_mode():
            torch.testing.assert_close(interactions(ranker, batch), expected, **EXACT)


def test_dice_learns_its_statistics_from_real_pairs_only(dataset: StoredDataset) -> None:
    """In training they are the mean and variance over all real pairs of the batch; predicting changes none of them."""
    ranker, batch = make(dataset, "din", activation="dice", unknown_rate=0.0), some_requests(dataset)
    assert isinstance(ranker, DINRanker)
    dice = ranker.unit.dice
    assert dice is not None
    first = dice[0]
    assert isinstance(first, Dice)
    z = torch.cat(
        [
            ranker.unit.first(torch.cat([target.expand_as(h), h, target - h, target * h], 1))
            for target, h, _ in pairs(ranker, batch)
        ]
    ).detach()
    before = {name: value.clone() for name, value in ranker.state_dict().items()}
    ranker(batch)
    with torch.no_grad():
        ranker(batch)
    assert all(torch.equal(before[name], value) for name, value in ranker.state_dict().items())
    ranker.train()
    ranker(batch)
    moved = 0.9 * before["unit.dice.0.mean"] + 0.1 * z.mean(0)
    torch.testing.assert_close(first.mean, moved, **NEARLY)
    spread = 0.9 * before["unit.dice.0.variance"] + 0.1 * z.var(0, correction=0)
    torch.testing.assert_close(first.variance, spread, **NEARLY)


def test_a_batch_without_events_leaves_dice_alone() -> None:
    dice = Dice(3).train()
    result = dice(torch.ones(2, 4, 3), torch.zeros(2, 4, dtype=torch.bool))
    assert torch.isfinite(result).all()
    assert torch.equal(dice.mean, torch.zeros(3))
    assert torch.equal(dice.variance, torch.ones(3))


@pytest.mark.parametrize("recent", [1, 5, 100])
@pytest.mark.parametrize("encoding", ["none", "recent_position", "position"])
def test_truncated_mha_is_mha_fed_the_cut_history(dataset: StoredDataset, recent: int, encoding: str) -> None:
    """The loader cuts for the one, the ranker for the other; positions count within what is left."""
    truncated = make(dataset, "truncated-mha", recent=recent, encoding=encoding)
    plain = make(dataset, "mha", encoding=encoding)
    plain.load_state_dict(truncated.state_dict())
    assert isinstance(truncated, TruncatedMHARanker)
    assert isinstance(plain, MHARanker)
    expected = interactions(plain, some_requests_cut(dataset, recent)).detach()
    check_all_paths(truncated, some_requests(dataset), expected)


def some_requests_cut(dataset: StoredDataset, recent: int) -> RequestBatch:
    """The requests of `some_requests`, cut by the loader."""
    loader = RequestLoader(dataset, Part.TRAIN, batch_requests=8, max_history=20)
    lengths = loader.history_lengths(loader.requests)
    order = np.argsort(lengths, kind="stable")[:: len(lengths) // 7]
    shorter = RequestLoader(dataset, Part.TRAIN, batch_requests=8, max_history=min(recent, 20))
    return shorter.assemble(loader.requests[order])


def test_truncated_mha_embeds_no_older_item(dataset: StoredDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    ranker, batch = make(dataset, "truncated-mha", recent=3), some_requests(dataset)
    embedded: list[int] = []
    original = ranker.item_tower.distinct_history

    def counting(history: Any) -> Gathered:
        embedded.extend([len(history.items), len(history.item_of_event)])
        return original(history)

    monkeypatch.setattr(ranker.item_tower, "distinct_history", counting)
    ranker.encode_user(batch.inputs)
    assert embedded[1] == int(batch.inputs.history.offsets.diff().clamp(max=3).sum())
    assert embedded[0] <= embedded[1]
    ranker.encode_user(one_request(batch, len(batch.inputs) - 1).inputs)
    assert embedded[2:] == [3, 3]


def attention_over(
    ranker: SIMRanker | TWINRanker | MHARanker, target: Tensor, history: Tensor, chosen: list[list[int]]
) -> Tensor:
    """Head by head over that head's chosen events; zero if there are none."""
    heads, width = ranker.options.heads, ranker.options.width
    size = width // heads
    query = projected(ranker.to_queries, target[None])[0]
    keys, values = projected(ranker.to_keys_values, history, 0), projected(ranker.to_keys_values, history, 1)
    outputs = []
    for h, own in enumerate(chosen):
        part = slice(h * size, (h + 1) * size)
        if not own:
            outputs.append(target.new_zeros(size))
            continue
        scores = torch.stack([query[part] @ keys[j, part] for j in own]) / size**0.5
        outputs.append(
            sum((w * values[j, part] for w, j in zip(scores.softmax(0), own, strict=True)), target.new_zeros(size))
        )
    return torch.cat(outputs)


def sim_by_loops(ranker: SIMRanker, batch: RequestBatch, precision: torch.dtype = torch.float32) -> Tensor:
    """`precision` is the lowest in which events are chosen."""
    outputs = []
    assert ranker.search is not None
    for target, history, _ in pairs(ranker, batch):
        query = projected(ranker.search.queries, target[None])[0]
        relevance = projected(ranker.search.keys, history) @ query
        chosen = best(relevance, history, ranker.options.top, precision)
        outputs.append(attention_over(ranker, target, history, [chosen] * ranker.options.heads))
    return torch.stack(outputs)


@pytest.mark.parametrize("top", [1, 4, 32])
def test_soft_sim_against_loops(dataset: StoredDataset, top: int) -> None:
    """Values on every path and gradients, with fewer events than K and with more."""
    ranker, batch = make(dataset, "sim", top=top), some_requests(dataset)
    assert isinstance(ranker, SIMRanker)
    expected = sim_by_loops(ranker, batch)
    check_gradients(ranker, interactions(ranker, batch), expected)
    check_all_paths(ranker, batch, expected.detach())


def test_the_loss_of_the_soft_search(dataset: StoredDataset) -> None:
    """The cross-entropy of a network on the mean of r_cj E_j, which alone trains the search, times its weight."""
    ranker, batch = make(dataset, "sim", search_loss=0.5, unknown_rate=0.0).train(), some_requests(dataset)
    batch = dataclasses.replace(batch, labels=batch.labels.double())
    assert isinstance(ranker, SIMRanker)
    search = ranker.search
    assert search is not None
    inputs = []
    for target, history, _ in pairs(ranker, batch):
        query = projected(search.queries, target[None])[0]
        pooled = torch.zeros_like(target)
        for event in history:
            relevance = query @ projected(search.keys, event[None])[0] / len(query) ** 0.5
            pooled = pooled + relevance * event / len(history)
        inputs.append(torch.cat([pooled, query]))
    probabilities = search.predict(torch.stack(inputs)).sigmoid()
    expected = 0.5 * nn.functional.binary_cross_entropy(probabilities, batch.labels)
    user = ranker.encode_user(batch.inputs)
    items = ranker.encode_items(batch.candidates.items).take(batch.candidates.item_of_candidate)
    loss = ranker.auxiliary_loss(user, items, batch)
    assert loss is not None
    torch.testing.assert_close(loss, expected, **NEARLY)
    check_gradients(ranker, loss, expected, NEARLY)
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in search.parameters())
    plain = nn.functional.binary_cross_entropy_with_logits(ranker(batch), batch.labels)
    torch.testing.assert_close(ranker.loss(batch), plain + expected, **NEARLY)


@pytest.mark.parametrize("top", [1, 3, 32])
@pytest.mark.parametrize("category", ["topic", "creator"])
def test_hard_sim_against_loops(dataset: StoredDataset, top: int, category: str) -> None:
    """The most recent K events of the candidate's category; none of another, and zero where there is none."""
    ranker, batch = make(dataset, "sim", search="hard", category=category, top=top), some_requests(dataset)
    assert isinstance(ranker, SIMRanker)
    column = [encoder.name for encoder in dataset.encoders.item].index(category)
    history = batch.inputs.history
    # one candidate item and some of the history get an unknown category, which equals nothing, not even another one
    seen = history.items.indices.clone()
    seen[::3, column] = UNKNOWN_INDEX
    history = dataclasses.replace(history, items=dataclasses.replace(history.items, indices=seen))
    batch = dataclasses.replace(batch, inputs=dataclasses.replace(batch.inputs, history=history))
    of_event = seen[history.item_of_event, column].tolist()
    indices = batch.candidates.items.indices.clone()
    indices[batch.candidates.item_of_candidate[-1], column] = UNKNOWN_INDEX
    items = dataclasses.replace(batch.candidates.items, indices=indices)
    batch = dataclasses.replace(batch, candidates=dataclasses.replace(batch.candidates, items=items))
    of_candidate = indices[batch.candidates.item_of_candidate, column].tolist()
    outputs, empty = [], 0
    for wanted, (target, embedded, numbers) in zip(of_candidate, pairs(ranker, batch), strict=True):
        same = [j for j, number in enumerate(numbers) if of_event[number] == wanted != UNKNOWN_INDEX]
        empty += bool(numbers) and not same
        outputs.append(attention_over(ranker, target, embedded, [same[-top:]] * ranker.options.heads))
    assert empty
    expected = torch.stack(outputs)
    check_gradients(ranker, interactions(ranker, batch), expected)
    check_all_paths(ranker, batch, expected.detach())
    assert ranker.auxiliary_loss(ranker.encode_user(batch.inputs), ranker.encode_items(items), batch) is None


def test_half_precision_rows_keep_every_category() -> None:
    """The last category that is allowed included; one number per category would be rounded from 2049 on."""
    categories = torch.cat([torch.arange(5000), torch.tensor([2**20 + 1, 2**21 - 1])])
    digits = category_digits(categories, torch.float32)
    assert torch.equal(category_of_digits(digits.half().float()), categories)
    assert not torch.equal(categories.half().long(), categories)


def test_hard_search_with_half_precision_rows(dataset: StoredDataset) -> None:
    ranker, batch = make(dataset, "sim", search="hard", category="topic", top=2).float(), some_requests(dataset)
    only = one_request(batch, len(batch.inputs) - 1)
    with torch.inference_mode():
        user = ranker.encode_user(only.inputs)
        full, half = (
            score_candidates(ranker, user, compute_rows(ranker, dataset.item_table, t)) for t in ("fp32", "fp16")
        )
    torch.testing.assert_close(half, full, rtol=1e-2, atol=1e-2)


def test_hard_search_needs_a_category_of_the_log(dataset: StoredDataset) -> None:
    with pytest.raises(UsageError, match="model 'sim': .*search: hard needs a category"):
        make(dataset, "sim", search="hard")
    with pytest.raises(UsageError, match="soft search has none"):
        make(dataset, "sim", category="topic")
    with pytest.raises(UsageError, match="key 'model.category': no item feature 'topics' .*did you mean 'topic'?"):
        make(dataset, "sim", search="hard", category="topics")
    with pytest.raises(UsageError, match="no item feature 'tags' with one value"):
        make(dataset, "sim", search="hard", category="tags")


def twin_by_loops(ranker: TWINRanker, batch: RequestBatch, precision: torch.dtype = torch.float32) -> Tensor:
    """`precision` is the lowest in which events are chosen."""
    outputs = []
    size = ranker.options.width // ranker.options.heads
    for target, history, _ in pairs(ranker, batch):
        query, keys = projected(ranker.to_queries, target[None])[0], projected(ranker.to_keys_values, history)
        parts = [slice(h * size, (h + 1) * size) for h in range(ranker.options.heads)]
        chosen = [best(keys[:, part] @ query[part], history, ranker.options.top, precision) for part in parts]
        outputs.append(attention_over(ranker, target, history, chosen) @ ranker.to_output.weight.T)
    return torch.stack(outputs)


@pytest.mark.parametrize("top", [1, 4, 32])
def test_twin_against_loops(dataset: StoredDataset, top: int) -> None:
    """Values on every path, and gradients, which reach queries and keys through the chosen scores."""
    ranker, batch = make(dataset, "twin", top=top), some_requests(dataset)
    assert isinstance(ranker, TWINRanker)
    expected = twin_by_loops(ranker, batch)
    check_gradients(ranker, interactions(ranker, batch), expected)
    last = one_request(batch, len(batch.inputs) - 1)
    check_gradients(ranker, interactions(ranker, last), twin_by_loops(ranker, last))
    if top > 1:
        reached = gradients(ranker, interactions(ranker, last))
        assert all(gradient.abs().sum() > 0 for name, gradient in reached.items() if name.startswith("to_"))
    check_all_paths(ranker, batch, expected.detach())


@pytest.mark.parametrize("name", ["sim", "twin"])
@pytest.mark.parametrize("scores_per_block", [1, 200])
def test_one_request_in_blocks(
    dataset: StoredDataset, name: str, scores_per_block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole catalog for one request: blocks of a few candidates score as candidates one by one."""
    ranker, batch = make(dataset, name, top=4), some_requests(dataset)
    only = one_request(batch, len(batch.inputs) - 1)
    monkeypatch.setattr(top_events_op, "SCORES_PER_BLOCK", scores_per_block)
    monkeypatch.setattr(top_events_op, "GATHERED_PER_BLOCK", 7)
    with torch.inference_mode():
        user, items = ranker.encode_user(only.inputs), ranker.encode_items(dataset.item_table)
        together = ranker.interact(user, items, torch.tensor([0, len(dataset.item_table)]))
        alone = [ranker.interact(user, items.take(torch.tensor([i])), torch.tensor([0, 1])) for i in range(201)]
        nobody = ranker.interact(user, items.take(torch.zeros(0, dtype=torch.long)), torch.tensor([0, 0]))
    torch.testing.assert_close(together, torch.cat(alone), **EXACT)
    assert nobody.shape == (0, ranker.options.width)


def test_padding_is_never_found_however_bad_the_events_are() -> None:
    """Scores of -1e30 lose against a padding score of 0, but padding takes no part."""
    queries, offsets = torch.full((6, 2), 1e15), torch.tensor([0, 2, 4, 6])
    keys, key_offsets = torch.full((9, 2), -1e15), torch.tensor([0, 2, 2, 9])
    index, found = search_jagged(queries, offsets, keys, key_offsets, 4)
    assert found.sum(1).tolist() == [2, 2, 0, 0, 4, 4]
    for row, (low, high) in enumerate([(0, 2), (0, 2), (2, 2), (2, 2), (2, 9), (2, 9)]):
        own = index[row][found[row]].tolist()
        assert len(set(own)) == len(own)
        assert all(low <= position < high for position in own)
    values = torch.ones(9, 1, 3)
    attended = attend_chosen(torch.ones(6, 1, 2), torch.randn(9, 1, 2), values, index, found)
    torch.testing.assert_close(attended[:, 0, 0], torch.tensor([1.0, 1, 0, 0, 1, 1]))


@pytest.mark.parametrize("name", ["sim", "twin"])
def test_repelled_histories_score_like_themselves_alone(dataset: StoredDataset, name: str) -> None:
    """Every real score far below zero, which is what padding would score: short histories find their own events.

    With scores of thousands, whose rounding in fp64 cannot hide what tells them apart.
    """
    ranker, batch = make(dataset, name, top=4), some_requests(dataset)
    assert isinstance(ranker, SIMRanker | TWINRanker)
    modules = [ranker.to_queries, ranker.to_keys_values]
    if isinstance(ranker, SIMRanker):
        assert ranker.search is not None
        modules += [ranker.search.queries, ranker.search.keys]
    with torch.no_grad():
        for sign, module in zip((1, -1, 1, -1), modules, strict=False):
            module.linear.bias[: module.outputs[0]] = 20.0 * sign
    for target, history, _ in pairs(ranker, batch):
        for queries, keys in zip(modules[::2], modules[1::2], strict=True):
            parts = (projected(queries, target[None]), projected(keys, history))
            of_heads = (part.unflatten(1, (queries.heads, -1)) for part in parts)
            assert (torch.einsum("qha,nha->hn", *of_heads) < -1000).all()
    by_loops: Any = sim_by_loops if isinstance(ranker, SIMRanker) else twin_by_loops
    expected = by_loops(ranker, batch, torch.float64)
    together = interactions(ranker, batch)
    torch.testing.assert_close(together, expected, **EXACT)
    offsets = batch.candidates.offsets.tolist()
    for b in range(len(batch.inputs)):
        alone = interactions(ranker, one_request(batch, b))
        torch.testing.assert_close(alone, together[offsets[b] : offsets[b + 1]], **EXACT)


@pytest.mark.parametrize("threads", [1, 8])
def test_top_events_are_those_of_a_sort(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ties, all equal, infinite scores and K = N: always K different events with the K largest scores."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    generator = torch.Generator().manual_seed(0)
    for _ in range(100):
        rows, events = (int(torch.randint(1, 40, (1,), generator=generator)) for _ in range(2))
        count = int(torch.randint(1, events + 1, (1,), generator=generator))
        scores = torch.randint(0, 6, (rows, events), generator=generator).float()
        scores[scores == 5] = -torch.inf
        index = top_events(scores, count)
        assert index.shape == (rows, count)
        assert all(len(set(row)) == count for row in index.tolist())
        expected = scores.sort(1, descending=True).values[:, :count]
        assert torch.equal(scores.gather(1, index).sort(1, descending=True).values, expected)
    broken = torch.full((2, 5), torch.nan)
    assert top_events(broken, 3).shape == (2, 3)


@pytest.mark.parametrize(
    "model",
    [
        {"name": "truncated-mha", "recent": 4},
        {"name": "sim", "search": "hard", "category": "topic"},
    ],
    ids=lambda model: "-".join(str(value) for value in model.values()),
)
def test_the_user_stage_exports_for_any_history_length(dataset: StoredDataset, model: dict[str, Any]) -> None:
    """What test_export.py proves for default options: here histories are cut, and categories leave the user stage."""
    ranker, batch = make(dataset, **model), some_requests(dataset)
    requests = [one_request(batch, b).inputs for b in range(len(batch.inputs))]
    program = export_user_stage(ranker, requests[-1]).module()
    for inputs in requests:
        with torch.inference_mode():
            expected, got = ranker.encode_user(inputs), program(inputs)
        for mine, theirs in zip(expected.memory, got.memory, strict=True):
            torch.testing.assert_close(theirs, mine, **EXACT)
