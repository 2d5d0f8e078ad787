"""The LIME family written out for one user: dense masks and explicit matrices, from a module's own parameters."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from limerank.batch import Features, RequestBatch, UserInputs
from limerank.data.batches import RequestLoader
from limerank.data.store.dataset import StoredDataset
from limerank.models import Ranker, build_ranker
from limerank.nn.layers.attention import HeadProjection
from limerank.nn.layers.xor import XorLayer, XorStack
from limerank.nn.links import ContextMix
from limerank.ops.xor_layer import training
from limerank.splits import Part

EXACT: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-11}
"""For fp64: another order of summation, nothing else."""


def shaken(module: nn.Module, by: float = 0.2) -> nn.Module:
    """Every parameter moved, so that a bias, a norm or a row that is left out shows; in fp64, ready to predict."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(by * torch.randn_like(parameter))
    return module.double().eval()


def walk_short_histories(patch: pytest.MonkeyPatch) -> None:
    """XOR layers take the way of long histories for the short ones of a test: user by user, 4 events a block."""
    patch.setattr(training, "WORTHWHILE", 0)
    patch.setattr(training, "BLOCK", 4)


def log_setting(
    dataset: StoredDataset, lengths: list[int], *, seed: int = 5, with_times: bool = False, **model: Any
) -> tuple[Ranker, RequestBatch]:
    """A ranker in fp64, and requests of the log whose histories are cut to these lengths."""
    torch.manual_seed(seed)
    ranker = build_ranker(model, dataset.encoders.space(), 2, "test")
    shaken(ranker)
    loader = RequestLoader(dataset, Part.TEST, batch_requests=8, max_history=max(lengths), with_times=with_times)
    enough = loader.requests[loader.history_lengths(loader.requests) >= max(lengths)]
    return ranker, cut_histories(loader.assemble(enough[: len(lengths)]), lengths)


def cut_histories(batch: RequestBatch, lengths: list[int]) -> RequestBatch:
    """The same requests, with the last events of each history only."""
    history, inputs = batch.inputs.history, batch.inputs
    bounds = history.offsets.tolist()
    kept = [torch.arange(stop - length, stop) for stop, length in zip(bounds[1:], lengths, strict=True)]
    rows = torch.cat(kept)
    cut = type(history)(
        history.items,
        history.item_of_event[rows],
        history.events.take(rows),
        torch.tensor([0, *lengths]).cumsum(0),
        None if history.times is None else history.times[rows],
    )
    return RequestBatch(
        UserInputs(inputs.users, inputs.context, cut, inputs.times), batch.candidates, labels=batch.labels
    )


def with_context(inputs: UserInputs, value: int) -> UserInputs:
    """The same requests in another context."""
    context = Features(torch.full_like(inputs.context.indices, value))
    assert not torch.equal(context.indices, inputs.context.indices)
    return UserInputs(inputs.users, context, inputs.history, inputs.times)


def interactions(ranker: Ranker, batch: RequestBatch) -> Tensor:
    """o_c of all candidates of a batch."""
    user = ranker.encode_user(batch.inputs)
    items = ranker.encode_items(batch.candidates.items).take(batch.candidates.item_of_candidate)
    return ranker.interact(user, items, batch.candidates.offsets)


def per_request(ranker: Ranker, batch: RequestBatch) -> list[tuple[Tensor, Tensor, Tensor]]:
    """E, E^C and T of each request; the towers are not what is tested here."""
    embedded = Ranker.history(ranker, batch.inputs)
    context = ranker.context_tower(batch.inputs.users, batch.inputs.context)
    targets = ranker.item_tower.candidates(batch.candidates.items)[batch.candidates.item_of_candidate]
    events, candidates = batch.inputs.history.offsets.tolist(), batch.candidates.offsets.tolist()
    return [
        (embedded[events[b] : events[b + 1]], context[b], targets[candidates[b] : candidates[b + 1]])
        for b in range(len(batch.inputs))
    ]


def normed(norm: nn.LayerNorm, rows: Tensor) -> Tensor:
    """LayerNorm, epsilon 1e-6."""
    mean = rows.mean(-1, keepdim=True)
    variance = ((rows - mean) ** 2).mean(-1, keepdim=True)
    return (rows - mean) / (variance + 1e-6).sqrt() * norm.weight + norm.bias


def silu(values: Tensor) -> Tensor:
    """x / (1 + e^-x)."""
    return values / (1 + (-values).exp())


