"""The LIME family against its equations written out, and what decoupling promises: rows without users, kept states."""

from __future__ import annotations

import dataclasses
import itertools
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dense_lime import (
    EXACT,
    attend,
    candidates_read,
    contextual,
    dense_stack,
    heads_of,
    interactions,
    log_setting,
    normed,
    per_request,
    silu,
    walk_short_histories,
    with_context,
)
from torch import Tensor

from limerank.api.run import Run
from limerank.batch import RequestBatch, UserInputs
from limerank.bench.made_up import BUILT_IN, random_request
from limerank.config import RunConfig, TrainConfig
from limerank.data.batches import RequestLoader
from limerank.data.store.dataset import StoredDataset
from limerank.errors import DataError, UsageError
from limerank.evaluation.evaluate import evaluate, evaluation_loader
from limerank.models import Ranker, build_ranker, check_model
from limerank.models.isab import ISABRanker
from limerank.models.lime import LimeRanker
from limerank.models.lime_hstu import LimeHSTURanker
from limerank.models.lime_mha import LimeMHARanker
from limerank.models.lime_xor import LimeXORRanker
from limerank.models.pma import PMARanker
from limerank.nn.layers.stu import STULayer
from limerank.nn.recency import DAY
from limerank.progress import Progress
from limerank.serve.bundles.offline import compute_rows
from limerank.serve.scorer import score_candidates
from limerank.serve.user_stage_program import export_user_stage
from limerank.splits import Part
from limerank.training.trainer import train

LENGTHS = [4, 0, 1, 17, 9]
SMALL: dict[str, Any] = {"width": 16, "heads": 2, "links": 5}


def reading_links(ranker: LimeRanker, context: Tensor) -> Tensor:
    """The links that read the history: L^C, or L."""
    raw: Tensor = ranker.links.embeddings
    return contextual(ranker.context_mix, raw, context) if ranker.options.context == "before" else raw


def finished(ranker: LimeRanker, personalized: Tensor, context: Tensor, targets: Tensor) -> Tensor:
    """o_c of all candidates of a request from what its links have read."""
    if ranker.options.context == "after":
        personalized = contextual(ranker.context_mix, personalized, context)
    return candidates_read(ranker, targets, personalized)


def expected_xor(ranker: LimeXORRanker, batch: RequestBatch) -> Tensor:
    """Dense attention of N + l rows under the mask of Algorithm 1, layer by layer, then the candidate stage."""
    rows = []
    for history, context, targets in per_request(ranker, batch):
        links = reading_links(ranker, context)
        refined = dense_stack(ranker.stack, history, links)
        personalized = refined - links if ranker.options.readout == "sum" else refined
        rows.append(finished(ranker, personalized, context, targets))
    return torch.cat(rows)


def pooled(ranker: LimeMHARanker, history: Tensor, context: Tensor, bias: Tensor | None = None) -> Tensor:
    """L^P of LIME-MHA, one softmax per head."""
    queries = heads_of(ranker.link_queries, reading_links(ranker, context))
    keys, values = (heads_of(ranker.history_keys_values, history, output) for output in (0, 1))
    return attend(queries, keys, values, bias)


def assert_same(ranker: Ranker, batch: RequestBatch, expected: Tensor) -> None:
    """As it is trained, with short histories and long ones; as it is predicted, in a batch and request by request."""
    torch.testing.assert_close(interactions(ranker, batch), expected, **EXACT)
    with pytest.MonkeyPatch.context() as patch:
        walk_short_histories(patch)
        torch.testing.assert_close(interactions(ranker, batch), expected, **EXACT)
    with torch.no_grad():
        torch.testing.assert_close(interactions(ranker, batch), expected, **EXACT)
        for request, (start, stop) in enumerate(pairwise(batch.candidates.offsets.tolist())):
            torch.testing.assert_close(interactions(ranker, only(batch, request)), expected[start:stop], **EXACT)


def only(batch: RequestBatch, request: int) -> RequestBatch:
    """One request of a batch."""
    history, inputs, candidates = batch.inputs.history, batch.inputs, batch.candidates
    events, own = (torch.arange(*o[request : request + 2].tolist()) for o in (history.offsets, candidates.offsets))
    this = torch.tensor([request])
    alone = dataclasses.replace(
        history,
        item_of_event=history.item_of_event[events],
        events=history.events.take(events),
        offsets=torch.tensor([0, len(events)]),
        times=None if history.times is None else history.times[events],
    )
    return RequestBatch(
        UserInputs(
            inputs.users.take(this),
            inputs.context.take(this),
            alone,
            None if inputs.times is None else inputs.times[this],
        ),
        dataclasses.replace(
            candidates, item_of_candidate=candidates.item_of_candidate[own], offsets=torch.tensor([0, len(own)])
        ),
        batch.labels[own],
    )


