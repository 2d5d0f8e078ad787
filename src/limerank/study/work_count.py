"""Counted work of anything that runs on torch, and the polynomial in the sizes that it is.

Counted are, per operator that runs:

* matrix products, attention and convolutions: two per multiply-add, by the formulas of `torch.utils.flop_counter`, and
  those of `limerank.ops.cost` for XOR attention, which is one opaque operator to torch;
* operators that look rows up (embedding, gather): one per element of the result; bags: one per element they add up,
  two if they weight it;
* everything else, sums and top-k included: one per element of its largest tensor; views and empty tensors nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

from limerank.ops.cost import pool_cost, spread_cost

LOOKUPS = {"embedding", "index_select", "index", "gather"}
BAGS = {"_embedding_bag", "_embedding_bag_forward_only"}
FREE = {"empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided", "detach", "_local_scalar_dense"}
SUPERSCRIPTS = "⁰¹²³⁴⁵"
ROUNDING = 1e-10  # of the largest count: what solving for coefficients leaves of those that are zero


class WorkCounter(TorchDispatchMode):
    """Counts the work of all operators that run under it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.work = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operator and count it."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        self.work += _work(func, args, kwargs, out)
        return out


def count_work(run: Callable[[], object]) -> int:
    """The work of what `run` does."""
    with WorkCounter() as counter:
        run()
    return int(counter.work)


def _work(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> int:
    name = func.name().split("::")[1].split(".")[0]
    packet = getattr(func, "_overloadpacket", func)
    if name.endswith("_") and func.namespace == "aten":  # in place: the same work as the operator it is named after
        packet = getattr(torch.ops.aten, name.removesuffix("_"), packet)
    if packet in flop_registry:
        return int(flop_registry[packet](*args, **kwargs, out_val=out))
    if name == "_scaled_dot_product_flash_attention_for_cpu":
        return int(sdpa_flop_count(*(tensor.shape for tensor in args[:3])))
    if name in BAGS:
        return int(args[1].numel() * args[0].shape[1] * (1 if len(args) < 7 or args[6] is None else 2))
    if func.namespace == "limerank":
        return _own_work(name, args)
    if func.is_view or name in FREE:
        return 0
    results = sum(tensor.numel() for tensor in tree_leaves(out) if isinstance(tensor, Tensor))
    if name in LOOKUPS:
        return results
    read = (tensor.numel() for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, Tensor))
    return max(results, *read, 0)


def _own_work(name: str, args: tuple[Any, ...]) -> int:
    if name not in ("xor_pool", "xor_spread"):
        raise TypeError(f"limerank::{name} is opaque to torch: its work must be counted here")
    queries, keys, values = args[:3]
    users, links = (queries if name == "xor_pool" else keys).shape[:2]
    history = (keys if name == "xor_pool" else queries).shape[0]
    cost = pool_cost if name == "xor_pool" else spread_cost
    widths = {"width": math.prod(queries.shape[-2:]), "value_width": math.prod(values.shape[-2:])}
    return cost(history=history, links=links, users=users, **widths).flops


@dataclass(frozen=True)
class Polynomial:
    """A sum of `coefficients[exponents] * sizes ** exponents`; `letters` name the sizes."""

    letters: tuple[str, ...]
    coefficients: Mapping[tuple[int, ...], float]

    def __call__(self, sizes: Mapping[str, int]) -> float:
        """Its value."""
        return sum(coefficient * self._power(sizes, e) for e, coefficient in self.coefficients.items())

    def term(self, exponents: tuple[int, ...], sizes: Mapping[str, int]) -> float:
        """The value of one term."""
        return self.coefficients[exponents] * self._power(sizes, exponents)

    def leading(self, smaller: str, larger: str, *where: Mapping[str, int], least_fraction: float = 5e-3) -> str:
        """The terms that no other bounds, without their coefficients, such as `N·d² + N·l·d`.

        `smaller` is at most `larger`, as l is at most N: then l^c N^a is bounded by l^c' N^a' if a <= a' and
        a + c <= a' + c'. Terms that are less than `least_fraction` of the value at any of the sizes `where` are left
        out before: they are traces of blocks and paddings.
        """
        small, big = self.letters.index(smaller), self.letters.index(larger)
        terms = list(self.coefficients)
        for sizes in where:
            least = least_fraction * self(sizes)
            terms = [e for e in terms if self.coefficients[e] * self._power(sizes, e) > least]

        def ranks(exponents: tuple[int, ...]) -> list[int]:
            return [e + exponents[big] if letter == small else e for letter, e in enumerate(exponents)]

        def bounded(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
            return one != other and all(a <= b for a, b in zip(ranks(one), ranks(other), strict=True))

        kept = [one for one in terms if not any(bounded(one, other) for other in terms)]
        return " + ".join(self._written(exponents) for exponents in sorted(kept, reverse=True)) or "0"

    def _power(self, sizes: Mapping[str, int], exponents: tuple[int, ...]) -> float:
        return float(math.prod(sizes[x] ** e for x, e in zip(self.letters, exponents, strict=True)))

    def _written(self, exponents: tuple[int, ...]) -> str:
        factors = (x if e == 1 else f"{x}{SUPERSCRIPTS[e]}" for x, e in zip(self.letters, exponents, strict=True) if e)
        return "·".join(factors) or "1"


def fit_polynomial(counted: Callable[[Mapping[str, int]], float], grid: Mapping[str, Sequence[int]]) -> Polynomial:
    """The polynomial through the counts on a grid; its degree in each size is one less than the sizes given for it."""
    letters = tuple(grid)
    values = np.empty([len(sizes) for sizes in grid.values()])
    for reverse in np.ndindex(*values.shape[::-1]):  # the first size changes fastest
        point = reverse[::-1]
        values[point] = counted({x: grid[x][i] for x, i in zip(letters, point, strict=True)})
    # one size after the other, in units of its largest value: then the matrices are well-conditioned
    largest = np.abs(values).max()
    for axis, sizes in enumerate(grid.values()):
        inverse = np.linalg.inv(np.vander(np.array(sizes) / max(sizes), increasing=True))
        values = np.moveaxis(np.tensordot(inverse, values, axes=(1, axis)), 0, axis)
    units = [max(sizes) for sizes in grid.values()]
    found = {
        exponents: float(values[exponents]) / math.prod(u**e for u, e in zip(units, exponents, strict=True))
        for exponents in product(*(range(length) for length in values.shape))
        if abs(values[exponents]) > ROUNDING * largest
    }
    return Polynomial(letters, found)
