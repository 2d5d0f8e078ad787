"""HSTU skyline: causal gated layers over the history with every candidate appended, served by a prefilled history."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator
from torch import Tensor

from limerank.batch import UserInputs
from limerank.models.base import ItemState, Ranker, RankerOptions, UserState
from limerank.nn.layers.gated import GATE_START, Output, ProjectionActivation
from limerank.nn.layers.stu import OutputNorm, STUStack
from limerank.nn.relative_bias import TIMED_BIASES, EventTimes, RelativeBias
from limerank.ops.causal_attention import Activation
from limerank.schema import FeatureSpace


class HSTU(RankerOptions):
    """Options of HSTU; three layers, as in the paper's comparison."""

    heads: int = Field(default=4, ge=1, description="H, attention heads")
    layers: int = Field(default=3, ge=1, description="STU layers")
    query_width: int | None = Field(
        default=None, ge=1, description="width of queries and keys, all heads together; default: width"
    )
    sharpness: float | None = Field(
        default=3.0, gt=0, description="scale of queries at a start aligned with the keys; null: Xavier projections"
    )
    gate_start: float = Field(
        default=GATE_START, description="bias of the gates U at the start: open; 0 is that of HSTU's public code"
    )
    dropout: float = Field(default=0.0, ge=0, lt=1, description="before each layer's output projection")
    activation: Activation = Field(default="silu", description="of attention scores; SiLU is divided by N + 1")
    scale: float | None = Field(
        default=None, gt=0, description="of the scores; default 1 / sqrt(width of a head), 1 is the research code's"
    )
    relative_bias: RelativeBias = Field(
        default="none", description="learned numbers added to scores, by distance in positions, in time, or both"
    )
    output: Output = Field(default="gated", description="gated: LN(O) * U; concat: [U, O, LN(O) * U]")
    output_norm: OutputNorm = Field(
        default="layer", description="LN of what was read: of all heads together, group: of each head; none: no norm"
    )
    uvqk_activation: ProjectionActivation = Field(default="u", description="SiLU on U only, or on all projections")
    readout: Literal["residual", "sum"] = Field(
        default="residual", description="the candidate's last row, or what the layers added to it"
    )

    @model_validator(mode="after")
    def _heads_divide_widths(self) -> HSTU:
        for name, width in (("width", self.width), ("query_width", self.query_width or self.width)):
            if width % self.heads:
                raise ValueError(f"{name} {width} cannot be split into {self.heads} heads")
        return self


class HSTURanker(Ranker):
    """o_c = the row of T_c after n STU layers on [E; T], under the target-aware causal mask.

    The user stage leaves keys and values of every layer; a candidate passes all layers over them. An empty history
    leaves a candidate with itself to read. To a relative bias every candidate stands behind the last event, at the time
    of the request.
    """

    name = "hstu"
    family = "sequence"
    options_type = HSTU
    ordered = True
    options: HSTU

    def __init__(self, space: FeatureSpace, tasks: int, options: HSTU) -> None:
        super().__init__(space, tasks, options)
        self.stack = STUStack(
            options.width,
            options.heads,
            options.layers,
            activation=options.activation,
            output=options.output,
            output_norm=options.output_norm,
            uvqk_activation=options.uvqk_activation,
            scale=options.scale,
            query_width=options.query_width,
            relative_bias=options.relative_bias,
            positions=options.positions,
            dropout=options.dropout,
        )
        for layer in self.stack.stu_layers():
            layer.open_gates(options.gate_start)
            layer.start_aligned(options.sharpness)

    @property
    def needs_times(self) -> bool:
        return self.options.relative_bias in TIMED_BIASES or super().needs_times

    @property
    def reads_now(self) -> bool:
        return self.options.relative_bias in TIMED_BIASES or super().reads_now

    def encode_user(self, inputs: UserInputs) -> UserState:
        events, requests = inputs.history.times, inputs.times
        times = None if events is None or requests is None else EventTimes(events, requests)
        memory = self.stack.prefill(self.history(inputs), inputs.history.offsets, times)
        context = self.context_tower(inputs.users, inputs.context)
        flat = tuple(tensor for keys_values in memory for tensor in keys_values)
        return UserState(flat, self.head.from_user(context), inputs.history.offsets)

    def item_rows(self, items: Tensor) -> Tensor:
        return items

    def interact(self, user: UserState, items: ItemState, candidate_offsets: Tensor) -> Tensor:
        assert user.offsets is not None
        memory = tuple(zip(user.memory[::2], user.memory[1::2], strict=True))
        after = self.stack.append(items.rows, candidate_offsets, memory, user.offsets)
        return after if self.options.readout == "residual" else after - items.rows
