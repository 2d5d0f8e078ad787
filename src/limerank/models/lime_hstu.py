"""LIME-HSTU: the history reads itself causally, then links summarize it; candidates stay decoupled."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor

from limerank.batch import UserInputs
from limerank.models.lime_mha import LimeMHA, LimeMHARanker
from limerank.nn.layers.gated import GATE_START, Output, ProjectionActivation
from limerank.nn.layers.stu import STUStack
from limerank.ops.gathered import Gathered
from limerank.schema import FeatureSpace


class LimeHSTU(LimeMHA):
    """Options of LIME-HSTU."""

    layers: int = Field(default=3, ge=1, description="n, causal STU layers over the history")
    activation: Literal["silu", "softmax"] = Field(default="silu", description="phi of the causal self-attention")
    output: Output = Field(default="gated", description="LN(O) * U, or [U, O, LN(O) * U]")
    uvqk_activation: ProjectionActivation = Field(default="u", description="which of U, V, Q, K pass a SiLU")
    gate_start: float = Field(
        default=GATE_START, description="bias of the gates U at the start: open; 0 is that of HSTU's public code"
    )
    dropout: float = Field(default=0.0, ge=0, lt=1, description="before each layer's output projection")


class LimeHSTURanker(LimeMHARanker):
    """E' = STU_n(... STU_1(E)), causal; L^P = MHA(L^C, E', E') and the candidate stage of LIME-MHA.

    The variant of the paper's latency data. Its user stage is quadratic in the history, as HSTU's; its candidates are
    as cheap as LIME-MHA's, where HSTU's read the whole history in every layer.
    """

    name = "lime-hstu"
    options_type = LimeHSTU
    options: LimeHSTU
    ordered = True

    def __init__(self, space: FeatureSpace, tasks: int, options: LimeHSTU) -> None:
        super().__init__(space, tasks, options)
        self.stack = STUStack(
            options.width,
            options.heads,
            options.layers,
            activation=options.activation,
            output=options.output,
            uvqk_activation=options.uvqk_activation,
            dropout=options.dropout,
        )
        for layer in self.stack.stu_layers():
            layer.open_gates(options.gate_start)
            layer.start_aligned(options.sharpness)

    def history(self, inputs: UserInputs) -> Tensor:
        encoded: Tensor = self.stack(super().history(inputs), inputs.history.offsets)
        return encoded

    def distinct_history(self, inputs: UserInputs) -> Gathered:
        return Gathered(self.history(inputs))
