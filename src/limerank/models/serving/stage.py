"""The user stage of one request, prepared once from a ranker; without a form of its own a ranker is asked itself."""

from __future__ import annotations

import torch
from torch import Tensor

from limerank.batch import Features, UserInputs
from limerank.models.base import Ranker, UserState
from limerank.models.lime import LimeRanker
from limerank.models.lime_mha import LimeMHARanker
from limerank.models.lime_xor import LimeXORRanker
from limerank.models.mha import MHARanker
from limerank.models.serving.context import RequestContext
from limerank.models.serving.events import BYTES_ALLOWED, EventTable
from limerank.models.serving.lime import LimePart, PooledLinks, RefinedLinks
from limerank.models.serving.tower import with_tabled_tower
from limerank.ops.dealing import Deal, in_order


class UserStage:
    """`encode_user` of a ranker for one request at a time, with E from a table; no gradients.

    Histories name their items by rows of `items`: `inputs.history.items is items`, and `item_of_event` are the rows.
    Other inputs are handed to the ranker as they are.
    """

    def __init__(self, ranker: Ranker, items: Features, bytes_allowed: int = BYTES_ALLOWED) -> None:
        self.items = items
        self.ranker = with_tabled_tower(ranker, items, bytes_allowed)

    def __call__(self, inputs: UserInputs) -> UserState:
        """What `ranker.encode_user` leaves behind, to rounding."""
        if torch.is_grad_enabled():
            with torch.no_grad():
                return self(inputs)
        if inputs.history.items is not self.items or len(inputs) != 1:
            return self.ranker.encode_user(inputs)
        return self.encode(inputs)

    def encode(self, inputs: UserInputs) -> UserState:
        """The state of one request whose history is named by rows."""
        return self.ranker.encode_user(inputs)

    def history(self, item_rows: Tensor, events: Tensor) -> Tensor:
        """E [n, d] of events by item row [n] and encoded event features [n, features], before any encoding."""
        table: EventTable = self.ranker.item_tower.table  # type: ignore[assignment]
        return table(item_rows, events)


class LimeStage(UserStage):
    """Links, context and link values with few calls; how links are personalized is what its parts differ in."""

    def __init__(self, ranker: LimeRanker, items: Features, bytes_allowed: int, deal: Deal) -> None:
        super().__init__(ranker, items, bytes_allowed)
        kinds: list[tuple[type[LimeRanker], type[LimePart]]] = [
            (LimeMHARanker, PooledLinks),
            (LimeXORRanker, RefinedLinks),
        ]
        served = self.ranker
        assert isinstance(served, LimeRanker)
        form = next((form for kind, form in kinds if isinstance(ranker, kind)), LimePart)
        self.part = form(served, items, bytes_allowed, deal)

    def encode(self, inputs: UserInputs) -> UserState:
        """Equations `link_ctx` and `link-personalization`, and the values that candidates read."""
        return self.part.encode(inputs)


class MHAStage(UserStage):
    """Keys and values of events from a table: nothing of the history is left to compute."""

    def __init__(self, ranker: MHARanker, items: Features, bytes_allowed: int) -> None:
        super().__init__(ranker, items, bytes_allowed)
        self.recency = ranker.recency
        self.projection = ranker.to_keys_values
        self.context = RequestContext(ranker.context_tower, ranker.head.from_user)
        self.table = None
        if ranker.encoding is None:
            self.table = EventTable(ranker.item_tower, items, self.projection.together, bytes_allowed)

    def encode(self, inputs: UserInputs) -> UserState:
        """Keys and values [n, H, .] of the history, and the user's head part."""
        history = inputs.history
        found = None if self.table is None else self.table.find(history.item_of_event, history.events.indices)
        if found is None:
            return super().encode(inputs)
        vectors, slots = found
        memory = self.projection.apart(vectors.index_select(0, slots))
        if self.recency is not None:
            memory = (*memory, self.recency(history.times, history.offsets))
        (head_part,) = self.context.parts(self.context(inputs))
        return UserState(memory, head_part, history.offsets)


def prepare_user_stage(
    ranker: Ranker, items: Features, bytes_allowed: int = BYTES_ALLOWED, deal: Deal = in_order
) -> UserStage:
    """The user stage of a ranker in evaluation mode, for a catalog; weights that change later are not followed.

    `deal` does parts of a long history where LIME-MHA and LIME-XOR can cut it; the result does not depend on by whom.
    """
    if isinstance(ranker, LimeRanker):
        return LimeStage(ranker, items, bytes_allowed, deal)
    if type(ranker) is MHARanker:  # a subclass may read another history
        return MHAStage(ranker, items, bytes_allowed)
    return UserStage(ranker, items, bytes_allowed)
