"""Terms of a logit add up to it and are what they claim; what links read is what their states are made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from dense_lime import EXACT
from torch import Tensor
from torch.nn import functional

from limerank.batch import UserInputs
from limerank.data.batches import RequestLoader
from limerank.data.store.dataset import StoredDataset
from limerank.models import RANKERS, ItemState, UserState, build_ranker
from limerank.models.lime import LimeRanker, ReadingLayer
from limerank.models.lime_mha import LimeMHARanker
from limerank.models.lime_xor import LimeXORRanker
from limerank.nn.layers.xor import XorLayer
from limerank.serve.explanation.contributions import contributions
from limerank.splits import Part

LIME = sorted(name for name, ranker in RANKERS.items() if issubclass(ranker, LimeRanker))
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "select_from": {"links": 8, "select_from": 20},
    "coarse": {"links": 12, "coarse_links": 4},
    "after": {"context": "after"},
    "silu": {"candidate_activation": "silu"},
}
HEADS = [[64], [32, 16], [32, 24, 8]]


def build(dataset: StoredDataset, name: str, **options: Any) -> LimeRanker:
    """A ranker in fp64, none of whose parameters is zero."""
    torch.manual_seed(4)
    ranker = build_ranker({"name": name, **options}, dataset.encoders.space(), 2, "test").eval()
    assert isinstance(ranker, LimeRanker)
    with torch.no_grad():
        for parameter in ranker.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return ranker.double()


def inputs_of(dataset: StoredDataset, *requests: int) -> UserInputs:
    loader = RequestLoader(dataset, Part.TEST, batch_requests=1, max_history=20, with_times=True)
    return loader.user_inputs(loader.requests[list(requests)])


def logits_of(ranker: LimeRanker, user: UserState, items: ItemState) -> Tensor:
    everything = torch.tensor([0, items.rows.shape[0]])
    return ranker.score(ranker.interact(user, items, everything), items, user, everything)


def test_every_lime_ranker_is_covered() -> None:
    assert LIME == ["isab", "lime-hstu", "lime-mha", "lime-xor"]


@torch.no_grad()
@pytest.mark.parametrize("head", HEADS, ids=len)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", LIME)
def test_the_terms_add_up_to_the_logit(dataset: StoredDataset, name: str, variant: str, head: list[int]) -> None:
    """Of both tasks and every candidate; the biases are computed forward, not as what is left."""
    ranker = build(dataset, name, head=head, **VARIANTS[variant])
    user, items = ranker.encode_user(inputs_of(dataset, 3)), ranker.encode_items(dataset.item_table)
    terms = contributions(ranker, user, items)
    heads, links = ranker.row_shape()
    assert terms.links.shape == (len(dataset.item_table), 2, heads, links)
    torch.testing.assert_close(terms.total, logits_of(ranker, user, items), **EXACT)
    for part in (terms.links.sum((2, 3)), terms.item, terms.user, terms.constant):
        assert (part.abs() > 1e-4).any()


@pytest.mark.parametrize("head", HEADS, ids=len)
@pytest.mark.parametrize("name", LIME)
def test_a_contribution_is_the_slope_in_the_value_of_a_link(dataset: StoredDataset, name: str, head: list[int]) -> None:
    """Scale the values of each link and head by 1 + x: autograd through the ranker's own path agrees at x = 0."""
    ranker = build(dataset, name, head=head)
    user, items = (
        ranker.encode_user(inputs_of(dataset, 3)),
        ranker.encode_items(dataset.item_table.take(torch.arange(1, 6))),
    )
    terms = contributions(ranker, user, items)
    scale = torch.zeros(ranker.row_shape(), dtype=torch.float64, requires_grad=True)
    logits = logits_of(ranker, UserState((user.memory[0] * (1 + scale)[None, :, :, None],), user.head_part), items)
    for candidate in range(5):
        for task in range(2):
            (slope,) = torch.autograd.grad(logits[candidate, task], scale, retain_graph=True)
            torch.testing.assert_close(terms.links[candidate, task], slope, **EXACT)


