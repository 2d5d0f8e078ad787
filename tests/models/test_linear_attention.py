"""Linear and low-rank attention against explicit matrices, sequential recurrences, and the promises of their docs."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from limerank.batch import RequestBatch, UserInputs
from limerank.data.batches import RequestLoader
from limerank.data.store.dataset import StoredDataset
from limerank.errors import UsageError
from limerank.models import ItemState, Ranker, build_ranker, check_model
from limerank.models.base import AttentionOptions
from limerank.models.lightning import LightningRanker
from limerank.models.linear_attention import LinearAttentionRanker
from limerank.models.linformer import LinformerRanker
from limerank.models.lrea import LREARanker
from limerank.models.performer import PerformerRanker
from limerank.nn.layers.attention import HeadProjection
from limerank.nn.layers.compressed_sequence import project_recent
from limerank.nn.layers.decayed_attention import DecayedAttention
from limerank.nn.layers.random_features import EPSILON, RandomFeatures, orthogonal_directions
from limerank.ops.linear_attention import decay_to_end, decayed_causal, outer_sums, segment_max
from limerank.serve.bundles.offline import compute_rows
from limerank.serve.scorer import score_candidates
from limerank.splits import Part

FAMILY = ("linformer", "performer", "linear-attention", "lightning", "lrea")
REQUESTS, HISTORY = 6, 20
CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5}


def setting(dataset: StoredDataset, name: str, **options: Any) -> tuple[Ranker, RequestBatch]:
    """A ranker with no parameter at a trivial value, and requests with histories of different lengths, one empty."""
    torch.manual_seed(5)
    loader = RequestLoader(dataset, Part.TRAIN, batch_requests=REQUESTS, max_history=HISTORY)
    lengths = loader.history_lengths(loader.requests)
    chosen = [int(np.argmin(lengths)), *(int(np.argmax(lengths >= least)) for least in (1, 3, 8, 14, HISTORY))]
    ranker = build_ranker({"name": name, **options}, dataset.encoders.space(), 2, "test").eval()
    with torch.no_grad():
        for parameter in ranker.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return ranker, loader.assemble(loader.requests[chosen])


def interactions(ranker: Ranker, batch: RequestBatch) -> Tensor:
    user = ranker.encode_user(batch.inputs)
    items = ranker.encode_items(batch.candidates.items).take(batch.candidates.item_of_candidate)
    return ranker.interact(user, items, batch.candidates.offsets)


def per_request(ranker: Ranker, batch: RequestBatch) -> list[tuple[Tensor, Tensor]]:
    """(T, E) of each request."""
    targets = ranker.item_tower.candidates(batch.candidates.items)[batch.candidates.item_of_candidate]
    embedded = ranker.item_tower.history(batch.inputs.history)
    events, candidates = batch.inputs.history.offsets.tolist(), batch.candidates.offsets.tolist()
    assert events[1] == 0
    return [(targets[candidates[b] : candidates[b + 1]], embedded[events[b] : events[b + 1]]) for b in range(REQUESTS)]


def project(module: HeadProjection, rows: Tensor, output: int = 0) -> Tensor:
    start = sum(module.outputs[:output])
    part = slice(start, start + module.outputs[output])
    projected: Tensor = module.norm(rows) @ module.linear.weight[part].T + module.linear.bias[part]
    return projected


def by_head(ranker: Ranker, rows: Tensor) -> list[Tensor]:
    assert isinstance(ranker.options, AttentionOptions)
    return list(rows.chunk(ranker.options.heads, dim=1))


def oracle_linear_attention(ranker: LinearAttentionRanker, targets: Tensor, events: Tensor) -> Tensor:
    def feature(x: Tensor) -> Tensor:
        if ranker.options.feature_map == "silu":
            return x * torch.sigmoid(x)
        return torch.where(x > 0, x + 1, x.exp())

    outputs = []
    for query, key, value in zip(
        by_head(ranker, project(ranker.to_queries, targets)),
        by_head(ranker, project(ranker.to_keys_values, events, 0)),
        by_head(ranker, project(ranker.to_keys_values, events, 1)),
        strict=True,
    ):
        weights = feature(query) @ feature(key).T
        if ranker.options.normalizer == "sum":
            weights = weights / weights.sum(1, keepdim=True)
        elif ranker.options.normalizer == "events":
            weights = weights / max(len(events), 1)
        outputs.append(weights @ value)
    return torch.cat(outputs, dim=1)


def oracle_performer(ranker: PerformerRanker, targets: Tensor, events: Tensor) -> Tensor:
    directions = ranker.random_features.directions
    outputs = []
    for query, key, value in zip(
        by_head(ranker, project(ranker.to_queries, targets)),
        by_head(ranker, project(ranker.to_keys_values, events, 0)),
        by_head(ranker, project(ranker.to_keys_values, events, 1)),
        strict=True,
    ):
        scale = query.shape[1] ** -0.25
        weights = torch.zeros(len(query), len(key), dtype=torch.float64)
        for omega in directions.double():
            left, right = (
                torch.exp(rows.double() * scale @ omega - (rows.double() * scale).square().sum(1) / 2)
                for rows in (query, key)
            )
            weights += torch.outer(left, right) / len(directions)
        outputs.append((weights / weights.sum(1, keepdim=True) @ value.double()).float())
    return torch.cat(outputs, dim=1)


def oracle_lightning(ranker: LightningRanker, targets: Tensor, events: Tensor) -> Tensor:
    """Event by event: S <- lambda S + k v^T."""
    heads, layers = ranker.options.heads, ranker.options.layers

    def normalize(x: Tensor, weight: Tensor) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight

    def silu(x: Tensor) -> Tensor:
        return x * torch.sigmoid(x)

    def decay(head: int, number: int) -> float:
        return float(np.exp(-8 * head / heads * (1 - number / layers)))

    rows = events
    for number, layer in enumerate(ranker.layers):
        assert isinstance(layer, DecayedAttention)
        queries, keys, values, gates = (project(layer.project, rows, output) for output in range(4))
        outputs = torch.zeros_like(rows)
        size = rows.shape[1] // heads
        for head in range(heads):
            part = slice(head * size, (head + 1) * size)
            state = torch.zeros(size, size)
            for i in range(len(rows)):
                state = decay(head, number) * state + torch.outer(silu(keys[i, part]), silu(values[i, part]))
                outputs[i, part] = silu(queries[i, part]) @ state
        gated = torch.sigmoid(gates) * normalize(outputs, layer.norm.weight)
        rows = rows + gated @ layer.to_output.weight.T
    output = []
    for head, (query, key, value) in enumerate(
        zip(
            by_head(ranker, project(ranker.to_queries, targets)),
            by_head(ranker, project(ranker.to_keys_values, rows, 0)),
            by_head(ranker, project(ranker.to_keys_values, rows, 1)),
            strict=True,
        )
    ):
        state = torch.zeros(key.shape[1], value.shape[1])
        for i in range(len(rows)):
            state = decay(head, layers - 1) * state + torch.outer(silu(key[i]), silu(value[i]))
        output.append(silu(query) @ state)
    return normalize(torch.cat(output, dim=1), ranker.norm.weight)


def newest_first(weights: Tensor, count: int) -> Tensor:
    """P [r, N]: the column of each event that is read, oldest first."""
    read = min(count, len(weights))
    return torch.stack([weights[position] for position in range(read)][::-1], dim=1) if read else weights[:0].T


def oracle_linformer(ranker: LinformerRanker, targets: Tensor, events: Tensor) -> Tensor:
    compressed, rank = ranker.compressed, ranker.options.rank
    events = events[max(len(events) - ranker.options.positions, 0) :]
    of_keys = newest_first(compressed.weights[:, :rank], len(events))
    of_values = of_keys if ranker.options.shared_projection else newest_first(compressed.weights[:, rank:], len(events))
    keys = of_keys @ project(compressed.projection, events, 0)
    values = of_values @ project(compressed.projection, events, 1)
    outputs = []
    for query, key, value in zip(
        *(by_head(ranker, rows) for rows in (project(ranker.to_queries, targets), keys, values)), strict=True
    ):
        outputs.append((query @ key.T / key.shape[1] ** 0.5).softmax(1) @ value)
    return torch.cat(outputs, dim=1)


def lrea_attention(ranker: LREARanker, targets: Tensor, events: Tensor) -> list[Tensor]:
    """A [candidates, N] of each head, with R P written out."""
    compressed, rank = ranker.compressed, ranker.options.rank
    down = newest_first(compressed.weights[:, :rank], len(events))
    up = newest_first(compressed.weights[:, rank:], len(events)).T
    keys = (up @ down) @ project(compressed.projection, events, 0)
    queries = project(ranker.to_queries, targets)
    return [
        query @ key.T / key.shape[1] ** 0.5
        for query, key in zip(by_head(ranker, queries), by_head(ranker, keys), strict=True)
    ]


def oracle_lrea(ranker: LREARanker, targets: Tensor, events: Tensor) -> Tensor:
    events = events[max(len(events) - ranker.options.positions, 0) :]
    values = by_head(ranker, project(ranker.compressed.projection, events, 1))
    attention = lrea_attention(ranker, targets, events)
    return torch.cat([a @ v / max(len(events), 1) for a, v in zip(attention, values, strict=True)], dim=1)


ORACLES: dict[str, Any] = {
    "linear-attention": oracle_linear_attention,
    "performer": oracle_performer,
    "lightning": oracle_lightning,
    "linformer": oracle_linformer,
    "lrea": oracle_lrea,
}
SETTINGS = [
    *((name, {}) for name in ORACLES),
    ("linear-attention", {"feature_map": "silu", "normalizer": "none"}),
    ("linear-attention", {"normalizer": "events"}),
    ("linear-attention", {"heads": 2, "query_width": 64, "width": 64}),
    ("linformer", {"shared_projection": True}),
    ("linformer", {"positions": 7, "rank": 3}),
    ("lrea", {"positions": 7, "rank": 3}),
]


@torch.no_grad()
@pytest.mark.parametrize(("name", "options"), SETTINGS)
def test_equation(dataset: StoredDataset, name: str, options: dict[str, Any]) -> None:
    """Batched o_c equal the ranker's equation with its matrices written out, request by request; empty ones give 0."""
    ranker, batch = setting(dataset, name, **options)
    expected = []
    for targets, events in per_request(ranker, batch):
        empty = torch.zeros(len(targets), ranker.options.width)
        expected.append(ORACLES[name](ranker, targets, events) if len(events) else empty)
    torch.testing.assert_close(interactions(ranker, batch), torch.cat(expected), **CLOSE)


