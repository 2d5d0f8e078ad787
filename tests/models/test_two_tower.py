"""IntTower against loops over layers and heads, its optional parts, and the dot product of TTSN."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from limerank.batch import RequestBatch
from limerank.data.batches import RequestLoader
from limerank.data.store.dataset import StoredDataset
from limerank.models import ItemState, UserState, build_ranker
from limerank.models.inttower import IntTowerRanker
from limerank.models.ttsn import TTSNRanker
from limerank.schema import FeatureSpace
from limerank.serve.bundles.offline import compute_rows
from limerank.serve.scorer import ScoringPath, score_candidates
from limerank.serve.user_stage_program import export_user_stage
from limerank.splits import Part

CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}
KINDS: list[dict[str, Any]] = [
    {},
    {"pooling": "mean", "gate": True},
    {"user_layers": [9], "user_heads": 1, "item_heads": 3, "head_width": 5, "gate": True},
    {"user_layers": [8, 6], "user_heads": 3, "item_heads": 1, "head_width": 4},
]


def make(dataset: StoredDataset, **options: Any) -> IntTowerRanker:
    torch.manual_seed(2)
    ranker = build_ranker({"name": "inttower", **options}, dataset.encoders.space(), 2, "test").eval()
    assert isinstance(ranker, IntTowerRanker)
    return ranker


def some_requests(dataset: StoredDataset, first: int = 0, last: int = 6) -> RequestBatch:
    loader = RequestLoader(dataset, Part.TRAIN, batch_requests=8, max_history=20)
    return loader.assemble(loader.requests[first:last])


def interactions(ranker: IntTowerRanker, batch: RequestBatch) -> Tensor:
    user = ranker.encode_user(batch.inputs)
    items = ranker.encode_items(batch.candidates.items).take(batch.candidates.item_of_candidate)
    return ranker.interact(user, items, batch.candidates.offsets)


def user_layers(ranker: IntTowerRanker, batch: RequestBatch, request: int) -> list[Tensor]:
    """u_1 ... u_L of one request, each layer by hand."""
    start, stop = batch.inputs.history.offsets[request : request + 2].tolist()
    pooled = ranker.item_tower.history(batch.inputs.history)[start:stop].sum(0)
    if ranker.options.pooling == "mean" and stop > start:
        pooled = pooled / (stop - start)
    context = ranker.context_tower(batch.inputs.users, batch.inputs.context)[request]
    fields = [pooled, *context.split(ranker.options.embedding_width)]
    if ranker.gate is not None:
        squeezed = torch.stack([field.mean() for field in fields])
        weights = torch.softmax(ranker.gate.weigh.weight @ squeezed + ranker.gate.weigh.bias, 0)
        fields = [field * weight + field for field, weight in zip(fields, weights, strict=True)]
    state, states = torch.cat(fields), []
    for layer in ranker.layers:
        state = torch.relu(layer(state))
        states.append(state)
    return states


def by_loops(ranker: IntTowerRanker, batch: RequestBatch) -> Tensor:
    options = ranker.options
    targets = ranker.item_tower.candidates(batch.candidates.items)[batch.candidates.item_of_candidate]
    offsets = batch.candidates.offsets.tolist()
    outputs = []
    for b in range(len(batch.inputs)):
        for c in range(offsets[b], offsets[b + 1]):
            item_heads = ranker.to_item_heads(targets[c]).split(options.head_width)
            numbers = []
            for state, project in zip(user_layers(ranker, batch, b), ranker.to_user_heads, strict=True):
                for user_head in project(state).split(options.head_width):
                    numbers.append(max((user_head @ item_head for item_head in item_heads), key=float))
            outputs.append(torch.stack(numbers))
    return torch.stack(outputs)


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")
@pytest.mark.parametrize("options", KINDS, ids=lambda options: "-".join(map(str, options.values())) or "default")
def test_inttower_against_loops(dataset: StoredDataset, options: dict[str, Any]) -> None:
    """Values for batches, for one request and as served, and the gradient of every parameter."""
    ranker, batch = make(dataset, **options), some_requests(dataset)
    expected, got = by_loops(ranker, batch), interactions(ranker, batch)
    assert got.shape[1] == ranker.interaction_width() == len(ranker.options.user_layers) * ranker.options.user_heads
    torch.testing.assert_close(got, expected, **CLOSE)
    found: list[list[Tensor | None]] = []
    for output in (got, expected):
        ranker.zero_grad()
        (output * torch.linspace(-1, 1, output.numel()).view(output.shape)).sum().backward()
        found.append([p.grad for p in ranker.parameters()])
    for mine, theirs in zip(*found, strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None and theirs is not None:
            scale = theirs.abs().max() + 1e-6
            torch.testing.assert_close(mine / scale, theirs / scale, rtol=1e-3, atol=1e-4)
    only = some_requests(dataset, 5, 6)
    rows = compute_rows(ranker, only.candidates.items, "fp32")
    with torch.inference_mode():
        torch.testing.assert_close(interactions(ranker, only), by_loops(ranker, only), **CLOSE)
        served = score_candidates(ranker, ranker.encode_user(only.inputs), rows, only.candidates.item_of_candidate)
        torch.testing.assert_close(served, ranker(only), **CLOSE)


def test_the_head_contains_the_original_score(dataset: StoredDataset) -> None:
    """With ones for the interaction and two opposite hidden units, a logit is the plain sum of all maxima."""
    ranker, batch = make(dataset), some_requests(dataset)
    with torch.no_grad():
        for parameter in ranker.head.parameters():
            parameter.zero_()
        ranker.head.from_interaction.weight[0] = 1.0
        ranker.head.from_interaction.weight[1] = -1.0
        last = ranker.head.later_layers()[-1][0]
        last[:, 0], last[:, 1] = 1.0, -1.0
        expected = by_loops(ranker, batch).sum(1)
        torch.testing.assert_close(ranker(batch)[:, 0], expected, rtol=1e-4, atol=1e-3)


def contrastive_by_loops(ranker: IntTowerRanker, batch: RequestBatch) -> Tensor:
    options, offsets = ranker.options, batch.candidates.offsets.tolist()
    targets = ranker.item_tower.candidates(batch.candidates.items)[batch.candidates.item_of_candidate]
    vectors = [torch.stack(list(ranker.to_item_heads(t).split(options.head_width))).mean(0) for t in targets]
    positive = [bool(label) for label in batch.labels[:, 0]]
    terms = []
    for b in range(len(batch.inputs)):
        state = user_layers(ranker, batch, b)[-1]
        user = torch.stack(list(ranker.to_user_heads[-1](state).split(options.head_width))).mean(0)
        similar = [torch.cosine_similarity(user, vector, dim=0) / options.temperature for vector in vectors]
        for c in range(offsets[b], offsets[b + 1]):
            if positive[c]:
                others = [s for s, p in zip(similar, positive, strict=True) if not p]
                terms.append(-torch.log_softmax(torch.stack([similar[c], *others]), 0)[0])
    return torch.stack(terms).mean()


def test_the_contrastive_loss(dataset: StoredDataset) -> None:
    """Each positive against all negatives of the batch, by cosine; off by default."""
    ranker, batch = make(dataset, contrastive=0.3, temperature=0.2), some_requests(dataset)
    assert 0 < batch.labels[:, 0].sum() < len(batch.labels)
    user = ranker.encode_user(batch.inputs)
    items = ranker.encode_items(batch.candidates.items).take(batch.candidates.item_of_candidate)
    loss = ranker.auxiliary_loss(user, items, batch)
    assert loss is not None
    torch.testing.assert_close(loss, 0.3 * contrastive_by_loops(ranker, batch), **CLOSE)
    assert make(dataset).auxiliary_loss(user, items, batch) is None


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_the_contrastive_loss_without_positives_or_without_negatives(dataset: StoredDataset, label: float) -> None:
    """Zero, and no gradient that is not a number."""
    ranker, batch = make(dataset, contrastive=1.0), some_requests(dataset)
    batch = dataclasses.replace(batch, labels=torch.full_like(batch.labels, label))
    user = ranker.encode_user(batch.inputs)
    items = ranker.encode_items(batch.candidates.items).take(batch.candidates.item_of_candidate)
    loss = ranker.auxiliary_loss(user, items, batch)
    assert loss is not None
    assert float(loss.detach()) == 0
    loss.backward()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in ranker.parameters())


def test_every_parameter_of_the_optional_parts_receives_gradient(dataset: StoredDataset) -> None:
    ranker, batch = make(dataset, gate=True, contrastive=0.1).train(), some_requests(dataset, 0, 16)
    ranker.loss(batch).backward()
    for name, parameter in ranker.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_a_log_without_user_and_context_features(dataset: StoredDataset) -> None:
    """The gate then has two fields: the history and a constant."""
    space = dataset.encoders.space()
    bare = FeatureSpace(item=space.item, event=space.event)
    ranker = build_ranker({"name": "inttower", "gate": True}, bare, 1, "test")
    assert isinstance(ranker, IntTowerRanker)
    assert ranker.gate is not None
    assert ranker.gate.widths == (32, 1)


def test_the_user_stage_exports_for_any_history_length(dataset: StoredDataset) -> None:
    ranker = make(dataset, gate=True)
    program = export_user_stage(ranker, some_requests(dataset, 5, 6).inputs).module()
    for request in (0, 3, 7):
        inputs = some_requests(dataset, request, request + 1).inputs
        with torch.inference_mode():
            expected, got = ranker.encode_user(inputs), program(inputs)
        torch.testing.assert_close(got.memory[0], expected.memory[0], **CLOSE)


DOTS: list[dict[str, Any]] = [{}, {"pooling": "mean"}]
each_dot = pytest.mark.parametrize("options", DOTS, ids=lambda options: options.get("pooling", "sum"))


def dot_ranker(dataset: StoredDataset, **options: Any) -> TTSNRanker:
    torch.manual_seed(3)
    model = {"name": "ttsn", "interaction": "dot", **options}
    ranker = build_ranker(model, dataset.encoders.space(), 2, "test").double().eval()
    assert isinstance(ranker, TTSNRanker)
    return ranker


def dots_by_loops(ranker: TTSNRanker, batch: RequestBatch) -> Tensor:
    """<u_t, T_c> / sqrt(d), pair by pair."""
    assert ranker.user_tower is not None
    embedded = ranker.history(batch.inputs)
    contexts = ranker.context_tower(batch.inputs.users, batch.inputs.context)
    targets = ranker.item_tower.candidates(batch.candidates.items)[batch.candidates.item_of_candidate]
    events, candidates = batch.inputs.history.offsets.tolist(), batch.candidates.offsets.tolist()
    first, _, second = ranker.user_tower
    assert isinstance(first, nn.Linear)
    assert isinstance(second, nn.Linear)
    rows = []
    for b, context in enumerate(contexts):
        own = embedded[events[b] : events[b + 1]]
        pooled = own.sum(0) / (max(len(own), 1) if ranker.options.pooling == "mean" else 1)
        hidden = (first.weight @ torch.cat([pooled, context]) + first.bias).clamp(min=0)
        vectors = (second.weight @ hidden + second.bias).split(ranker.options.width)
        for target in targets[candidates[b] : candidates[b + 1]]:
            rows.append(torch.stack([vector @ target for vector in vectors]) / ranker.options.width**0.5)
    return torch.stack(rows)


@each_dot
def test_the_dot_product_of_ttsn_against_loops(dataset: StoredDataset, options: dict[str, Any]) -> None:
    """Values, and the gradient of every parameter; a request without a history is among them."""
    ranker, batch = dot_ranker(dataset, **options), some_requests(dataset)
    assert batch.inputs.history.offsets.diff().min() == 0
    found, expected = ranker.interact(*stages(ranker, batch)), dots_by_loops(ranker, batch)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)
    weights = torch.randn_like(expected)
    parameters = list(ranker.parameters())
    for mine, theirs in zip(
        torch.autograd.grad((found * weights).sum(), parameters, allow_unused=True),
        torch.autograd.grad((expected * weights).sum(), parameters, allow_unused=True),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-7, atol=1e-9)


def stages(ranker: TTSNRanker, batch: RequestBatch) -> tuple[UserState, ItemState, Tensor]:
    items = ranker.encode_items(batch.candidates.items).take(batch.candidates.item_of_candidate)
    return ranker.encode_user(batch.inputs), items, batch.candidates.offsets


@each_dot
@pytest.mark.parametrize("path", ["plain", "folded"])
def test_the_dot_product_of_ttsn_is_served_as_trained(
    dataset: StoredDataset, options: dict[str, Any], path: ScoringPath
) -> None:
    """A row is T_c, a user one matrix whatever the history: a request's logits from rows are those of a batch."""
    ranker, batch = dot_ranker(dataset, **options).float(), some_requests(dataset)
    assert ranker.factorized
    assert ranker.foldable
    rows = compute_rows(ranker, dataset.item_table, "fp32")
    assert rows.rows.shape[1] == ranker.options.width == ranker.row_shape()[1]
    loader = RequestLoader(dataset, Part.TRAIN, batch_requests=8, max_history=20)
    offsets, items = batch.candidates.offsets.tolist(), dataset.column("events/item")
    with torch.inference_mode():
        trained = ranker(batch)
        for b in range(len(batch.inputs)):
            one = loader.requests[b : b + 1]
            index = torch.from_numpy(items[loader.candidate_rows(one)].astype(np.int64))
            user = ranker.encode_user(loader.user_inputs(one))
            assert user.memory[0].shape == (1, ranker.options.width, 2)
            served = score_candidates(ranker, user, rows, index, path=path)
            torch.testing.assert_close(served, trained[offsets[b] : offsets[b + 1]], **CLOSE)


def test_the_head_contains_the_plain_dot_product(dataset: StoredDataset) -> None:
    """With two opposite hidden units a logit is the inner product itself: the two-tower model of textbooks."""
    ranker, batch = dot_ranker(dataset), some_requests(dataset)
    with torch.no_grad():
        for parameter in ranker.head.parameters():
            parameter.zero_()
        ranker.head.from_interaction.weight[0, 0], ranker.head.from_interaction.weight[1, 0] = 1.0, -1.0
        last = ranker.head.later_layers()[-1][0]
        last[0, 0], last[0, 1] = 1.0, -1.0
        torch.testing.assert_close(ranker(batch)[:, 0], dots_by_loops(ranker, batch)[:, 0], rtol=1e-9, atol=1e-11)
