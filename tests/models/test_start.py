"""Which rankers start with aligned queries and keys: what docs/rankers/index.md says of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from limerank.data.store.dataset import StoredDataset
from limerank.models import RANKERS, Ranker, build_ranker
from limerank.models.lime_xor import LimeXORRanker
from limerank.nn.layers.attention import HeadProjection
from limerank.nn.layers.decayed_attention import DecayedAttention
from limerank.nn.layers.gated import GatedLayer
from limerank.nn.layers.sasrec import SASRecBlock
from limerank.nn.layers.xor import GATE_START, XorLayer

PAGE = Path(__file__).parents[2] / "docs/rankers/index.md"


def layer_pairs(module: nn.Module) -> tuple[Tensor, Tensor] | None:
    """The query and the key projection of a layer that has both; None for any other module."""
    if isinstance(module, GatedLayer):
        _, _, queries, keys = module.uvqk.weight.split(module.parts)
        return queries, keys
    if isinstance(module, SASRecBlock):
        return module.to_queries.weight, module.to_keys_values.weight.chunk(2)[0]
    if isinstance(module, DecayedAttention):
        queries, keys, *_ = module.project.linear.weight.split(module.project.outputs)
        return queries, keys
    return None


def stage_pairs(ranker: Ranker) -> Iterator[tuple[Tensor, Tensor]]:
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
            yield from ((weight, keys) for keys in asked)


def aligned(queries: Tensor, keys: Tensor) -> bool:
    """Whether one is a multiple of the other."""
    return torch.cosine_similarity(queries.flatten(), keys.flatten(), 0).item() > 0.999


def test_the_docs_say_who_starts_aligned(dataset: StoredDataset) -> None:
    all_aligned: set[str] = set()
    some_not: set[str] = set()
    without: set[str] = set()
    for name in RANKERS:
        torch.manual_seed(0)
        ranker = build_ranker({"name": name}, dataset.encoders.space(), 1, "test")
        layers = (layer_pairs(module) for module in ranker.modules())
        pairs = [*(pair for pair in layers if pair is not None), *stage_pairs(ranker)]
        kind = without if not pairs else all_aligned if all(aligned(*pair) for pair in pairs) else some_not
        kind.add(name)
    sharpened = {name for name, ranker in RANKERS.items() if "sharpness" in ranker.options_type.model_fields}
    assert some_not == {"sasrec", "lime-hstu"}
    assert all_aligned == sharpened - some_not
    (told,) = re.findall(r"^\* \*\*Starts differ\.\*\*(.*?)^\*", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    _, _, exceptions, nothing = re.split(r"`sharpness`|They do not in|`mha` gained.*?two\.", told, flags=re.DOTALL)
    assert set(re.findall(r"`([\w-]+)`", exceptions)) == some_not
    assert set(re.findall(r"`([\w-]+)`", nothing)) == without


def test_the_overview_says_who_is_factorized(dataset: StoredDataset) -> None:
    rows = dict(re.findall(r"^\| `([\w-]+)` \| \[[^|]+ \| [^|]+ \| ([^|]+) \|$", PAGE.read_text(), re.MULTILINE))
    built = {name: build_ranker({"name": name}, dataset.encoders.space(), 1, "test") for name in RANKERS}
    assert {name: cell.startswith("yes") for name, cell in rows.items()} == {n: r.factorized for n, r in built.items()}
    assert {name for name, cell in rows.items() if "yes, folds" in cell} == {n for n, r in built.items() if r.foldable}


def test_lime_xor_starts_with_one_rotation_and_open_gates(dataset: StoredDataset) -> None:
    """Heads of the candidate stage and of all layers compare in the same subspaces; no gate masks what was read."""
    torch.manual_seed(0)
    ranker = build_ranker({"name": "lime-xor", "sharpness": 2.0}, dataset.encoders.space(), 1, "test")
    assert isinstance(ranker, LimeXORRanker)
    rotation = ranker.link_keys.linear.weight
    torch.testing.assert_close(rotation @ rotation.T, torch.eye(len(rotation)), atol=1e-4, rtol=0)
    torch.testing.assert_close(ranker.candidate_queries.linear.weight, 2 * rotation)
    for layer in ranker.stack.layers:
        pair = layer_pairs(layer)
        assert isinstance(layer, XorLayer)
        assert pair is not None
        torch.testing.assert_close(pair[0], 2 * rotation)
        torch.testing.assert_close(pair[1], rotation)
        gate, *others = layer.uvqk.bias.split(layer.parts)
        assert (gate == GATE_START).all()
        assert all((bias == 0).all() for bias in others)


def test_hstu_starts_with_xavier_projections_if_asked(dataset: StoredDataset) -> None:
    for sharpness, expected in ((None, False), (1.0, True)):
        ranker = build_ranker({"name": "hstu", "sharpness": sharpness}, dataset.encoders.space(), 1, "test")
        pairs = [pair for module in ranker.modules() if (pair := layer_pairs(module)) is not None]
        assert [aligned(*pair) for pair in pairs] == [expected] * 3