def one_request(dataset: StoredDataset, length: int) -> UserInputs:
    loader = RequestLoader(dataset, Part.TEST, batch_requests=1, max_history=length)
    inputs = loader.assemble(loader.requests[-1:]).inputs
    assert len(inputs.history.item_of_event) == length
    return inputs


@torch.no_grad()
@pytest.mark.parametrize(("name", "options"), SETTINGS)
def test_one_request_with_many_candidates_is_the_same(
    dataset: StoredDataset, name: str, options: dict[str, Any]
) -> None:
    """Serving's path (one request, the whole catalog, rows only) equals the batched one."""
    ranker, _ = setting(dataset, name, **options)
    user = ranker.encode_user(one_request(dataset, 17))
    rows = ranker.encode_items(dataset.item_table).rows
    count = len(rows)
    alone = ranker.interact(user, ItemState(rows, rows.new_zeros(count, 0)), torch.tensor([0, count]))
    nobody = torch.tensor([0, 0, count])
    two = dataclasses.replace(user, memory=tuple(torch.cat([part, part]) for part in user.memory))
    batched = ranker.interact(two, ItemState(rows, rows.new_zeros(count, 0)), nobody)
    torch.testing.assert_close(alone, batched, **CLOSE)


@pytest.mark.parametrize(
    ("options", "foldable"), [({}, False), ({"normalizer": "events"}, True), ({"normalizer": "none"}, True)]
)
def test_folding_follows_the_normalizer(dataset: StoredDataset, options: dict[str, Any], foldable: bool) -> None:
    """What is divided per candidate cannot be folded; what is not, folds to the same scores."""
    ranker, _ = setting(dataset, "linear-attention", **options)
    assert ranker.foldable is foldable
    with torch.inference_mode():
        user = ranker.encode_user(one_request(dataset, 17))
        if not foldable:
            with pytest.raises(TypeError, match="cannot be folded"):
                ranker.fold(user)
            return
        store = compute_rows(ranker, dataset.item_table, "fp32")
        folded, plain = (score_candidates(ranker, user, store, path=path) for path in ("folded", "plain"))
        size = plain.abs().max()  # with `none` logits grow with the history, and so does their rounding
        torch.testing.assert_close(folded / size, plain / size, rtol=0, atol=1e-5)


