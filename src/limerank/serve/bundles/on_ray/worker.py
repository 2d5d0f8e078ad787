"""What a worker process does: build the item stage from what travels, prove its bytes, compute the rows of a shard.

Features and weights travel as arrays, which workers of one machine map from its object store without a copy. Of the
ranker only the weights of the item side travel; the others have shapes and no numbers. No file of the driver is needed.
"""

from __future__ import annotations

import copy
import platform
import socket
import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from limerank import __version__
from limerank.batch import Features
from limerank.models import Ranker
from limerank.serve.bundles import item_stage
from limerank.serve.bundles.bundle import features_of, tensors_of
from limerank.serve.bundles.item_stage import ItemStage, Rows, RowType, arrays_of

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Recipe:
    """All that rows are computed with, but for the features."""

    skeleton: Ranker
    """The ranker without its parameters."""
    weights: Arrays
    """Those of the item side, by name."""
    row_type: RowType
    items_per_block: int
    sample: Arrays
    """Features of some items,"""
    made: str
    """and the hash of the rows that the driver makes of them."""


def asked_for(export: str) -> dict[str, str]:
    """What a task is told beside features: a name for the recipe, so that a worker builds its stage once, and versions.

    Plain words: they must arrive where limerank is of another version, or missing.
    """
    return {"export": export, "limerank": __version__, "torch": str(torch.__version__)}


def recipe_of(stage: ItemStage, made: str) -> Recipe:
    """What a stage computes rows with, ready to travel."""
    weights = {name: tensor.detach().numpy() for name, tensor in stage.ranker.item_side_parameters().items()}
    return Recipe(
        skeleton_of(stage.ranker),
        weights,
        stage.row_type,
        item_stage.ITEMS_PER_BLOCK,
        arrays_of_features(stage.sample()),
        made,
    )


def skeleton_of(ranker: Ranker) -> Ranker:
    """A copy of a ranker whose parameters have shapes, and no numbers; buffers are small. Nothing large is copied."""
    empty: dict[int, Any] = {id(one): nn.Parameter(one.detach().to("meta"), False) for one in ranker.parameters()}
    return copy.deepcopy(ranker, empty)


def stage_of(recipe: Recipe) -> ItemStage:
    """The stage that a recipe describes; it has the items of the sample."""
    ranker = copy.deepcopy(recipe.skeleton)
    ranker.load_state_dict(_tensors(recipe.weights), strict=False, assign=True)
    return ItemStage(ranker, features_of(_tensors(recipe.sample)), recipe.row_type)


def arrays_of_features(features: Features) -> Arrays:
    """Features as named arrays, to travel."""
    return {name: tensor.numpy() for name, tensor in tensors_of(features).items()}


def rows_of(asked: dict[str, str], recipe: list[Any], features: Arrays) -> Rows | str:
    """The rows of these items; or why this worker cannot make them, in words. Without a recipe it is only asked."""
    if (__version__, torch.__version__) != (asked["limerank"], asked["torch"]):
        return (
            f"{socket.gethostname()} has limerank {__version__} and torch {torch.__version__}, this machine has "
            f"{asked['limerank']} and {asked['torch']}; install the same on both"
        )
    if not recipe:
        return {}
    stage = _stage(_Key(asked["export"], recipe))
    if isinstance(stage, str):
        return stage
    part = ItemStage(stage.ranker, features_of(_tensors(features)), stage.row_type)
    blocks = [arrays_of(rows) for _, rows in part.blocks(np.arange(len(part.items)))]
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


class _Key:
    """A recipe in the object store, equal to another of the same export."""

    def __init__(self, export: str, recipe: list[Any]) -> None:
        self.export = export
        self.recipe = recipe

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.export == other.export

    def __hash__(self) -> int:
        return hash(self.export)


@lru_cache(maxsize=1)
def _stage(key: _Key) -> ItemStage | str:
    """The stage of an export, built once by each worker process; or why its bytes are not those of the driver."""
    import ray

    recipe: Recipe = ray.get(key.recipe[0])
    torch.set_num_threads(1)
    item_stage.ITEMS_PER_BLOCK = recipe.items_per_block
    stage = stage_of(recipe)
    if stage.sample_hash() != recipe.made:
        return (
            f"{socket.gethostname()} ({platform.processor() or platform.machine()}, torch for "
            f"{torch.backends.cpu.get_cpu_capability()}) rounds otherwise than this machine, and its rows would have "
            "other bytes; export from a machine of its kind"
        )
    return stage


def _tensors(arrays: Arrays) -> dict[str, torch.Tensor]:
    """Tensors over the memory of arrays, which is only read."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return {name: torch.from_numpy(array) for name, array in arrays.items()}
