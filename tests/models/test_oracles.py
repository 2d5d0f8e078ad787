"""The rankers against independent, literal implementations of their equations."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from limerank.batch import RequestBatch
from limerank.data.batches import RequestLoader
from limerank.data.store.dataset import StoredDataset
from limerank.models import build_ranker
from limerank.models.lime_mha import LimeMHARanker
from limerank.models.mha import MHARanker
from limerank.models.ttsn import TTSNRanker
from limerank.nn.layers.attention import HeadProjection
from limerank.splits import Part


def setting(dataset: StoredDataset, name: str) -> tuple[nn.Module, RequestBatch]:
    torch.manual_seed(5)
    loader = RequestLoader(dataset, Part.TEST, batch_requests=6, max_history=20)
    ranker = build_ranker({"name": name}, dataset.encoders.space(), 2, "test").eval()
    return ranker, loader.assemble(loader.requests[:6])


def interactions(ranker: TTSNRanker | MHARanker | LimeMHARanker, batch: RequestBatch) -> torch.Tensor:
    user = ranker.encode_user(batch.inputs)
    items = ranker.encode_items(batch.candidates.items).take(batch.candidates.item_of_candidate)
    return ranker.interact(user, items, batch.candidates.offsets)


def per_request(batch: RequestBatch, embedded: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(candidate distinct-item numbers, E) of each request."""
    history, candidates = batch.inputs.history.offsets.tolist(), batch.candidates.offsets.tolist()
    return [
        (
            batch.candidates.item_of_candidate[candidates[b] : candidates[b + 1]],
            embedded[history[b] : history[b + 1]],
        )
        for b in range(len(batch.inputs))
    ]


@torch.no_grad()
def test_ttsn_is_the_sum_of_the_history(dataset: StoredDataset) -> None:
    ranker, batch = setting(dataset, "ttsn")
    assert isinstance(ranker, TTSNRanker)
    embedded = ranker.item_tower.history(batch.inputs.history)
    expected = torch.cat([e.sum(0).expand(len(c), -1) for c, e in per_request(batch, embedded)])
    torch.testing.assert_close(interactions(ranker, batch), expected, rtol=1e-5, atol=1e-4)


@torch.no_grad()
def test_mha_against_torch_multihead_attention(dataset: StoredDataset) -> None:
    ranker, batch = setting(dataset, "mha")
    assert isinstance(ranker, MHARanker)
    width, heads = ranker.options.width, ranker.options.heads
    oracle = nn.MultiheadAttention(width, heads, batch_first=True)
    keys_values = ranker.to_keys_values.linear
    oracle.in_proj_weight.copy_(torch.cat([ranker.to_queries.linear.weight, keys_values.weight]))
    oracle.in_proj_bias.copy_(torch.cat([ranker.to_queries.linear.bias, keys_values.bias]))
    oracle.out_proj.weight.copy_(torch.eye(width))
    oracle.out_proj.bias.zero_()
    targets = ranker.item_tower.candidates(batch.candidates.items)
    embedded = ranker.item_tower.history(batch.inputs.history)
    expected = []
    for candidates, history in per_request(batch, embedded):
        query = ranker.to_queries.norm(targets[candidates])
        memory = ranker.to_keys_values.norm(history)
        expected.append(oracle(query, memory, memory)[0])
    torch.testing.assert_close(interactions(ranker, batch), torch.cat(expected), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_lime_mha_against_its_equations_written_as_loops(dataset: StoredDataset) -> None:
    ranker, batch = setting(dataset, "lime-mha")
    assert isinstance(ranker, LimeMHARanker)
    heads, links = ranker.options.heads, ranker.links()
    size = ranker.options.width // heads
    context = ranker.context_tower(batch.inputs.users, batch.inputs.context)
    targets = ranker.item_tower.candidates(batch.candidates.items)
    embedded = ranker.item_tower.history(batch.inputs.history)
    mix = ranker.context_mix
    assert mix is not None

    def project(module: HeadProjection, rows: torch.Tensor, output: int = 0) -> torch.Tensor:
        linear, width = module.linear, rows.shape[-1]
        weight = linear.weight[output * width : (output + 1) * width]
        bias = linear.bias[output * width : (output + 1) * width]
        projected: torch.Tensor = module.norm(rows) @ weight.T + bias
        return projected

    expected = []
    for request, (candidates, history) in enumerate(per_request(batch, embedded)):
        hidden = torch.relu(mix.from_link(links) + mix.from_context(context[request]))
        contextual = links + mix.to_output(hidden)
        queries = project(ranker.link_queries, contextual)
        keys = project(ranker.history_keys_values, history, 0)
        values = project(ranker.history_keys_values, history, 1)
        personalized = torch.zeros_like(contextual)
        for h in range(heads):
            part = slice(h * size, (h + 1) * size)
            for i in range(len(links)):
                scores = torch.stack([queries[i, part] @ keys[j, part] for j in range(len(history))]) / size**0.5
                personalized[i, part] = scores.softmax(0) @ values[:, part]
        link_values = project(ranker.link_values, personalized)
        candidate_queries = project(ranker.candidate_queries, targets[candidates])
        link_keys = project(ranker.link_keys, links)
        output = torch.zeros(len(candidates), ranker.options.width)
        for h in range(heads):
            part = slice(h * size, (h + 1) * size)
            weights = (candidate_queries[:, part] @ link_keys[:, part].T / size**0.5).softmax(1)
            output[:, part] = weights @ link_values[:, part]
        expected.append(output)
    torch.testing.assert_close(interactions(ranker, batch), torch.cat(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("history", [1, 40, 20])
def test_lime_mha_serves_without_projecting_the_history(dataset: StoredDataset, history: int) -> None:
    """At a width where absorption pays, the served user state equals the trained one; empty histories included."""
    torch.manual_seed(1)
    model = {"name": "lime-mha", "width": 64, "heads": 2, "links": 4}
    ranker = build_ranker(model, dataset.encoders.space(), 2, "test").eval()
    assert isinstance(ranker, LimeMHARanker)
    with torch.no_grad():
        for parameter in ranker.history_keys_values.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    loader = RequestLoader(dataset, Part.TEST, batch_requests=9, max_history=history)
    batch = loader.assemble(loader.requests[:9])
    trained = ranker.encode_user(batch.inputs)
    with torch.inference_mode():
        assert ranker._absorbs(9 * history, 9) is (history > 4)
        served = ranker.encode_user(batch.inputs)
    torch.testing.assert_close(served.memory[0], trained.memory[0], rtol=1e-5, atol=1e-5)