def test_features_that_may_be_negative_are_not_summed() -> None:
    with pytest.raises(UsageError, match="SiLU features may sum to zero"):
        check_model({"name": "linear-attention", "feature_map": "silu"}, "c.yaml")


@torch.no_grad()
@pytest.mark.parametrize("name", FAMILY)
def test_half_precision_rows_score_alike(dataset: StoredDataset, name: str) -> None:
    """Rows survive fp16: no feature overflows or vanishes, and logits move by thousandths."""
    ranker, _ = setting(dataset, name)
    user = ranker.encode_user(one_request(dataset, 17))
    wide, narrow = (
        score_candidates(ranker, user, compute_rows(ranker, dataset.item_table, row_type))
        for row_type in ("fp32", "fp16")
    )
    torch.testing.assert_close(narrow, wide, rtol=0, atol=5e-3)


@pytest.mark.parametrize("length", [1, 2, 5, 12, 13])
def test_chunked_decay_is_the_recurrence(length: int) -> None:
    """Values and gradients of the chunked form equal those of the loop, for whole, broken and single chunks."""
    generator = torch.Generator().manual_seed(length)
    shape = (2, length, 3, 4)
    tensors = [torch.randn(shape, dtype=torch.float64, generator=generator, requires_grad=True) for _ in range(3)]
    queries, keys, values = tensors
    rates = torch.tensor([0.0, 0.3, 2.0], dtype=torch.float64)
    weights = torch.randn(shape, dtype=torch.float64, generator=generator)
    state = torch.zeros(2, 3, 4, 4, dtype=torch.float64)
    outputs = []
    for i in range(length):
        state = torch.exp(-rates)[:, None, None] * state + keys[:, i, :, :, None] * values[:, i, :, None, :]
        outputs.append((queries[:, i, :, None, :] @ state)[:, :, 0])
    expected = torch.stack(outputs, dim=1)
    got = decayed_causal(queries, keys, values, rates, chunk=4)
    torch.testing.assert_close(got, expected)
    for mine, other in zip(
        torch.autograd.grad((got * weights).sum(), tensors),
        torch.autograd.grad((expected * weights).sum(), tensors),
        strict=True,
    ):
        torch.testing.assert_close(mine, other)
    offsets = torch.tensor([0, length, 2 * length])
    decayed = keys.flatten(0, 1) * decay_to_end(rates, offsets, 2 * length)[..., None]
    torch.testing.assert_close(outer_sums(decayed, values.flatten(0, 1), offsets), state)