XOR_OPTIONS: list[dict[str, Any]] = [
    {"activation": activation, "normalizer": normalizer, "output": output, "uvqk_activation": activated, "layers": n}
    for (activation, normalizer), output, (activated, n) in itertools.product(
        [("silu", "length"), ("silu", "none"), ("softmax", "length")],
        ["gated", "concat"],
        [("u", 1), ("u", 3), ("all", 2)],
    )
]
MORE_XOR_OPTIONS: list[dict[str, Any]] = [
    {},
    {"scale": 1.0},
    {"query_width": 8},
    {"query_width": 32, "output": "concat", "activation": "softmax"},
    {"readout": "residual"},
    {"readout": "residual", "context": "after"},
    {"context": "after", "layers": 2},
    {"context": "none", "link_scale": 0.5},
    {"candidate_activation": "silu"},
    {"value_norm": False},
    {"value_norm": False, "readout": "residual", "context": "after"},
    {"candidate_activation": "silu", "query_width": 8, "readout": "residual", "scale": 0.5, "uvqk_activation": "all"},
    {"links": 1, "layers": 1},
    {"encoding": "position", "positions": 8},
]


@pytest.mark.parametrize("options", XOR_OPTIONS + MORE_XOR_OPTIONS, ids=str)
@pytest.mark.parametrize("name", ["lime-xor", "isab"])
def test_xor_is_dense_attention_under_the_mask(dataset: StoredDataset, name: str, options: dict[str, Any]) -> None:
    """o_c of the whole ranker, empty and one-event histories included; ISAB in the order links, then history."""
    ranker, batch = log_setting(dataset, LENGTHS, name=name, **SMALL | options)
    assert isinstance(ranker, LimeXORRanker)
    assert isinstance(ranker, ISABRanker) == (ranker.stack.design.order == "gauss-seidel")
    assert_same(ranker, batch, expected_xor(ranker, batch))


def expected_mha(ranker: LimeMHARanker, batch: RequestBatch) -> Tensor:
    """Two softmaxes in a row, head by head."""
    rows = [
        finished(ranker, pooled(ranker, history, context), context, targets)
        for history, context, targets in per_request(ranker, batch)
    ]
    return torch.cat(rows)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"query_width": 8},
        {"query_width": 48, "candidate_activation": "silu"},
        {"context": "after"},
        {"context": "after", "candidate_activation": "silu"},
        {"context": "none"},
        {"projection_norm": False, "link_scale": 0.2},
        {"value_norm": False},
        {"value_norm": False, "context": "after", "query_width": 48},
        {"encoding": "recent_position"},
        {"links": 1},
    ],
    ids=str,
)
def test_mha_against_explicit_matrices(dataset: StoredDataset, options: dict[str, Any]) -> None:
    ranker, batch = log_setting(dataset, LENGTHS, name="lime-mha", **SMALL | options)
    assert isinstance(ranker, LimeMHARanker)
    assert_same(ranker, batch, expected_mha(ranker, batch))


