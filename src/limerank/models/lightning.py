"""Lightning: decayed causal linear attention over the history; a candidate reads the last layer's final state."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from limerank.batch import UserInputs
from limerank.models.base import AttentionOptions, UserState
from limerank.models.factorized import FactorizedRanker
from limerank.nn.layers.attention import HeadProjection, RMSNorm, start_aligned
from limerank.nn.layers.decayed_attention import DecayedAttention, decay_rates
from limerank.ops.linear_attention import decayed_sums
from limerank.schema import FeatureSpace


class Lightning(AttentionOptions):
    """Options of Lightning; the published decay, as many layers as the other stacks."""

    layers: int = Field(default=3, ge=1, description="n, layers over the history")
    decay: float = Field(default=8.0, ge=0, description="head h of layer i forgets at rate decay h/H (1 - i/n)")


class LightningRanker(FactorizedRanker):
    """x^0 = E, n - 1 layers of `nn.layers.decayed_attention`, then o_c = RMSNorm([SiLU(LN(T_c) W_Q)_h S_(N,h)]_h).

    S_N = sum_j lambda_h^(N - j) SiLU(k_j) SiLU(v_j)^T is the final state of layer n, of which nothing else is computed.
    The norm divides by something that depends on candidate and user: not foldable.
    """

    name = "lightning"
    family = "linear-attention"
    options_type = Lightning
    foldable = False
    ordered = True
    options: Lightning
    rates: Tensor

    def __init__(self, space: FeatureSpace, tasks: int, options: Lightning) -> None:
        super().__init__(space, tasks, options)
        width, heads, layers = options.width, options.heads, options.layers
        *earlier, last = (decay_rates(heads, layer, layers, options.decay) for layer in range(layers))
        self.layers = nn.ModuleList(
            DecayedAttention(width, heads, options.query_key_width, rates, options.sharpness) for rates in earlier
        )
        self.register_buffer("rates", last, persistent=False)
        self.to_queries = HeadProjection(width, heads, options.query_key_width)
        self.to_keys_values = HeadProjection(width, heads, options.query_key_width, width)
        start_aligned([self.to_queries], [self.to_keys_values], options.sharpness)
        self.norm = RMSNorm(width)

    def row_shape(self) -> tuple[int, int]:
        return self.options.heads, self.options.query_key_width // self.options.heads

    def encode_user(self, inputs: UserInputs) -> UserState:
        rows, offsets = self.history(inputs), inputs.history.offsets
        for layer in self.layers:
            rows = layer(rows, offsets)
        context = self.context_tower(inputs.users, inputs.context)
        return UserState((self.state_after(rows, offsets),), self.head.from_user(context))

    def state_after(self, rows: Tensor, offsets: Tensor) -> Tensor:
        """S_N [B, H, a, v] of the last layer, from histories [sum_n, d] after the others."""
        keys, values = (functional.silu(part) for part in self.to_keys_values(rows))
        return decayed_sums(keys, values, self.rates, offsets)

    def decayed_layers(self) -> list[DecayedAttention]:
        """The layers before the last, by their type."""
        return [layer for layer in self.layers if isinstance(layer, DecayedAttention)]

    def item_rows(self, items: Tensor) -> Tensor:
        (queries,) = self.to_queries(items)
        return functional.silu(queries).flatten(1)

    def finish(self, mixed: Tensor) -> Tensor:
        normalized: Tensor = self.norm(mixed.flatten(1))
        return normalized

    def row_parameters(self) -> list[Tensor]:
        return list(self.to_queries.parameters())
