"""Formulas are computed from their own text, say what they read, and can be nothing but arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limerank.errors import ArgumentError
from limerank.planning.formula import Quantity, Sheet, evaluate, names_in, width

NUMBERS = st.floats(-1e9, 1e9)


def test_arithmetic_is_exact() -> None:
    values = {"a": 3.0, "b": 0.5}
    assert evaluate("a * (b + 2) - 1 / 4", values) == 3 * 2.5 - 0.25
    assert evaluate("ceil(a / 2) + max(a, b, 7) + min(a, b)", values) == 2 + 7 + 0.5
    assert evaluate("a - b - 1", values) == 1.5  # from the left


@given(NUMBERS, NUMBERS, NUMBERS)
def test_formulas_are_what_python_computes(a: float, b: float, c: float) -> None:
    found = evaluate("a * b + max(c, a) - b * c", {"a": a, "b": b, "c": c})
    assert found == a * b + max(c, a) - b * c


@pytest.mark.parametrize(("largest", "size"), [(0, 1), (255, 1), (256, 2), (65_535, 2), (65_536, 4), (2**32, 8)])
def test_width_is_that_of_the_narrowest_integer(largest: int, size: int) -> None:
    assert width(largest) == size


@pytest.mark.parametrize(
    "formula",
    [
        "__import__('os')",
        "a.b",
        "a[0]",
        "a ** b",
        "a if b else a",
        "lambda: 1",
        "open(a)",
        "max(a, key=b)",
        "'a'",
        "a +",
        "-a",
    ],
)
def test_nothing_else_can_be_written(formula: str) -> None:
    with pytest.raises(ArgumentError, match="formula"):
        evaluate(formula, {"a": 1.0, "b": 2.0})


def test_errors_name_the_formula() -> None:
    with pytest.raises(ArgumentError, match=r"formula 'a / b': divides by zero"):
        evaluate("a / b", {"a": 1.0, "b": 0.0})
    with pytest.raises(ArgumentError, match=r"formula 'a \+ c': 'c' has no value"):
        evaluate("a + c", {"a": 1.0})


def test_a_sheet_keeps_formulas_with_what_they_read() -> None:
    sheet = Sheet({"a": Quantity(value=2, unit="byte"), "b": Quantity(value=5, unit="1")})
    figure = sheet.put("c", "byte", "a * b + a")
    assert (figure.value, figure.inputs, figure.formula) == (12, {"a": 2, "b": 5}, "a * b + a")
    assert sheet.put("d", "byte", "c + a").value == 14
    with pytest.raises(ArgumentError, match="'c' is there already"):
        sheet.put("c", "byte", "a")
    assert names_in("max(b, a) + a * ceil(b)") == ["b", "a"]