@torch.no_grad()
@pytest.mark.parametrize("name", LIME)
def test_without_a_link_exactly_its_contribution_is_missing(dataset: StoredDataset, name: str) -> None:
    """Zero the values of one link: the first layer loses w_i G_i whatever stands behind it, and where no unit turns off
    the logit loses the link's contribution.
    """
    ranker = build(dataset, name, head=[32, 16])
    user, items = ranker.encode_user(inputs_of(dataset, 3)), ranker.encode_items(dataset.item_table)
    ranker.head.from_item.bias.add_(50.0)
    shifted = ItemState(items.rows, items.head_part + 50.0)
    ranker.head.later[0].bias.add_(1000.0)  # type: ignore[operator]
    terms = contributions(ranker, user, shifted)
    whole = logits_of(ranker, user, shifted)
    everything = torch.tensor([0, len(dataset.item_table)])
    (folded,) = ranker.fold(user)
    matrix = folded.matrix.unflatten(0, ranker.row_shape())
    for link in (0, 7, 31):
        values = user.memory[0].clone()
        values[:, :, link] = 0
        without = UserState((values,), user.head_part)
        missing = whole - logits_of(ranker, without, shifted)
        torch.testing.assert_close(missing, terms.links[..., link].sum(2), rtol=1e-9, atol=1e-9)
        first, before = (ranker.head.from_interaction(ranker.interact(u, items, everything)) for u in (without, user))
        lost = torch.einsum("nh,hk->nk", terms.weights[:, :, link], matrix[:, link])
        torch.testing.assert_close(before - first, lost, **EXACT)


@torch.no_grad()
@pytest.mark.parametrize("name", LIME)
def test_links_that_a_request_does_not_use_add_and_read_nothing(dataset: StoredDataset, name: str) -> None:
    ranker = build(dataset, name, links=8, select_from=20)
    inputs = inputs_of(dataset, 3)
    assert ranker.selection is not None
    chosen, _ = ranker.selection(ranker.context_tower(inputs.users, inputs.context))
    resting = [link for link in range(20) if link not in chosen[0].tolist()]
    terms = contributions(ranker, ranker.encode_user(inputs), ranker.encode_items(dataset.item_table))
    reads = ranker.history_attention(inputs)
    assert reads.shape == (len(inputs.history.item_of_event), 20, 4)
    assert len(resting) == 12
    assert (terms.links[..., resting] == 0).all()
    assert (terms.links[..., chosen[0]] != 0).any(0).all()
    assert (reads[:, resting] == 0).all()
    assert (reads[:, chosen[0]] != 0).all()


@torch.no_grad()
@pytest.mark.parametrize("recency", [False, True])
@pytest.mark.parametrize("name", ["lime-mha", "lime-hstu"])
def test_pooling_weights_make_the_state_of_a_link(dataset: StoredDataset, name: str, recency: bool) -> None:
    """L^P, as the ranker computes it, is the sum of event values times these weights; so are the loops of a softmax."""
    ranker, inputs = build(dataset, name, recency=recency), inputs_of(dataset, 3)
    assert isinstance(ranker, LimeMHARanker)
    links, _ = ranker.reading_links(ranker.context_tower(inputs.users, inputs.context))
    reads = ranker.history_attention(inputs)
    keys, values = ranker.history_keys_values(ranker.history(inputs))
    pooled = torch.einsum("nlh,nhv->lhv", reads, values).flatten(1)
    torch.testing.assert_close(ranker.personalize(links, inputs)[0], pooled, **EXACT)
    (queries,) = ranker.link_queries(links)
    assert inputs.history.times is not None
    days = (inputs.history.times - inputs.history.times.max()).double() / 86_400_000
    for link in (0, 31):
        for head in range(4):
            scores = torch.stack([queries[0, link, head] @ key / 8**0.5 for key in keys[:, head]])
            if ranker.recency is not None:
                scores = scores + functional.softplus(ranker.recency.raw[head]) * days
            torch.testing.assert_close(reads[:, link, head], scores.softmax(0), **EXACT)