@pytest.mark.parametrize("walked", [False, True])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("lime-xor", {}),
        ("lime-xor", {"activation": "softmax", "output": "concat", "uvqk_activation": "all", "readout": "residual"}),
        ("isab", {"query_width": 8, "context": "after"}),
        ("isab", {"normalizer": "none", "output": "concat", "candidate_activation": "silu"}),
        ("lime-mha", {}),
        ("lime-mha", {"recency": True, "query_width": 8}),
        ("lime-mha", {"value_norm": False}),
    ],
    ids=str,
)
def test_gradients_are_those_of_the_equations(
    dataset: StoredDataset, name: str, options: dict[str, Any], walked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every parameter of the ranker that o_c depends on; histories in batches, or one by one as long ones are."""
    ranker, batch = log_setting(dataset, LENGTHS, name=name, with_times=True, **SMALL | options)
    assert isinstance(ranker, LimeXORRanker | LimeMHARanker)
    if isinstance(ranker, LimeXORRanker):
        expected = expected_xor(ranker, batch)
    else:
        expected = (expected_mha if ranker.recency is None else expected_recency)(ranker, batch)
    named = [(n, p) for n, p in ranker.named_parameters() if not n.startswith("head.")]
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    theirs = torch.autograd.grad(expected, [p for _, p in named], weights)
    if walked:
        walk_short_histories(monkeypatch)
    ours = torch.autograd.grad(interactions(ranker, batch), [p for _, p in named], weights)
    for (label, _), one, other in zip(named, ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-9, msg=f"gradient of {label} differs")


def causal_layer(layer: STULayer, rows: Tensor) -> Tensor:
    """An STU layer over one history, event by event."""
    gate, values, queries, keys = (normed(layer.norm, rows) @ layer.uvqk.weight.T + layer.uvqk.bias).chunk(4, -1)
    gate = silu(gate)
    if layer.all_activated:
        values, queries, keys = silu(values), silu(queries), silu(keys)
    size = rows.shape[1] // layer.heads
    out = torch.zeros_like(rows)
    for head in range(layer.heads):
        part = slice(head * size, (head + 1) * size)
        for i in range(len(rows)):
            scores = torch.stack([queries[i, part] @ keys[j, part] for j in range(i + 1)]) / size**0.5
            weights = silu(scores) / (len(rows) + 1) if layer.activation == "silu" else scores.softmax(0)
            out[i, part] = weights @ values[: i + 1, part]
    mixed = normed(layer.out_norm, out) * gate
    if layer.form == "concat":
        mixed = torch.cat([gate, out, mixed], -1)
    return rows + mixed @ layer.output.weight.T


@pytest.mark.parametrize(
    "options",
    [
        {"layers": 1},
        {"layers": 2, "activation": "softmax", "value_norm": False},
        {"layers": 2, "output": "concat", "uvqk_activation": "all"},
        {"layers": 1, "query_width": 8, "context": "after", "candidate_activation": "silu"},
    ],
    ids=str,
)
@torch.no_grad()
def test_hstu_against_loops(dataset: StoredDataset, options: dict[str, Any]) -> None:
    """A causal stack over the history, event by event; then links and candidates as in LIME-MHA."""
    ranker, batch = log_setting(dataset, [4, 0, 1, 9], name="lime-hstu", **SMALL | options)
    assert isinstance(ranker, LimeHSTURanker)
    expected = []
    for history, context, targets in per_request(ranker, batch):
        for layer in ranker.stack.layers:
            assert isinstance(layer, STULayer)
            history = causal_layer(layer, history)
        expected.append(finished(ranker, pooled(ranker, history, context), context, targets))
    assert_same(ranker, batch, torch.cat(expected))


@torch.no_grad()
def test_hstu_is_causal_and_links_are_not(dataset: StoredDataset) -> None:
    """Another event j changes the states of j and later ones only; the links read all of them."""
    ranker, batch = log_setting(dataset, [9], name="lime-hstu", **SMALL)
    assert isinstance(ranker, LimeHSTURanker)
    history = batch.inputs.history
    before, state = ranker.history(batch.inputs), ranker.encode_user(batch.inputs)
    for position in (0, 5, 8):
        items = history.item_of_event.clone()
        items[position] = (items[position] + 1) % len(history.items)
        other = dataclasses.replace(batch.inputs, history=dataclasses.replace(history, item_of_event=items))
        changed = (ranker.history(other) != before).any(1)
        assert changed.tolist() == [number >= position for number in range(9)]
        assert not torch.allclose(ranker.encode_user(other).memory[0], state.memory[0])


@pytest.mark.parametrize("options", [{}, {"query_width": 8}, {"links": 1}, {"heads": 1}], ids=str)
def test_pma_against_explicit_matrices(dataset: StoredDataset, options: dict[str, Any]) -> None:
    """MAB(S^C, E) with its two norms, then candidates over the pooled seeds: keys and values both of the user."""
    ranker, batch = log_setting(dataset, LENGTHS, name="pma", **SMALL | options)
    assert isinstance(ranker, PMARanker)
    expected = []
    for history, context, targets in per_request(ranker, batch):
        seeds = contextual(ranker.context_mix, ranker.seeds.embeddings, context)
        queries, own = (heads_of(ranker.seed_queries, seeds, output) for output in (0, 1))
        keys, values = (heads_of(ranker.history_keys_values, history, output) for output in (0, 1))
        first = normed(ranker.first_norm, torch.cat(own, -1) + attend(queries, keys, values))
        mixed = (first @ ranker.mix.weight.T + ranker.mix.bias).clamp(min=0)
        seeds = normed(ranker.second_norm, first + mixed)
        keys, values = (heads_of(ranker.pooled_keys_values, seeds, output) for output in (0, 1))
        expected.append(attend(heads_of(ranker.to_queries, targets), keys, values))
    assert_same(ranker, batch, torch.cat(expected))


@pytest.mark.parametrize("name", ["lime-mha", "lime-xor"])
def test_two_levels_against_a_loop(dataset: StoredDataset, name: str) -> None:
    """Both levels read the history; a candidate's weight for a fine link is its parent's times its own."""
    ranker, batch = log_setting(dataset, LENGTHS, name=name, **SMALL | {"links": 6, "coarse_links": 3})
    assert isinstance(ranker, LimeMHARanker | LimeXORRanker)
    raw = ranker.links.embeddings
    links = torch.stack([*raw[:3], *(raw[3 + i] + raw[i % 3] for i in range(6))])
    expected = []
    for history, context, targets in per_request(ranker, batch):
        reading = contextual(ranker.context_mix, links, context)
        if isinstance(ranker, LimeXORRanker):
            personalized = dense_stack(ranker.stack, history, reading) - reading
        else:
            keys, values = (heads_of(ranker.history_keys_values, history, output) for output in (0, 1))
            personalized = attend(heads_of(ranker.link_queries, reading), keys, values)
        queries, keys = heads_of(ranker.candidate_queries, targets), heads_of(ranker.link_keys, links)
        read = []
        for q, k, v in zip(queries, keys, heads_of(ranker.link_values, personalized), strict=True):
            scores = (q @ k.T / q.shape[1] ** 0.5).exp()
            broad = scores[:, :3] / scores[:, :3].sum(1, keepdim=True)
            fine = torch.stack(
                [broad[:, i % 3] * scores[:, 3 + i] / scores[:, 3 + i % 3 :: 3].sum(1) for i in range(6)], 1
            )
            read.append(torch.cat([broad, fine], 1) @ v)
        expected.append(torch.cat(read, -1))
    assert_same(ranker, batch, torch.cat(expected))


@pytest.mark.parametrize("name", ["lime-mha", "lime-xor", "lime-hstu", "isab"])
@pytest.mark.parametrize("context", ["before", "after"])
def test_a_selection_uses_its_active_links_only(dataset: StoredDataset, name: str, context: str) -> None:
    """Exactly `links` of all links have values, by the context; the others are zero and reach no score."""
    ranker, batch = log_setting(dataset, LENGTHS, name=name, **SMALL | {"select_from": 12, "context": context})
    assert isinstance(ranker, LimeRanker)
    assert ranker.selection is not None
    assert ranker.row_shape() == (2, 12)
    values = ranker.encode_user(batch.inputs).memory[0]
    active = values.abs().sum((1, 3)) > 0
    assert values.shape == (len(LENGTHS), 2, 12, 8)
    assert active.sum(1).tolist() == [5] * len(LENGTHS)
    chosen, _ = ranker.selection(ranker.context_tower(batch.inputs.users, batch.inputs.context))
    for request, own in enumerate(chosen):
        assert sorted(own.tolist()) == active[request].nonzero()[:, 0].tolist()
    assert len({tuple(one) for one in active.tolist()}) > 1
    rows = ranker.encode_items(batch.candidates.items).take(batch.candidates.item_of_candidate)
    hidden = rows.rows.view(-1, 2, 12).clone()
    for request, (start, stop) in enumerate(pairwise(batch.candidates.offsets.tolist())):
        hidden[start:stop, :, ~active[request]] = 1e9
    user = ranker.encode_user(batch.inputs)
    poisoned = ranker.interact(user, dataclasses.replace(rows, rows=hidden.flatten(1)), batch.candidates.offsets)
    torch.testing.assert_close(poisoned, ranker.interact(user, rows, batch.candidates.offsets), **EXACT)


@pytest.mark.parametrize("options", [{}, {"candidate_activation": "silu"}, {"context": "after"}], ids=str)
@pytest.mark.parametrize("name", ["lime-mha", "lime-xor"])
def test_a_selection_against_explicit_matrices(dataset: StoredDataset, name: str, options: dict[str, Any]) -> None:
    """Scores of all links, the best of them read, weights over all, values scaled by the softmax of the best."""
    ranker, batch = log_setting(dataset, LENGTHS, name=name, **SMALL | {"select_from": 12} | options)
    assert isinstance(ranker, LimeMHARanker | LimeXORRanker)
    assert ranker.selection is not None
    score, everything = ranker.selection.score, ranker.links.embeddings
    expected = []
    for history, context, targets in per_request(ranker, batch):
        scores = score.weight @ context + score.bias
        chosen = scores.argsort(descending=True)[:5].tolist()
        fractions = scores[chosen].exp() / scores[chosen].exp().sum()
        links = everything[chosen]
        if ranker.options.context == "before":
            links = contextual(ranker.context_mix, links, context)
        if isinstance(ranker, LimeXORRanker):
            personalized = dense_stack(ranker.stack, history, links) - links
        else:
            keys, values = (heads_of(ranker.history_keys_values, history, output) for output in (0, 1))
            personalized = attend(heads_of(ranker.link_queries, links), keys, values)
        if ranker.options.context == "after":
            personalized = contextual(ranker.context_mix, personalized, context)
        queries, keys = heads_of(ranker.candidate_queries, targets), heads_of(ranker.link_keys, everything)
        read = []
        for q, k, v in zip(queries, keys, heads_of(ranker.link_values, personalized), strict=True):
            compared = q @ k.T / q.shape[1] ** 0.5
            weights = silu(compared) / 12 if "candidate_activation" in options else compared.softmax(1)
            read.append(weights[:, chosen] @ (5 * fractions[:, None] * v))
        expected.append(torch.cat(read, -1))
    assert_same(ranker, batch, torch.cat(expected))


def test_the_selection_is_trained(dataset: StoredDataset) -> None:
    """Its layer gets gradient of the loss, and moving it moves which links are active."""
    ranker, batch = log_setting(dataset, LENGTHS, name="lime-mha", **SMALL | {"select_from": 12})
    assert isinstance(ranker, LimeMHARanker)
    assert ranker.selection is not None
    ranker.loss(dataclasses.replace(batch, labels=batch.labels.double())).backward()
    for parameter in ranker.selection.parameters():
        assert parameter.grad is not None
        assert parameter.grad.any()
    active = (ranker.encode_user(batch.inputs).memory[0] != 0).any(1).any(-1)
    with torch.no_grad():
        ranker.selection.score.bias.add_(torch.linspace(-9, 9, 12))
    assert not torch.equal((ranker.encode_user(batch.inputs).memory[0] != 0).any(1).any(-1), active)


@torch.no_grad()
def test_a_selection_of_all_links_selects_nothing(dataset: StoredDataset) -> None:
    """With indifferent scores every link is active with scale 1: the ranker that selects none."""
    ranker, batch = log_setting(dataset, LENGTHS, name="lime-xor", **SMALL | {"select_from": 5})
    plain, _ = log_setting(dataset, LENGTHS, name="lime-xor", **SMALL)
    assert isinstance(ranker, LimeXORRanker)
    assert ranker.selection is not None
    for parameter in ranker.selection.parameters():
        parameter.zero_()
    missing = plain.load_state_dict(ranker.state_dict(), strict=False)
    assert set(missing.unexpected_keys) == {"selection.score.weight", "selection.score.bias"}
    torch.testing.assert_close(interactions(ranker, batch), interactions(plain, batch), **EXACT)


VARIANTS: list[dict[str, Any]] = [
    {"name": "lime-mha", "select_from": 12},
    {"name": "lime-mha", "value_norm": False},
    {"name": "lime-mha", "coarse_links": 5, "links": 10, "context": "after"},
    {"name": "lime-mha", "recency": True, "query_width": 8},
    {"name": "lime-xor", "select_from": 7, "candidate_activation": "silu"},
    {"name": "lime-xor", "links": 6, "coarse_links": 2, "output": "concat", "uvqk_activation": "all", "dropout": 0.1},
    {"name": "lime-xor", "activation": "softmax", "query_width": 32, "context": "after", "readout": "residual"},
    {"name": "lime-hstu", "recency": True, "output": "concat", "layers": 1},
    {"name": "lime-hstu", "activation": "softmax", "select_from": 9, "value_norm": False},
    {"name": "isab", "normalizer": "none", "context": "after", "encoding": "age", "value_norm": False},
    {"name": "pma", "query_width": 8, "encoding": "calendar"},
]


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_every_parameter_of_every_variant_is_trained(dataset: StoredDataset, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    ranker = build_ranker(SMALL | options, dataset.encoders.space(), 2, "test")
    loader = RequestLoader(dataset, Part.TEST, batch_requests=16, max_history=20, with_times=True)
    ranker.train()
    ranker.loss(loader.assemble(loader.requests[:16])).backward()
    for name, parameter in ranker.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name
        assert torch.isfinite(parameter.grad).all(), name


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_rows_of_every_variant_know_no_user(dataset: StoredDataset, options: dict[str, Any]) -> None:
    """Rows stored before any request give the scores of forward; nothing but the listed parameters changes them."""
    torch.manual_seed(0)
    ranker = build_ranker(SMALL | options, dataset.encoders.space(), 2, "test").eval()
    rows = compute_rows(ranker, dataset.item_table, "fp32")
    loader = RequestLoader(dataset, Part.TRAIN, batch_requests=8, max_history=20, with_times=True)
    items = dataset.column("events/item")
    paths: list[Any] = ["plain", "folded"] if ranker.foldable else ["uncached"]
    with torch.inference_mode():
        for request in (loader.requests[:1], loader.requests[-1:]):
            index = torch.from_numpy(items[loader.candidate_rows(request)].astype(np.int64))
            user = ranker.encode_user(loader.user_inputs(request))
            for path in paths:
                served = score_candidates(ranker, user, rows, index, path=path)
                torch.testing.assert_close(served, ranker(loader.assemble(request)), rtol=1e-5, atol=1e-5)
    few = dataset.item_table.take(torch.arange(9))
    before, listed = ranker.encode_items(few), ranker.item_side_parameters()
    with torch.no_grad():
        for name, parameter in ranker.named_parameters():
            if name not in listed:
                parameter.add_(1)
    after = ranker.encode_items(few)
    assert torch.equal(before.rows, after.rows)
    assert torch.equal(before.head_part, after.head_part)


@pytest.mark.parametrize("name", ["lime-mha", "lime-xor", "lime-hstu", "isab"])
@torch.no_grad()
def test_links_read_without_context_can_be_kept(dataset: StoredDataset, name: str) -> None:
    """`context: after`: what links have read is the same in every context, the scores are not; `before`: neither is."""
    for context in ("after", "before"):
        ranker, batch = log_setting(dataset, LENGTHS, name=name, **SMALL | {"context": context})
        assert isinstance(ranker, LimeRanker)
        read, scores = [], []
        for inputs in (batch.inputs, with_context(batch.inputs, 2)):
            links, chosen = ranker.reading_links(ranker.context_tower(inputs.users, inputs.context))
            assert chosen is None
            read.append(ranker.personalize(links, inputs))
            scores.append(ranker(dataclasses.replace(batch, inputs=inputs)))
        assert torch.equal(*read) == (context == "after")
        assert not torch.allclose(*scores)


LINK_MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"select_from": 31}, "select_from 31 is smaller than links 32"),
    ({"select_from": 4, "links": 1}, "select_from needs at least 2 links"),
    ({"select_from": 64, "coarse_links": 4}, "select_from and coarse_links exclude each other"),
    ({"coarse_links": 5}, "links 32 cannot be shared out among 5 coarse links"),
    ({"coarse_links": 8, "candidate_activation": "silu"}, "coarse_links need candidate_activation softmax"),
    ({"links": 0}, "key 'links': Input should be greater than or equal to 1"),
    ({"query_width": 30}, "query_width 30 cannot be split into 4 heads"),
    ({"context": "between"}, "key 'context'"),
]
XOR_MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"activation": "softmax", "normalizer": "none"}, "normalizer none is for activation silu"),
    ({"layers": 0}, "key 'layers'"),
    ({"scale": 0.0}, "key 'scale'"),
    ({"dropout": 1.0}, "key 'dropout'"),
]


@pytest.mark.parametrize("name", ["lime-mha", "lime-xor", "lime-hstu", "isab"])
def test_options_that_do_not_fit_are_refused(name: str) -> None:
    """Each message names the numbers and the reason; what just fits is taken."""
    for section, message in LINK_MISTAKES + (XOR_MISTAKES if name in ("lime-xor", "isab") else []):
        with pytest.raises(UsageError, match=message):
            check_model({"name": name, **section}, "c.yaml")
    for fitting in ({"select_from": 32}, {"coarse_links": 32}, {"coarse_links": 1}):
        check_model({"name": name, **fitting}, "c.yaml")


def expected_recency(ranker: LimeMHARanker, batch: RequestBatch) -> Tensor:
    """softmax(x_j - decay (now - t_j)) with the age in days at the request, which is not what the code computes."""
    times, now = batch.inputs.history.times, batch.inputs.times
    assert times is not None
    assert now is not None
    assert ranker.recency is not None
    decay = torch.nn.functional.softplus(ranker.recency.raw)
    bounds, rows = batch.inputs.history.offsets.tolist(), []
    for request, (history, context, targets) in enumerate(per_request(ranker, batch)):
        ages = (now[request] - times[bounds[request] : bounds[request + 1]]).double() / DAY
        for layer in ranker.stack.layers if isinstance(ranker, LimeHSTURanker) else []:
            assert isinstance(layer, STULayer)
            history = causal_layer(layer, history)
        rows.append(finished(ranker, pooled(ranker, history, context, -ages[:, None] * decay), context, targets))
    return torch.cat(rows)


@pytest.mark.parametrize(
    ("name", "options", "absorbs"),
    [
        ("lime-mha", {"heads": 4, "links": 16}, False),
        ("lime-mha", {"width": 64, "links": 4}, True),  # H * l < d + l: served without projecting the history
        ("lime-mha", {"width": 64, "links": 4, "encoding": "calendar", "context": "after"}, True),
        ("lime-hstu", {"layers": 1}, True),
        ("lime-hstu", {"layers": 1, "heads": 4, "links": 16}, False),
    ],
    ids=str,
)
def test_recency_is_a_softmax_with_ages(
    dataset: StoredDataset, name: str, options: dict[str, Any], absorbs: bool
) -> None:
    """Training, prediction and the absorbed path, all against ages at the time of the request."""
    ranker, batch = log_setting(dataset, [12, 0, 1, 20, 9], with_times=True, name=name, recency=True, **SMALL | options)
    assert isinstance(ranker, LimeMHARanker)
    assert ranker.needs_times
    with torch.no_grad():
        assert ranker._absorbs(20, 1) is absorbs
    assert_same(ranker, batch, expected_recency(ranker, batch))
    forgetful, _ = log_setting(dataset, [1], name=name, **SMALL | options)
    forgetful.load_state_dict(ranker.state_dict(), strict=False)
    assert not torch.allclose(interactions(forgetful, batch), interactions(ranker, batch), atol=1e-4)


@pytest.mark.parametrize("links", [4, 32])
def test_recency_does_not_see_the_present(dataset: StoredDataset, links: int) -> None:
    """All times moved, events and request, or the request alone: not a number changes."""
    options = SMALL | {"width": 32, "links": links}  # 4 links absorb the history's projections, 32 do not
    ranker, batch = log_setting(dataset, [12, 3, 0], with_times=True, name="lime-mha", recency=True, **options)
    history, inputs = batch.inputs.history, batch.inputs
    assert history.times is not None
    assert inputs.times is not None
    for events, request in ((9 * 365 * DAY + 1, 9 * 365 * DAY + 1), (0, 40 * DAY)):
        moved = dataclasses.replace(
            inputs, history=dataclasses.replace(history, times=history.times + events), times=inputs.times + request
        )
        for gradients in (True, False):
            with torch.set_grad_enabled(gradients):
                one, other = ranker.encode_user(inputs).memory[0], ranker.encode_user(moved).memory[0]
                assert torch.equal(one, other)


@pytest.mark.parametrize("links", [4, 32])
def test_a_second_tells_events_apart_in_fp32(links: int) -> None:
    """Events a second apart at 1.7e12 ms, with a decay of one per second: each weighs e times the one before it."""
    torch.manual_seed(0)
    ranker = build_ranker(
        {"name": "lime-mha", "width": 16, "heads": 4, "links": links, "recency": True, "encoding": "position"},
        BUILT_IN,
        1,
        "test",
    ).eval()
    assert isinstance(ranker, LimeMHARanker)
    assert ranker.recency is not None
    with torch.no_grad():
        ranker.recency.raw.fill_(86_400.0)
        ranker.history_keys_values.linear.weight[:16].zero_()  # scores are the bias alone
    inputs = random_request(BUILT_IN, 64)
    times = 1_700_000_000_000 - torch.arange(63, -1, -1) * 1_000
    inputs = dataclasses.replace(inputs, history=dataclasses.replace(inputs.history, times=times))
    expected_weights = (-torch.arange(63.0, -1, -1)).softmax(0)
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients):
            assert ranker._absorbs(64, 1) is (links == 4 and not gradients)
            got = ranker.personalize(ranker.links()[None], inputs)
            _, values = ranker.history_keys_values(ranker.history(inputs))
        expected = torch.einsum("n,nhv->hv", expected_weights, values).flatten()
        torch.testing.assert_close(got[0], expected.expand(links, -1), rtol=1e-4, atol=1e-5)


def test_rankers_that_read_times_say_so(dataset: StoredDataset) -> None:
    """Without times the error names the key, whether it is trained or served."""
    for section, key in (
        ({"recency": True}, "model.recency"),
        ({"encoding": "age"}, "model.encoding"),
        ({"encoding": "calendar"}, "model.encoding"),
    ):
        ranker, batch = log_setting(dataset, [3, 2], name="lime-mha", **SMALL | section)
        assert ranker.needs_times
        for gradients in (True, False):
            with torch.set_grad_enabled(gradients), pytest.raises(DataError, match=f"key '{key}'.*needs? the time"):
                ranker(batch)


@pytest.mark.parametrize("name", ["lime-mha", "lime-xor", "lime-hstu", "isab", "pma"])
@torch.no_grad()
def test_encodings_enter_the_history(dataset: StoredDataset, name: str) -> None:
    """E_j + P[position], counted from either end of a user's own history; the tower itself is unchanged."""
    for encoding in ("position", "recent_position"):
        ranker, batch = log_setting(dataset, LENGTHS, name=name, encoding=encoding, positions=8, **SMALL)
        assert ranker.encoding is not None
        plain = ranker.item_tower.history(batch.inputs.history)
        added = Ranker.history(ranker, batch.inputs) - plain
        for (start, stop), length in zip(pairwise(batch.inputs.history.offsets.tolist()), LENGTHS, strict=True):
            positions = list(range(length)) if encoding == "position" else list(range(length))[::-1]
            expected = ranker.encoding.table[[min(position, 7) for position in positions]]
            torch.testing.assert_close(added[start:stop], expected, **EXACT)


@pytest.mark.parametrize(
    "options",
    [
        {"name": "lime-mha", "recency": True, "select_from": 7},
        {"name": "lime-xor", "output": "concat", "coarse_links": 5, "links": 5, "context": "after"},
        {"name": "lime-mha", "value_norm": False},
    ],
    ids=str,
)
def test_variants_are_exported_with_a_free_history(options: dict[str, Any]) -> None:
    """Times, a selection and two levels are part of the program; other lengths, an empty one too, run through it."""
    torch.manual_seed(0)
    ranker = build_ranker(SMALL | options, BUILT_IN, 1, "test").eval()
    stage = export_user_stage(ranker, random_request(BUILT_IN, 5)).module()
    for length in (0, 1, 11):
        inputs = random_request(BUILT_IN, length, seed=length)
        with torch.no_grad():
            expected = ranker.encode_user(inputs)
        got = stage(inputs)
        torch.testing.assert_close(
            (got.memory, got.head_part), (expected.memory, expected.head_part), rtol=1e-5, atol=1e-5
        )


def test_a_ranker_that_reads_times_trains_on_an_ordinary_log(dataset: StoredDataset, tmp_path: Path) -> None:
    """One epoch of LIME-MHA with recency and age through the trainer; its recorded metrics can be computed again."""
    config = RunConfig(
        dataset=dataset.path,
        model={"name": "lime-mha", "recency": True, "encoding": "age"},
        train=TrainConfig(epochs=1, batch_requests=32, max_history=20),
        seed=1,
    )
    run = Run.open(train(config, tmp_path / "run", Progress(quiet=True)).path)
    ranker = run.ranker(dataset)
    assert isinstance(ranker, LimeMHARanker)
    assert ranker.recency is not None
    fresh = build_ranker(config.model, dataset.encoders.space(), len(dataset.schema.tasks), "test")
    assert isinstance(fresh, LimeMHARanker)
    assert fresh.recency is not None
    assert not torch.equal(ranker.recency.raw, fresh.recency.raw)
    again = evaluate(ranker, evaluation_loader(dataset, Part.TEST, 20, with_times=True))
    for task, metrics in run.record.test.items():
        assert metrics.auc is not None
        assert 0 < metrics.auc < 1
        assert again[task].auc == pytest.approx(metrics.auc, abs=1e-6)
        assert again[task].ne == pytest.approx(metrics.ne, abs=1e-6)
