"""How far a logit from integer rows may be from the fp32 logit of the stored rows: a proof, per candidate.

In levels (`rows.py`), with `M = diag(step) G` rounded to `A diag(scale)`, a first layer is off by

    dz = f M + (q - mean) E + f_p diag(step_p),     E = M - A diag(scale)

(`mean E` is known and corrected). A ReLU turns a difference dz_k into a_k dz_k with a_k in [0, 1], so
the logit is off by `dz . c` for some c in a box that follows from the later layers alone: for one layer v the box
between 0 and v_k. By Cauchy-Schwarz then

    |f M c| <= |f| max_c |M c|,    |(q - mean) E c| <= |q - mean| max_c |E c|,    |f_p diag(step_p) c| <= ...

Norms are stored per item, maxima are computed once per request. Nothing is assumed about rounding
errors being random. The rounding of both fp32 computations is bounded in the usual way and added.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

UNIT = 2.0**-24
"""Half a unit in the last place of fp32."""
SQUARINGS = 1
SQUARED = 1.002
"""More than rounding can take from an eigenvalue in `SQUARINGS` squarings of a matrix of some hundred rows."""
VANISHING = 2e-19
"""The root of more than what fp32 may lose of a square: a number below it has none."""


def gamma(terms: int) -> float:
    """Relative rounding error of a sum of so many products in fp32, in any order."""
    return terms * UNIT / (1 - terms * UNIT) if terms * UNIT < 0.5 else float("inf")


@dataclass(frozen=True)
class LaterBound:
    """What the head's layers behind the first can make of a change of the first; the same for all requests.

    All vectors are [hidden] in fp64. A change dz reaches the task's logit as dz . c with c in the box
    `middle` - `half` to `middle` + `half`.
    """

    middle: Tensor
    half: Tensor
    absolute: Tensor
    """|W_n| ... |W_2| of the task: how far an error reaches if all signs agree"""
    relative: float
    """rounding of all layers, of both computations, relative to what they add up"""
    on_size: Tensor
    constant: float
    """rounding error of the logit: `on_size` times the first layer's size, plus `constant`"""
    reach: Tensor
    reach_constant: Tensor
    """size of all tasks' logits: `reach` [tasks, hidden] times the first layer's size, plus `reach_constant` [tasks]"""

    @classmethod
    def of(cls, layers: Sequence[tuple[Tensor, Tensor]], task: int) -> LaterBound:
        """From weight [out, in] and bias [out] of each layer."""
        wide = [(weight.detach().double(), bias.detach().double()) for weight, bias in layers]
        above, below = wide[-1][0][task].clamp(min=0), (-wide[-1][0][task]).clamp(min=0)
        for weight, _ in reversed(wide[:-1]):
            up, down = weight.clamp(min=0), (-weight).clamp(min=0)
            above, below = above @ up + below @ down, above @ down + below @ up
        hidden = wide[0][0].shape[1]
        # affine in the first layer's size: [out, hidden + 1], the last column what biases add
        size = torch.eye(hidden, hidden + 1, dtype=torch.float64)
        rounding, absolute, relative = torch.zeros_like(size), size[:, :-1], 0.0
        for weight, bias in wide:
            own = 2 * gamma(weight.shape[1] + 2)
            size = weight.abs() @ size
            size[:, -1] += bias.abs()
            rounding = weight.abs() @ rounding + own * size
            absolute = weight.abs() @ absolute
            relative += own
        return cls(
            middle=(above - below) / 2,
            half=(above + below) / 2,
            absolute=absolute[task],
            relative=relative,
            on_size=rounding[task, :-1],
            constant=float(rounding[task, -1]),
            reach=size[:, :-1],
            reach_constant=size[:, -1],
        )

    @property
    def farthest(self) -> Tensor:
        """The largest absolute multiplier of each output, with what later layers round."""
        return self.middle.abs() + self.half + self.relative * self.absolute

    def largest_norms(self, matrices: Tensor, norms: Tensor) -> Tensor:
        """For each of some matrices [n, rows, hidden] in fp32 at least the largest |matrix c| of any c in the box.

        `norms` [n, hidden] in fp64 are those of their columns, to fp32's rounding, which the caller allows for.

        c is the box's middle plus half its width times some d in [-1, 1]. With B = matrix diag(half), whose columns
        have norms b, and C = B'B without them (a correlation), |B d|^2 = (b d)' C (b d) is at most |b|^2 times the
        largest eigenvalue of C, which is that of the columns' products or of the rows'.
        """
        unit = matrices * norms.reciprocal().float()[:, None]
        rows, hidden = unit.shape[1:]
        correlated = torch.bmm(unit.mT, unit) if hidden <= rows else torch.bmm(unit, unit.mT)
        rounding = gamma(hidden + rows + 4) * hidden
        largest = (_largest_eigenvalues(correlated) + rounding) * (norms * self.half).square_().sum(1)
        own_rounding = norms @ (self.relative * self.absolute + gamma(hidden + 4) * self.middle.abs())
        of_middle = torch.linalg.vector_norm(matrices @ self.middle.float(), dim=1)
        found: Tensor = of_middle.double() + largest.sqrt_() + own_rounding
        return found


def column_norms(matrices: Tensor) -> Tensor:
    """At least the norms [..., columns] of columns, in fp64; several times faster than torch's own across rows."""
    norms: Tensor = (matrices * matrices).sum(-2).sqrt_().double()
    return norms + VANISHING * math.sqrt(max(matrices.shape[-2], 1))


def _largest_eigenvalues(squares: Tensor) -> Tensor:
    """At least the largest eigenvalue of each symmetric, positive [n, h, h]: the size of a power, to that root."""
    found: Tensor = torch.ones(len(squares), dtype=torch.float64)
    power, root = squares, 1.0
    for _ in range(SQUARINGS):
        size = torch.linalg.vector_norm(power, dim=(1, 2)).clamp(min=UNIT)
        found *= size.double() ** root
        power, root = power * size.reciprocal()[:, None, None], root / 2
        power = torch.bmm(power, power)
    last: Tensor = torch.linalg.vector_norm(power, dim=(1, 2)).double()
    found *= last**root * SQUARED
    return found