@torch.no_grad()
def test_a_long_history_decays_in_longer_chunks() -> None:
    """Beyond 512 chunks of 32 the chunks grow: still the recurrence."""
    torch.manual_seed(0)
    length = 33 * 512 + 5
    keys, values = torch.randn(2, 1, length, 1, 2, dtype=torch.float64)
    rates = torch.tensor([0.01], dtype=torch.float64)
    mixed = decayed_causal(keys, keys, values, rates)
    offsets = torch.tensor([0, length])
    decayed = keys[0] * decay_to_end(rates, offsets, length)[..., None]
    state = outer_sums(decayed, values[0], offsets)[0, 0]
    torch.testing.assert_close(mixed[0, -1, 0], keys[0, -1, 0] @ state)


@torch.no_grad()
@pytest.mark.parametrize("width", [3, 40])
def test_outer_sums(width: int) -> None:
    """Narrow heads (one wide product) and wide ones (one per head) equal the sum of outer products; empty is zero."""
    torch.manual_seed(0)
    offsets = torch.tensor([0, 4, 4, 9])
    features, values = torch.randn(9, 2, 5), torch.randn(9, 2, width)
    outer = features[..., None] * values[:, :, None, :]
    expected = torch.stack([outer[a:b].sum(0) for a, b in offsets.unfold(0, 2, 1).tolist()])
    torch.testing.assert_close(outer_sums(features, values, offsets), expected)
    torch.testing.assert_close(outer_sums(features, values, torch.tensor([0, 9])), outer.sum(0, keepdim=True))
    assert torch.equal(outer_sums(features[:0], values[:0], torch.tensor([0, 0])), torch.zeros(1, 2, 5, width))


