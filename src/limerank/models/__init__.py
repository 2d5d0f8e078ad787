"""The rankers, one file each, and the registry that finds them by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from limerank.config import validate
from limerank.errors import LimerankError, UsageError, did_you_mean
from limerank.models.base import FoldedUser, ItemState, Ranker, RankerOptions, UserState
from limerank.models.din import DIN
from limerank.models.hstu import HSTU
from limerank.models.inttower import IntTower
from limerank.models.isab import ISAB
from limerank.models.lightning import Lightning
from limerank.models.lime_hstu import LimeHSTU
from limerank.models.lime_mha import LimeMHA
from limerank.models.lime_xor import LimeXOR
from limerank.models.linear_attention import LinearAttention
from limerank.models.linformer import Linformer
from limerank.models.lrea import LREA
from limerank.models.mamba import Mamba
from limerank.models.mha import MHA
from limerank.models.performer import Performer
from limerank.models.pma import PMA
from limerank.models.sasrec import SASRec
from limerank.models.sim import SIM
from limerank.models.truncated_mha import TruncatedMHA
from limerank.models.ttsn import TTSN
from limerank.models.twin import TWIN
from limerank.schema import FeatureSpace

RANKERS: Mapping[str, type[Ranker]] = {
    ranker.name: ranker
    for ranker in (
        # two towers
        TTSN,
        IntTower,
        # target attention
        MHA,
        TruncatedMHA,
        DIN,
        SIM,
        TWIN,
        # sequence encoders
        SASRec,
        HSTU,
        Mamba,
        # linear and low-rank attention
        LinearAttention,
        Performer,
        Lightning,
        Linformer,
        LREA,
        # links
        LimeMHA,
        LimeXOR,
        LimeHSTU,
        PMA,
        ISAB,
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
