"""User stages that grow with their history, for the rankers that have one (docs/explanation/user-states.md)."""

from __future__ import annotations

from limerank.errors import ArgumentError
from limerank.models.base import Ranker
from limerank.models.incremental.pools import LinkPoolUser, SeedPoolUser
from limerank.models.incremental.reading import Events, Fetch, IncrementalUser, Reading, bytes_of
from limerank.models.incremental.recurrences import LightningUser, MambaUser
from limerank.models.incremental.rows import GrowingRows
from limerank.models.incremental.sums import OuterSumUser, RandomFeatureUser, RowSumUser
from limerank.models.incremental.xor import StaleXorUser, XorUser
from limerank.models.inttower import IntTowerRanker
from limerank.models.lightning import LightningRanker
from limerank.models.lime_mha import LimeMHARanker
from limerank.models.lime_xor import LimeXORRanker
from limerank.models.linear_attention import LinearAttentionRanker
from limerank.models.mamba import MambaRanker
from limerank.models.performer import PerformerRanker
from limerank.models.pma import PMARanker
from limerank.models.ttsn import TTSNRanker
from limerank.nn.encodings import KEEPS_CACHES
from limerank.ops.dealing import Deal, in_order

__all__ = ["Events", "Fetch", "GrowingRows", "IncrementalUser", "Reading", "bytes_of", "incremental_user"]


def incremental_user(
    ranker: Ranker, stale_budget: float | None = None, deal: Deal = in_order
) -> IncrementalUser | None:
    """A ranker's incremental user stage; None where every event changes everything, so that a history is read again.

    `stale_budget` allows LIME-XOR to be approximate (`models.incremental.xor`): never unless it is given. `deal` does
    parts of long histories where they can be cut; results do not depend on by whom.
    """
    user = _incremental_user(ranker, stale_budget)
    if user is not None:
        user.deal = deal
    return user


def _incremental_user(ranker: Ranker, stale_budget: float | None) -> IncrementalUser | None:
    if stale_budget is not None and not stale_budget > 0:
        raise ArgumentError(f"stale_budget must be more than 0, but is {stale_budget}; None is exact")
    if not KEEPS_CACHES[ranker.options.encoding]:
        return None
    if type(ranker) is LimeXORRanker:  # not a subclass: ISAB's history reads links that have moved already
        return XorUser(ranker) if stale_budget is None else StaleXorUser(ranker, stale_budget)
    if type(ranker) is LimeMHARanker:  # LIME-HSTU's rows depend on the length of the history
        return LinkPoolUser(ranker) if ranker.options.normed else None
    match ranker:
        case PMARanker():
            return SeedPoolUser(ranker)
        case TTSNRanker() | IntTowerRanker():
            return RowSumUser(ranker)
        case LinearAttentionRanker():
            return OuterSumUser(ranker)
        case PerformerRanker():
            return RandomFeatureUser(ranker)
        case LightningRanker():
            return LightningUser(ranker)
        case MambaRanker():
            return MambaUser(ranker)
    return None