def heads_of(projection: HeadProjection, rows: Tensor, output: int = 0) -> list[Tensor]:
    """One output of a projection, a matrix [n, w] per head."""
    start = sum(projection.outputs[:output])
    stop = start + projection.outputs[output]
    normal = normed(projection.norm, rows) if isinstance(projection.norm, nn.LayerNorm) else rows
    projected = normal @ projection.linear.weight[start:stop].T + projection.linear.bias[start:stop]
    return list(projected.chunk(projection.heads, -1))


def contextual(mix: ContextMix | None, links: Tensor, context: Tensor) -> Tensor:
    """links + MLP(links (+) E^C), with the concatenation that the module avoids."""
    assert mix is not None
    both = torch.cat([links, context.expand(links.shape[0], -1)], -1)
    first = torch.cat([mix.from_link.weight, mix.from_context.weight], -1)
    hidden = (both @ first.T + mix.from_link.bias).clamp(min=0)
    return links + hidden @ mix.to_output.weight.T + mix.to_output.bias


def attend(queries: list[Tensor], keys: list[Tensor], values: list[Tensor], bias: Tensor | None = None) -> Tensor:
    """softmax(Q K^T / sqrt(a) + bias) V, the heads side by side; nothing to read gives zero."""
    read = []
    for head, (q, k, v) in enumerate(zip(queries, keys, values, strict=True)):
        scores = q @ k.T / math.sqrt(q.shape[1])
        if bias is not None:
            scores = scores + bias[:, head]
        raised = (scores - scores.amax(-1, keepdim=True)).exp() if len(k) else scores
        weights = raised / raised.sum(-1, keepdim=True)
        read.append(weights @ v)
    return torch.cat(read, -1)


def candidates_read(ranker: Any, targets: Tensor, personalized: Tensor) -> Tensor:
    """o_c: keys are the raw links, values the personalized ones; one level of links, none of them inactive."""
    queries, keys = heads_of(ranker.candidate_queries, targets), heads_of(ranker.link_keys, ranker.links.embeddings)
    values = heads_of(ranker.link_values, personalized)
    if ranker.options.candidate_activation == "softmax":
        return attend(queries, keys, values)
    links = len(personalized)
    return torch.cat(
        [silu(q @ k.T / math.sqrt(q.shape[1])) / links @ v for q, k, v in zip(queries, keys, values, strict=True)], -1
    )


def dense_xor_layer(layer: XorLayer, sources: Tensor, links: Tensor) -> tuple[Tensor, Tensor]:
    """One layer for one user, on all N + l rows at once, by the mask and the denominator of Algorithm 1."""
    design, width, (events, count) = layer.design, links.shape[1], (len(sources), len(links))
    states = torch.cat([sources, links])
    query_width = design.query_width or width
    projected = normed(layer.norm, states) @ layer.uvqk.weight.T + layer.uvqk.bias
    gate, values, queries, keys = projected.split([width, width, query_width, query_width], -1)
    gate = silu(gate)
    if design.uvqk_activation == "all":
        values, queries, keys = silu(values), silu(queries), silu(keys)
    is_source = torch.arange(events + count) < events
    mask = is_source[:, None] ^ is_source[None]
    denominator = torch.where(is_source, count, max(events, 1))[:, None]
    head_width = query_width // layer.heads
    scale = head_width**-0.5 if design.scale is None else design.scale
    read = []
    parts = (part.chunk(layer.heads, -1) for part in (queries, keys, values))
    for q, k, v in zip(*parts, strict=True):
        scores = scale * q @ k.T
        if design.activation == "softmax":
            raised = torch.where(mask, (scores - scores.amax()).exp(), 0.0)
            weights = raised / raised.sum(-1, keepdim=True).clamp(min=torch.finfo(raised.dtype).tiny)
        else:
            weights = torch.where(mask, silu(scores), 0.0)
            if design.normalizer == "length":
                weights = weights / denominator
        read.append(weights @ v)
    out = torch.cat(read, -1)
    mixed = normed(layer.out_norm, out) * gate
    if design.output == "concat":
        mixed = torch.cat([gate, out, mixed], -1)
    after = states + mixed @ layer.output.weight.T
    return after[:events], after[events:]


def dense_layer(layer: XorLayer, sources: Tensor, links: Tensor) -> tuple[Tensor, Tensor]:
    """In the layer's order: with gauss-seidel the history reads the links as they are after reading it."""
    old_sources, after = dense_xor_layer(layer, sources, links)
    if layer.design.order == "jacobi":
        return old_sources, after
    return dense_xor_layer(layer, sources, after)[0], after


def dense_stack(stack: XorStack, sources: Tensor, links: Tensor) -> Tensor:
    """All layers, all rows, the last layer's history too."""
    for layer in stack.layers:
        assert isinstance(layer, XorLayer)
        sources, links = dense_layer(layer, sources, links)
    return links
