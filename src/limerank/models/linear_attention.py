"""Linear attention: a fixed feature map instead of the softmax, so that the history becomes one small matrix."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional

from limerank.batch import UserInputs
from limerank.models.base import AttentionOptions, UserState
from limerank.models.factorized import FactorizedRanker
from limerank.nn.layers.attention import HeadProjection, start_aligned
from limerank.ops.linear_attention import append_one, divide_by_last, outer_sums
from limerank.schema import FeatureSpace


class LinearAttention(AttentionOptions):
    """Options of linear attention; elu + 1 with a normalizer, as published."""

    feature_map: Literal["elu", "silu"] = Field(default="elu", description="f, per number: elu(x) + 1 or SiLU")
    normalizer: Literal["sum", "events", "none"] = Field(
        default="sum", description="what weights are divided by: their sum, the number of events, or nothing"
    )

    @model_validator(mode="after")
    def _only_positive_features_are_summed(self) -> LinearAttention:
        if self.feature_map == "silu" and self.normalizer == "sum":
            raise ValueError("SiLU features may sum to zero; choose normalizer 'events' or 'none'")
        return self


class LinearAttentionRanker(FactorizedRanker):
    """o_c = f(q_c) sum_j f(k_j) v_j^T / f(q_c) sum_j f(k_j), with q = LN(T) W_Q, k = LN(E) W_K, v = LN(E) W_V.

    The normalizer depends on candidate and user, so the head's first layer cannot be folded across it. Divided by the
    number of events instead, or by nothing, o_c is linear in the row f(q_c).
    """

    name = "linear-attention"
    family = "linear-attention"
    options_type = LinearAttention
    options: LinearAttention

    def __init__(self, space: FeatureSpace, tasks: int, options: LinearAttention) -> None:
        super().__init__(space, tasks, options)
        self.to_queries = HeadProjection(options.width, options.heads, options.query_key_width)
        self.to_keys_values = HeadProjection(options.width, options.heads, options.query_key_width, options.width)
        start_aligned([self.to_queries], [self.to_keys_values], options.sharpness)
        self.foldable = options.normalizer != "sum"

    def row_shape(self) -> tuple[int, int]:
        return self.options.heads, self.options.query_key_width // self.options.heads

    def features(self, rows: Tensor) -> Tensor:
        """f, number by number."""
        return functional.elu(rows) + 1 if self.options.feature_map == "elu" else functional.silu(rows)

    def encode_user(self, inputs: UserInputs) -> UserState:
        offsets = inputs.history.offsets
        keys, values = self.to_keys_values.gathered(self.distinct_history(inputs))
        if self.options.normalizer == "sum":
            values = append_one(values)
        matrices = outer_sums(self.features(keys), values, offsets)
        if self.options.normalizer == "events":
            matrices = matrices / offsets.diff().clamp(min=1)[:, None, None, None]
        context = self.context_tower(inputs.users, inputs.context)
        return UserState((matrices,), self.head.from_user(context))

    def item_rows(self, items: Tensor) -> Tensor:
        (queries,) = self.to_queries(items)
        return self.features(queries).flatten(1)

    def finish(self, mixed: Tensor) -> Tensor:
        return (divide_by_last(mixed) if self.options.normalizer == "sum" else mixed).flatten(1)

    def row_parameters(self) -> list[Tensor]:
        return list(self.to_queries.parameters())
