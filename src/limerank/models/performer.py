"""Performer: linear attention whose random features estimate the softmax kernel without bias."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from limerank.batch import UserInputs
from limerank.models.base import AttentionOptions, UserState
from limerank.models.factorized import FactorizedRanker
from limerank.nn.layers.attention import HeadProjection, start_aligned
from limerank.nn.layers.random_features import RandomFeatures
from limerank.ops.linear_attention import append_one, divide_by_last, outer_sums
from limerank.schema import FeatureSpace


class Performer(AttentionOptions):
    """Options of Performer; as many features per head as LIME has links."""

    rank: int = Field(default=32, ge=1, description="r, what a history is compressed to")
    redraw: int = Field(
        default=0, ge=0, description="draw new features every so many training steps; 0: never, cached rows stay valid"
    )


class PerformerRanker(FactorizedRanker):
    """o_c = f(q_c) sum_j f(k_j) v_j^T / f(q_c) sum_j f(k_j), f as in `limerank.nn.layers.random_features`.

    A cached row f(q_c) belongs to one draw: a redraw changes the row of every item, so it is off unless asked for, and
    never happens outside training.
    """

    name = "performer"
    family = "linear-attention"
    options_type = Performer
    foldable = False
    options: Performer

    def __init__(self, space: FeatureSpace, tasks: int, options: Performer) -> None:
        super().__init__(space, tasks, options)
        self.to_queries = HeadProjection(options.width, options.heads, options.query_key_width)
        self.to_keys_values = HeadProjection(options.width, options.heads, options.query_key_width, options.width)
        start_aligned([self.to_queries], [self.to_keys_values], options.sharpness)
        self.random_features = RandomFeatures(options.rank, options.query_key_width // options.heads)
        self.steps = 0

    def row_shape(self) -> tuple[int, int]:
        return self.options.heads, self.options.rank

    def encode_user(self, inputs: UserInputs) -> UserState:
        if self.training:
            self._count_step()
        offsets = inputs.history.offsets
        keys, values = self.to_keys_values.gathered(self.distinct_history(inputs))
        matrices = outer_sums(self.random_features.of_keys(keys, offsets), append_one(values), offsets)
        context = self.context_tower(inputs.users, inputs.context)
        return UserState((matrices,), self.head.from_user(context))

    def resume_at(self, step: int) -> None:
        self.steps = step

    def _count_step(self) -> None:
        """The user stage is the first of a step, so both sides of a step see the same draw."""
        self.steps += 1
        if self.options.redraw and self.steps % self.options.redraw == 0:
            self.random_features.redraw()

    def item_rows(self, items: Tensor) -> Tensor:
        (queries,) = self.to_queries(items)
        return self.random_features.of_queries(queries).flatten(1)

    def finish(self, mixed: Tensor) -> Tensor:
        return divide_by_last(mixed).flatten(1)

    def row_parameters(self) -> list[Tensor]:
        return [*self.to_queries.parameters(), self.random_features.directions]