@torch.no_grad()
@pytest.mark.parametrize(("activation", "normalizer"), [("silu", "length"), ("silu", "none"), ("softmax", "length")])
@pytest.mark.parametrize(("layers", "layer"), [(1, "first"), (1, "last"), (3, "last")])
@pytest.mark.parametrize("name", ["lime-xor", "isab"])
def test_weights_of_a_layer_make_what_links_take_from_it(
    dataset: StoredDataset, name: str, layers: int, layer: ReadingLayer, activation: str, normalizer: str
) -> None:
    """Put through the rest of the last layer, the sum of event values times these weights is L^P of the ranker."""
    ranker = build(dataset, name, layers=layers, activation=activation, normalizer=normalizer)
    inputs = inputs_of(dataset, 3)
    assert isinstance(ranker, LimeXORRanker)
    contextual, _ = ranker.reading_links(ranker.context_tower(inputs.users, inputs.context))
    history, links = ranker.history(inputs), contextual
    *before, last = ranker.stack.layers
    assert isinstance(last, XorLayer)
    for earlier in before:
        history, links = earlier(history, links, inputs.history.offsets)
    reads = ranker.history_attention(inputs, layer)
    gate, _, queries, _ = last.uvqk(last.norm(links[0])).split(last.parts, -1)
    _, values, _, keys = last.uvqk(last.norm(history)).split(last.parts, -1)
    read = torch.einsum("nlh,nhv->lhv", reads, values.unflatten(1, (4, 8))).flatten(1)
    after = links[0] + last.output(last.out_norm(read) * functional.silu(gate))
    torch.testing.assert_close(ranker.personalize(contextual, inputs)[0], after - contextual[0], **EXACT)
    for link, head in ((0, 0), (31, 3)):
        part = slice(8 * head, 8 * head + 8)
        scores = torch.stack([queries[link, part] @ key / 8**0.5 for key in keys[:, part]])
        divisor = len(scores) if normalizer == "length" else 1
        expected = scores.softmax(0) if activation == "softmax" else scores / (1 + (-scores).exp()) / divisor
        torch.testing.assert_close(reads[:, link, head], expected, **EXACT)


@torch.no_grad()
@pytest.mark.parametrize("name", ["lime-xor", "isab"])
def test_the_first_layer_reads_single_events(dataset: StoredDataset, name: str) -> None:
    """Its weights are those of a ranker with that layer alone, and the last layer's are others."""
    ranker, inputs = build(dataset, name, layers=3), inputs_of(dataset, 3)
    shallow = build(dataset, name, layers=1)
    known = shallow.state_dict()
    shallow.load_state_dict({key: value for key, value in ranker.state_dict().items() if key in known})
    first = ranker.history_attention(inputs)
    torch.testing.assert_close(first, shallow.history_attention(inputs, "last"), **EXACT)
    assert not torch.allclose(first, ranker.history_attention(inputs, "last"), atol=1e-3)


@torch.no_grad()
@pytest.mark.parametrize("layer", ["first", "last"])
@pytest.mark.parametrize("variant", ["plain", "select_from"])
@pytest.mark.parametrize("name", LIME)
def test_reading_does_not_depend_on_batch_mates(
    dataset: StoredDataset, name: str, variant: str, layer: ReadingLayer
) -> None:
    """A request reads alone as among others; one without a history has no event to read."""
    timed = {"recency": True} if issubclass(RANKERS[name], LimeMHARanker) else {}
    ranker = build(dataset, name, **timed, **VARIANTS[variant])
    loader = RequestLoader(dataset, Part.TRAIN, batch_requests=4, max_history=20, with_times=True)
    lengths = loader.history_lengths(loader.requests)
    requests = loader.requests[np.argsort(lengths)[:: len(lengths) // 4]]
    assert loader.history_lengths(requests)[0] == 0
    together = ranker.history_attention(loader.user_inputs(requests), layer)
    alone = [ranker.history_attention(loader.user_inputs(requests[i : i + 1]), layer) for i in range(len(requests))]
    assert alone[0].shape == (0, ranker.options.all_links, 4)
    torch.testing.assert_close(together, torch.cat(alone), **EXACT)
