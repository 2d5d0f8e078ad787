"""Formulas that are shown as they are computed: the text is what is evaluated, and it is all there is.

A formula is arithmetic over names: `+ - * /`, and `ceil`, `min`, `max`, `width`. Nothing else can be written in one,
so a sheet of them can be printed, checked by hand, and computed again by somebody else.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from functools import cache

from pydantic import BaseModel

from limerank.errors import ArgumentError


def width(largest: float) -> float:
    """Bytes of the narrowest unsigned integer that holds 0 to `largest`: 1, 2, 4 or 8."""
    return next((float(size) for size in (1, 2, 4) if largest < 256**size), 8.0)


FUNCTIONS: Mapping[str, Callable[..., float]] = {"ceil": math.ceil, "min": min, "max": max, "width": width}
OPERATORS: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
}


class Quantity(BaseModel):
    """A number that is given, with what it counts and what it means."""

    value: float
    unit: str
    about: str = ""


class Figure(BaseModel):
    """A number that was computed: by which formula, from which inputs."""

    name: str
    unit: str
    formula: str
    inputs: dict[str, float]
    value: float


@cache
def parsed(formula: str) -> ast.expr:
    """The tree of a formula; what is no arithmetic over names is refused."""
    try:
        tree = ast.parse(formula, mode="eval").body
    except SyntaxError:
        raise ArgumentError(f"formula '{formula}': is no arithmetic") from None
    for node in ast.walk(tree):
        known = isinstance(node, (ast.BinOp, ast.Name, ast.Load, ast.Call)) or type(node) in OPERATORS
        if not known and not (isinstance(node, ast.Constant) and type(node.value) in (int, float)):
            raise ArgumentError(f"formula '{formula}': '{ast.unparse(node)}' cannot stand in one")
        if isinstance(node, ast.Call) and not (
            isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS and not node.keywords
        ):
            raise ArgumentError(f"formula '{formula}': no function '{ast.unparse(node.func)}'")
    return tree


def names_in(formula: str) -> list[str]:
    """The names of numbers that a formula reads, in order, each once."""
    tree = parsed(formula)
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    read = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in called]
    return list(dict.fromkeys(node.id for node in sorted(read, key=lambda node: node.col_offset)))


def evaluate(formula: str, values: Mapping[str, float]) -> float:
    """The value of a formula; a name that has none, or a division by zero, is an error that names the formula."""

    def value(node: ast.expr) -> float:
        if isinstance(node, ast.Constant):
            return float(node.value)  # type: ignore[arg-type]
        if isinstance(node, ast.Name):
            if node.id not in values:
                raise ArgumentError(f"formula '{formula}': '{node.id}' has no value")
            return values[node.id]
        if isinstance(node, ast.Call):
            assert isinstance(node.func, ast.Name)
            return float(FUNCTIONS[node.func.id](*map(value, node.args)))
        assert isinstance(node, ast.BinOp)
        return OPERATORS[type(node.op)](value(node.left), value(node.right))

    try:
        return value(parsed(formula))
    except ZeroDivisionError:
        raise ArgumentError(f"formula '{formula}': divides by zero") from None


class Sheet:
    """Numbers that are given and figures that follow from them, in the order in which they were put down."""

    def __init__(self, given: Mapping[str, Quantity]) -> None:
        self.given = dict(given)
        self.figures: dict[str, Figure] = {}
        self.values = {name: quantity.value for name, quantity in given.items()}

    def put(self, name: str, unit: str, formula: str) -> Figure:
        """Compute a figure; each name is put down once."""
        if name in self.values:
            raise ArgumentError(f"figure '{name}' is there already")
        inputs = {read: self.values[read] for read in names_in(formula) if read in self.values}
        figure = Figure(name=name, unit=unit, formula=formula, inputs=inputs, value=evaluate(formula, self.values))
        self.figures[name] = figure
        self.values[name] = figure.value
        return figure

    def __getitem__(self, name: str) -> float:
        return self.values[name]
