"""Units of formulas, computed as the formulas are: adding bytes to seconds is an error.

What is counted (items, events, requests, machines, ...) has no dimension of its own; bytes, seconds, hours, days and
cores have. A number that is written in a formula fits whatever it is added to, and multiplies as a plain number.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping

DIMENSIONS = ("byte", "s", "h", "day", "core", "ms", "GB")
Unit = tuple[tuple[str, int], ...]
ANY = None


def unit_of(text: str) -> Unit:
    """`core*s/event` as powers of dimensions."""
    above, *below = text.split("/")
    powers: Counter[str] = Counter(part for part in above.split("*") if part in DIMENSIONS)
    powers.subtract(part for part in below if part in DIMENSIONS)
    return tuple(sorted((name, power) for name, power in powers.items() if power))


def combined(left: Unit, right: Unit, sign: int) -> Unit:
    powers = Counter(dict(left))
    for name, power in right:
        powers[name] += sign * power
    return tuple(sorted((name, power) for name, power in powers.items() if power))


def dimension(node: ast.expr, units: Mapping[str, Unit]) -> Unit | None:
    """The unit of a formula; ANY of a number that is written in it."""
    if isinstance(node, ast.Constant):
        return ANY
    if isinstance(node, ast.Name):
        return units[node.id]
    if isinstance(node, ast.Call):
        assert isinstance(node.func, ast.Name)
        if node.func.id == "width":
            return unit_of("byte")
        return same([dimension(one, units) for one in node.args], ast.unparse(node))
    assert isinstance(node, ast.BinOp)
    left, right = dimension(node.left, units), dimension(node.right, units)
    if isinstance(node.op, ast.Add | ast.Sub):
        return same([left, right], ast.unparse(node))
    return combined(left or (), right or (), 1 if isinstance(node.op, ast.Mult) else -1)


def same(units: list[Unit | None], where: str) -> Unit | None:
    known = {unit for unit in units if unit is not ANY}
    assert len(known) <= 1, f"{where}: {known}"
    return known.pop() if known else ANY