def test_mixtures_by_recency() -> None:
    """One product for all requests equals a loop over events, values and gradients; old events reach nothing."""
    torch.manual_seed(0)
    offsets = torch.tensor([0, 2, 2, 9])
    values = torch.randn(9, 3, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    outside = torch.randn(3, 5, 3, dtype=torch.float64)
    rows = []
    for start, end in offsets.unfold(0, 2, 1).tolist():
        total = torch.zeros(5, 3, dtype=torch.float64)
        for j in range(start, end):
            if (position := end - 1 - j) < len(weights):
                total = total + torch.outer(weights[position], values[j])
        rows.append(total)
    expected, got = torch.stack(rows), project_recent(values, offsets, weights)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(project_recent(values[2:], torch.tensor([0, 7]), weights)[0], expected[2])
    wanted = torch.autograd.grad((expected * outside).sum(), (values, weights))
    for mine, other in zip(torch.autograd.grad((got * outside).sum(), (values, weights)), wanted, strict=True):
        torch.testing.assert_close(mine, other)
    assert torch.equal(wanted[0][2:5], torch.zeros(3, 3, dtype=torch.float64))


def test_random_directions_are_orthogonal_and_as_long_as_gaussian_ones() -> None:
    torch.manual_seed(0)
    directions = orthogonal_directions(20, 8)
    for block in directions.split(8):
        products = functional.normalize(block) @ functional.normalize(block).T
        torch.testing.assert_close(products, torch.eye(len(block)), rtol=0, atol=1e-5)
    squares = orthogonal_directions(4000, 8).square().sum(1)
    assert abs(float(squares.mean()) - 8) < 4 * (16 / len(squares)) ** 0.5
    assert float(squares.std()) == pytest.approx(4, rel=0.1)


def test_random_features_estimate_the_softmax_kernel_without_bias() -> None:
    """The mean of many draws of 8 features is exp(q . k / sqrt(d_a)) within four standard errors."""
    torch.manual_seed(0)
    query, key = torch.randn(2, 4, dtype=torch.float64)
    draws = RandomFeatures(8 * 20_000, 4).double()
    estimates = (draws.exponents(query) + draws.exponents(key)).exp().view(-1, 8).mean(1)
    error = estimates.std() / len(estimates) ** 0.5
    assert abs(estimates.mean() - torch.exp(query @ key / 2)) < 4 * error
    assert error < 0.02 * estimates.mean()


def test_random_features_are_bounded_and_padding_has_none() -> None:
    """Huge inputs neither overflow nor vanish; a user's features do not depend on the other users' keys."""
    torch.manual_seed(0)
    features = RandomFeatures(16, 8)
    queries, keys = 40 * torch.randn(5, 2, 8), 10 * torch.randn(7, 2, 8)
    of_queries = features.of_queries(queries)
    torch.testing.assert_close(of_queries.amax(-1), torch.full((5, 2), 0.25 + EPSILON))
    assert of_queries.min() >= EPSILON
    offsets = torch.tensor([0, 3, 3, 7])
    of_keys = features.of_keys(keys, offsets)
    torch.testing.assert_close(of_keys[:3], features.of_keys(keys[:3], torch.tensor([0, 3])))
    assert of_keys.max() <= 0.25 + EPSILON
    assert segment_max(keys[:, 0], offsets)[1].tolist() == [-torch.inf] * 8
    sums = outer_sums(of_keys, torch.ones(7, 2, 1), offsets)[..., 0]
    torch.testing.assert_close(sums[0], of_keys[:3].sum(0))
    assert torch.equal(sums[1], torch.zeros(2, 16))


def test_the_draw_is_saved_and_redrawn_only_in_training(dataset: StoredDataset) -> None:
    """Cached rows depend on the draw: it is in the weights and in the fingerprint, and serving never changes it."""
    ranker, batch = setting(dataset, "performer", redraw=2)
    assert isinstance(ranker, PerformerRanker)
    directions = ranker.random_features.directions
    before = directions.clone()
    assert "random_features.directions" in ranker.state_dict()
    assert "random_features.directions" in ranker.item_side_parameters()
    for _ in range(3):
        ranker(batch)
    assert torch.equal(directions, before)
    ranker.train()
    ranker(batch)
    assert torch.equal(directions, before)
    ranker(batch)
    assert not torch.equal(directions, before)
    assert ranker.random_features.directions is directions


def test_lrea_is_punished_for_negative_attention(dataset: StoredDataset) -> None:
    """The loss term is the mean of relu(-A) over real candidates, real events and heads, and has a gradient."""
    ranker, batch = setting(dataset, "lrea", nonnegativity=0.5, unknown_rate=0.0)
    assert isinstance(ranker, LREARanker)
    ranker.train()
    user = ranker.encode_user(batch.inputs)
    items = ranker.encode_items(batch.candidates.items).take(batch.candidates.item_of_candidate)
    loss = ranker.auxiliary_loss(user, items, batch)
    assert loss is not None
    below = torch.cat(
        [
            torch.relu(-attention).flatten()
            for targets, events in per_request(ranker, batch)
            if len(events)
            for attention in lrea_attention(ranker, targets, events)
        ]
    )
    torch.testing.assert_close(loss, 0.5 * below.mean(), **CLOSE)
    logits = ranker(batch)
    entropy = functional.binary_cross_entropy_with_logits(logits, batch.labels)
    torch.testing.assert_close(ranker.loss(batch), entropy + loss)
    loss.backward()
    gradient = ranker.compressed.weights.grad
    assert gradient is not None
    assert gradient[:HISTORY].abs().sum() > 0
    assert gradient[HISTORY:].abs().sum() == 0
    ranker.eval()
    assert ranker.auxiliary_loss(ranker.encode_user(batch.inputs), items, batch) is None


def test_lrea_without_any_history_has_a_finite_loss(dataset: StoredDataset) -> None:
    ranker, _ = setting(dataset, "lrea")
    ranker.train()
    loader = RequestLoader(dataset, Part.TRAIN, batch_requests=2, max_history=HISTORY)
    lengths = loader.history_lengths(loader.requests)
    batch = loader.assemble(loader.requests[np.flatnonzero(lengths == 0)[:2]])
    assert torch.isfinite(ranker.loss(batch))


@torch.no_grad()
@pytest.mark.parametrize("name", FAMILY)
def test_order_matters_where_it_is_said_to(dataset: StoredDataset, name: str) -> None:
    """Reversing a history changes o_c exactly for the rankers that call themselves ordered."""
    ranker, _ = setting(dataset, name)
    inputs = one_request(dataset, 12)
    history = inputs.history
    backwards = torch.arange(11, -1, -1)
    reversed_history = dataclasses.replace(
        history, item_of_event=history.item_of_event[backwards], events=history.events.take(backwards)
    )
    first = ranker.encode_user(inputs).memory[0]
    second = ranker.encode_user(dataclasses.replace(inputs, history=reversed_history)).memory[0]
    assert torch.allclose(first, second, rtol=1e-4, atol=1e-4) is not ranker.ordered
