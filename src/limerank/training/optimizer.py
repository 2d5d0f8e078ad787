"""Adam for the dense parts, and for embedding tables an Adam that touches only the rows that a step used.

A table has a row per item, user or value, a batch uses a few thousand of them. With `embedding_updates: sparse` the
gradient of a table names the rows it is for (`FeatureEmbedding.sparse_gradients`), and `RowAdam` reads and writes
those rows alone: a step costs what its batch costs, whatever the vocabulary. Rows that a step did not use keep weight
and moments ("lazy" Adam, `torch.optim.SparseAdam`); plain Adam would go on moving them by their momentum. With
`embedding_updates: dense` it does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from limerank.config import TrainConfig
from limerank.models import Ranker
from limerank.nn.features import FeatureEmbedding

BETAS = (0.9, 0.999)
EPSILON = 1e-8
FUSED_DEVICES = ("cpu", "cuda")


class RowAdam(torch.optim.Optimizer):
    """Adam on the rows of a table [rows, width] whose gradient is not zero; sparse and dense gradients alike.

    L2 (`weight_decay`) is added to the gradient of those rows. Moments are corrected by the number of all steps, as
    `torch.optim.SparseAdam` does; if every step touches every row, this is Adam.
    """

    def __init__(self, tables: Iterable[nn.Parameter], lr: float, weight_decay: float = 0.0) -> None:
        super().__init__(tables, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update the rows that have a gradient."""
        for group in self.param_groups:
            for table in group["params"]:
                if table.grad is not None:
                    self._update(table, table.grad, group["lr"], group["weight_decay"])

    def _update(self, table: Tensor, gradient: Tensor, rate: float, decay: float) -> None:
        state = self.state[table]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["exp_avg"] = torch.zeros_like(table, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(table, memory_format=torch.preserve_format)
        state["step"] += 1
        rows, gradient = touched_rows(gradient)
        weight = table.index_select(0, rows)
        if decay:
            gradient = gradient.add(weight, alpha=decay)
        mean = state["exp_avg"].index_select(0, rows).lerp_(gradient, 1 - BETAS[0])
        square = state["exp_avg_sq"].index_select(0, rows).mul_(BETAS[1])
        square.addcmul_(gradient, gradient, value=1 - BETAS[1])
        state["exp_avg"].index_copy_(0, rows, mean)
        state["exp_avg_sq"].index_copy_(0, rows, square)
        steps = int(state["step"])
        correction = math.sqrt(1 - BETAS[1] ** steps)
        weight.addcdiv_(mean, square.sqrt_().div_(correction).add_(EPSILON), value=-rate / (1 - BETAS[0] ** steps))
        table.index_copy_(0, rows, weight)


def touched_rows(gradient: Tensor) -> tuple[Tensor, Tensor]:
    """The numbers of the rows whose gradient is not zero, and their gradients [rows, width]."""
    if not gradient.is_sparse:
        rows = gradient.any(1).nonzero().squeeze(1)
        return rows, gradient.index_select(0, rows)
    rows, summed = gradient._indices().squeeze(0), gradient._values()
    if not gradient.is_coalesced():  # a single row always is, and it may be zero as well
        rows, position = torch.unique(rows, return_inverse=True)
        summed = summed.new_zeros(len(rows), summed.shape[1]).index_add_(0, position, summed)
    touched = summed.any(1)
    return (rows, summed) if bool(touched.all()) else (rows[touched], summed[touched])


class Optimizer:
    """The optimizers of a ranker's dense parts and of its tables, stepped, scheduled and saved as one."""

    def __init__(self, ranker: Ranker, config: TrainConfig) -> None:
        embeddings = [module for module in ranker.modules() if isinstance(module, FeatureEmbedding)]
        tables = [embedding.table for embedding in embeddings]
        of_tables = {id(table) for table in tables}
        dense = [parameter for parameter in ranker.parameters() if id(parameter) not in of_tables]
        sparse = config.embedding_updates == "sparse"
        for embedding in embeddings:
            embedding.sparse_gradients = sparse
        rate, decay = config.rate_of_embeddings, config.weight_decay_of_embeddings
        adam: Any = RowAdam if sparse else _adam
        self.parts: dict[str, torch.optim.Optimizer] = {
            "dense": _adam(dense, lr=config.learning_rate, weight_decay=config.weight_decay),
            "tables": adam(tables, lr=rate, weight_decay=decay),
        }
        self.largest_rates = {"dense": config.learning_rate, "tables": rate}
        self.sparse = sparse

    def parameters_of(self, part: str) -> list[nn.Parameter]:
        """Those of the `dense` parts, or of the `tables`."""
        return [parameter for group in self.parts[part].param_groups for parameter in group["params"]]

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All that is learned."""
        return [parameter for part in self.parts for parameter in self.parameters_of(part)]

    def zero_grad(self) -> None:
        """Forget the last gradients."""
        for part in self.parts.values():
            part.zero_grad(set_to_none=True)

    def step(self, factor: float, scaler: torch.amp.GradScaler | None = None) -> None:
        """Update everything, with this fraction of the largest learning rates; fp16's scaler may skip a step."""
        for name, part in self.parts.items():
            for group in part.param_groups:
                group["lr"] = factor * self.largest_rates[name]
            part.step() if scaler is None else scaler.step(part)
        if scaler is not None:
            scaler.update()

    def clip(self, most: float, whole_norm: Callable[[nn.Parameter, Tensor], Tensor] | None = None) -> Tensor:
        """Scale all gradients down so that their common norm is at most this; returns the norm they had.

        Where other processes hold rows of tables, `whole_norm` knows the norm of a parameter's gradient from that here.
        """
        learned = [parameter for parameter in self.parameters if parameter.grad is not None]
        values = [_summed_in_place(parameter) for parameter in learned]
        norms = [torch.linalg.vector_norm(one) for one in values]
        if whole_norm is not None:
            norms = [whole_norm(parameter, norm) for parameter, norm in zip(learned, norms, strict=True)]
        norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
        scale = (most / (norm + EPSILON)).clamp(max=1.0)
        for one in values:
            one.mul_(scale)
        return norm

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The state, by names that say whose it is."""
        for name, part in self.parts.items():
            for number, state in part.state_dict()["state"].items():
                for key, value in state.items():
                    yield f"{name}.{number}.{key}", value

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Go on from a state that `tensors` gave."""
        for name, part in self.parts.items():
            state: dict[int, dict[str, Tensor]] = {}
            for key, value in tensors.items():
                whose, number, what = key.split(".")
                if whose == name:
                    state.setdefault(int(number), {})[what] = value
            part.load_state_dict({"state": state, "param_groups": part.state_dict()["param_groups"]})


def learning_rate_factor(step: int, steps: int, config: TrainConfig) -> float:
    """Linear warm-up, then linear decay to the final fraction."""
    warmup = config.warmup_fraction * steps
    decayed = 1 - (1 - config.final_learning_rate_fraction) * step / steps
    return min((step + 1) / (warmup + 1), decayed)


def _adam(parameters: list[nn.Parameter], lr: float, weight_decay: float) -> torch.optim.Optimizer:
    fused = all(parameter.device.type in FUSED_DEVICES for parameter in parameters)
    return torch.optim.Adam(parameters, lr=lr, betas=BETAS, eps=EPSILON, weight_decay=weight_decay, fused=fused)


def _summed_in_place(parameter: nn.Parameter) -> Tensor:
    """The numbers of a gradient; a sparse one holds each row once from now on, so that its norm is that of the sum."""
    gradient = parameter.grad
    assert gradient is not None
    if not gradient.is_sparse:
        return gradient
    rows, values = touched_rows(gradient)
    parameter.grad = torch.sparse_coo_tensor(
        rows[None], values, gradient.shape, check_invariants=False, is_coalesced=True
    )
    return values
