"""How rankers start: with aligned queries and keys all that have them, by the paper's rivals too, or all Xavier."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from limerank.data.store.dataset import StoredDataset
from limerank.models import RANKERS, Ranker, build_ranker
from limerank.models.lime_xor import LimeXORRanker
from limerank.nn.layers.attention import HeadProjection
from limerank.nn.layers.decayed_attention import DecayedAttention
from limerank.nn.layers.gated import GATE_START, GatedLayer
from limerank.nn.layers.sasrec import SASRecBlock
from limerank.nn.layers.xor import XorLayer

PAGE = Path(__file__).parents[2] / "docs/rankers/index.md"


class Pair(NamedTuple):
    """A query projection and a key projection, and how many outputs the matrix has that they are made in."""

    queries: Tensor
    keys: Tensor
    outputs: int


def layer_pair(module: nn.Module) -> Pair | None:
    """The projections of a layer that has both; None for any other module."""
    if isinstance(module, GatedLayer):
        _, _, queries, keys = module.uvqk.weight.split(module.parts)
        return Pair(queries, keys, sum(module.parts))
    if isinstance(module, SASRecBlock):
        queries = module.to_queries.weight
        return Pair(queries, module.to_keys_values.weight.chunk(2)[0], len(queries))
    if isinstance(module, DecayedAttention):
        queries, keys, *_ = module.project.linear.weight.split(module.project.outputs)
        return Pair(queries, keys, len(queries))
    return None


def stage_pairs(ranker: Ranker) -> Iterator[Pair]:
    """Every query projection outside of layers with every key projection: they all share one rotation."""
    outside = {
        name: module
        for name, module in ranker.named_modules()
        if isinstance(module, HeadProjection) and "layers" not in name
    }
    first = {name: module.linear.weight[: module.outputs[0]] for name, module in outside.items()}
    asked = [weight for name, weight in first.items() if "keys" in name or name == "compressed.projection"]
    for name, weight in first.items():
        if "queries" in name:
            yield from (Pair(weight, keys, len(weight)) for keys in asked)


def pairs_of(ranker: Ranker) -> list[Pair]:
    """All of a ranker."""
    layers = (layer_pair(module) for module in ranker.modules())
    return [*(pair for pair in layers if pair is not None), *stage_pairs(ranker)]


def correlation(pair: Pair) -> float:
    """1 where one is a multiple of the other, about 0 where both are random."""
    return torch.cosine_similarity(pair.queries.flatten(), pair.keys.flatten(), 0).item()


def built(dataset: StoredDataset, name: str, **options: object) -> Ranker:
    torch.manual_seed(0)
    return build_ranker({"name": name, **options}, dataset.encoders.space(), 1, "test")


@pytest.mark.parametrize("name", RANKERS)
def test_queries_and_keys_start_aligned_or_xavier(dataset: StoredDataset, name: str) -> None:
    """By default queries are 3 times the keys, which are a rotation; with null both have Xavier's scale, unrelated.

    A ranker without the option has no queries and keys.
    """
    sharpened = "sharpness" in RANKERS[name].options_type.model_fields
    pairs = pairs_of(built(dataset, name))
    assert bool(pairs) is sharpened
    for pair in pairs:
        torch.testing.assert_close(pair.queries, 3 * pair.keys)
        torch.testing.assert_close(pair.keys @ pair.keys.T, torch.eye(len(pair.keys)), atol=1e-4, rtol=0)
    for pair in pairs_of(built(dataset, name, sharpness=None)) if sharpened else ():
        assert abs(correlation(pair)) < 0.2
        largest = (6 / (pair.queries.shape[1] + pair.outputs)) ** 0.5
        for weight in (pair.queries, pair.keys):
            assert weight.abs().max() <= largest
            assert weight.std().item() == pytest.approx(largest / 3**0.5, rel=0.1)


def test_every_projection_of_queries_is_measured(dataset: StoredDataset) -> None:
    """What is called a query, or projects in a layer, is in some pair above: a new layer has to be told to it."""
    for name in RANKERS:
        ranker = built(dataset, name)
        measured = {pair.queries.untyped_storage().data_ptr() for pair in pairs_of(ranker)}
        for parameter, weight in ranker.named_parameters():
            if re.search(r"quer\w*\.(linear\.)?weight|uvqk\.weight", parameter):
                assert weight.untyped_storage().data_ptr() in measured, f"{name}: {parameter}"


def test_the_docs_say_who_starts_aligned(dataset: StoredDataset) -> None:
    (told,) = re.findall(r"^\* \*\*One start\.\*\*(.*?)^\*", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    _, aligned, without = re.split(r"Aligned:|No queries and keys:", told)
    kinds = {name: bool(pairs_of(built(dataset, name))) for name in RANKERS}
    assert set(re.findall(r"`([\w-]+)`", aligned)) == {name for name, has in kinds.items() if has}
    assert set(re.findall(r"`([\w-]+)`", without)) == {name for name, has in kinds.items() if not has}


def test_the_overview_says_who_is_factorized(dataset: StoredDataset) -> None:
    rows = dict(re.findall(r"^\| `([\w-]+)` \| \[[^|]+ \| [^|]+ \| ([^|]+) \|$", PAGE.read_text(), re.MULTILINE))
    rankers = {name: build_ranker({"name": name}, dataset.encoders.space(), 1, "test") for name in RANKERS}
    assert {name: cell.startswith("yes") for name, cell in rows.items()} == {
        n: r.factorized for n, r in rankers.items()
    }
    assert {name for name, cell in rows.items() if "yes, folds" in cell} == {
        n for n, r in rankers.items() if r.foldable
    }


@pytest.mark.parametrize("sharpness", [2.0, None])
def test_lime_xor_starts_with_one_rotation_and_open_gates(dataset: StoredDataset, sharpness: float | None) -> None:
    """Heads of the candidate stage and of all layers compare in the same subspaces; no gate masks what was read.

    Without the aligned start the gates are open all the same.
    """
    ranker = built(dataset, "lime-xor", sharpness=sharpness)
    assert isinstance(ranker, LimeXORRanker)
    rotation = ranker.link_keys.linear.weight
    for layer in ranker.stack.layers:
        assert isinstance(layer, XorLayer)
        pair = layer_pair(layer)
        assert pair is not None
        if sharpness is not None:
            torch.testing.assert_close(pair.queries, 2 * rotation)
            torch.testing.assert_close(pair.keys, rotation)
        gate, *others = layer.uvqk.bias.split(layer.parts)
        assert (gate == GATE_START).all()
        assert all((bias == 0).all() for bias in others)


def test_the_gates_of_all_gated_layers_start_open(dataset: StoredDataset) -> None:
    """LIME's layers and its skylines' alike, in every ranker that has such layers; and closed in all if one says so."""
    gated = [name for name, kind in RANKERS.items() if "gate_start" in kind.options_type.model_fields]
    assert gated == [name for name in RANKERS if layers_of(built(dataset, name))]
    assert set(gated) == {"hstu", "lime-xor", "lime-hstu", "isab"}
    for name in gated:
        for start, layers in (
            (GATE_START, layers_of(built(dataset, name))),
            (0.0, layers_of(built(dataset, name, gate_start=0.0))),
        ):
            assert all((layer.uvqk.bias[: layer.parts[0]] == start).all() for layer in layers), name


def layers_of(ranker: Ranker) -> list[GatedLayer]:
    """The layers of a ranker that have gates."""
    return [one for one in ranker.modules() if isinstance(one, GatedLayer)]


def test_the_fused_matrix_starts_as_one(dataset: StoredDataset) -> None:
    """Gates and values too have the scale of one Xavier matrix, as in HSTU's public code, aligned or not."""
    for sharpness in (3.0, None):
        layers = [m for m in built(dataset, "hstu", sharpness=sharpness).modules() if isinstance(m, GatedLayer)]
        assert layers
        for layer in layers:
            gates, values, *_ = layer.uvqk.weight.split(layer.parts)
            largest = (6 / (32 + 4 * 32)) ** 0.5
            for part in (gates, values):
                assert part.abs().max() <= largest
                assert part.std().item() == pytest.approx(largest / 3**0.5, rel=0.1)
