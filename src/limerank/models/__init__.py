"""The rankers of the paper, one file each, and the registry that finds them by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from limerank.config import validate
from limerank.errors import LimerankError, UsageError, did_you_mean
from limerank.models.base import FoldedUser, ItemState, Ranker, RankerOptions, UserState
from limerank.models.lime_mha import LimeMHA
from limerank.models.mha import MHA
from limerank.models.ttsn import TTSN
from limerank.schema import FeatureSpace

RANKERS: Mapping[str, type[Ranker]] = {
    ranker.name: ranker
    for ranker in (
        # two towers
        TTSN,
        # target attention
        MHA,
        # sequence encoders
        # linear and low-rank attention
        # links
        LimeMHA,
    )
}

__all__ = ["RANKERS", "FoldedUser", "ItemState", "Ranker", "RankerOptions", "UserState", "build_ranker", "check_model"]


def check_model(
    model: Mapping[str, Any], where: str, error: type[LimerankError] = UsageError
) -> tuple[type[Ranker], RankerOptions]:
    """The ranker class and typed options of a model section: `name` plus the ranker's own options."""
    if "name" not in model:
        raise error(f"{where}: key 'model.name' is missing; known: {', '.join(RANKERS)}")
    name = model["name"]
    if not isinstance(name, str) or name not in RANKERS:
        raise error(f"{where}: key 'model.name': no ranker '{name}'{did_you_mean(str(name), RANKERS)}")
    ranker = RANKERS[name]
    options = {key: value for key, value in model.items() if key != "name"}
    return ranker, validate(ranker.options_type, options, f"{where}, model '{name}'", error)


def build_ranker(
    model: Mapping[str, Any], space: FeatureSpace, tasks: int, where: str, error: type[LimerankError] = UsageError
) -> Ranker:
    """A freshly initialized ranker from its model section."""
    ranker, options = check_model(model, where, error)
    return ranker(space, tasks, options)
