"""The rankers, one file each, and the registry that finds them by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from limerank.config import current_names
from limerank.errors import LimerankError, UsageError, did_you_mean
from limerank.models.base import FoldedUser, ItemState, Ranker, RankerOptions, UserState
from limerank.models.din import DINRanker
from limerank.models.hstu import HSTURanker
from limerank.models.inttower import IntTowerRanker
from limerank.models.isab import ISABRanker
from limerank.models.lightning import LightningRanker
from limerank.models.lime_hstu import LimeHSTURanker
from limerank.models.lime_mha import LimeMHARanker
from limerank.models.lime_xor import LimeXORRanker
from limerank.models.linear_attention import LinearAttentionRanker
from limerank.models.linformer import LinformerRanker
from limerank.models.lrea import LREARanker
from limerank.models.mamba import MambaRanker
from limerank.models.mha import MHARanker
from limerank.models.performer import PerformerRanker
from limerank.models.pma import PMARanker
from limerank.models.sasrec import SASRecRanker
from limerank.models.sim import SIMRanker
from limerank.models.truncated_mha import TruncatedMHARanker
from limerank.models.ttsn import TTSNRanker
from limerank.models.twin import TWINRanker
from limerank.schema import FeatureSpace
from limerank.typed import validate

RANKERS: Mapping[str, type[Ranker]] = {
    ranker.name: ranker
    for ranker in (
        # two towers
        TTSNRanker,
        IntTowerRanker,
        # target attention
        MHARanker,
        TruncatedMHARanker,
        DINRanker,
        SIMRanker,
        TWINRanker,
        # sequence encoders
        SASRecRanker,
        HSTURanker,
        MambaRanker,
        # linear and low-rank attention
        LinearAttentionRanker,
        PerformerRanker,
        LightningRanker,
        LinformerRanker,
        LREARanker,
        # links
        LimeMHARanker,
        LimeXORRanker,
        LimeHSTURanker,
        PMARanker,
        ISABRanker,
    )
}

__all__ = [
    "RANKERS",
    "FoldedUser",
    "ItemState",
    "Ranker",
    "RankerOptions",
    "UserState",
    "build_ranker",
    "check_model",
    "complete_model",
    "model_section",
]


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
    options = {key: value for key, value in current_names(model).items() if key != "name"}
    return ranker, validate(ranker.options_type, options, f"{where}, model '{name}'", error)


def model_section(options: RankerOptions) -> dict[str, Any]:
    """The model section that stands for a ranker's options: its name, and what was chosen."""
    for name, ranker in RANKERS.items():
        if ranker.options_type is type(options):
            return {"name": name, **options.model_dump(mode="json", exclude_unset=True)}
    raise UsageError(f"{type(options).__name__}: no ranker has these options; known: {', '.join(RANKERS)}")


def complete_model(model: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A model section with every option of its ranker, so that it means the same when defaults change."""
    ranker, options = check_model(model, where)
    return {"name": ranker.name, **options.model_dump(mode="json")}


def build_ranker(
    model: Mapping[str, Any], space: FeatureSpace, tasks: int, where: str, error: type[LimerankError] = UsageError
) -> Ranker:
    """A freshly initialized ranker from its model section."""
    ranker, options = check_model(model, where, error)
    return ranker(space, tasks, options)
