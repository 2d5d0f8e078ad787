"""Lines and planes find the numbers that measurements were made of, weigh sizes alike, and never go below zero."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limerank.errors import ArgumentError
from limerank.planning.lines import Line, Plane

POSITIVE = st.floats(1e-6, 1e3)


@given(POSITIVE, POSITIVE)
def test_a_line_is_found_again(fixed: float, slope: float) -> None:
    sizes = [10, 100, 1000]
    found = Line.fit(sizes, [fixed + slope * size for size in sizes])
    assert found.at(5000) == pytest.approx(fixed + slope * 5000, rel=1e-6)
    assert found.at(50) == pytest.approx(fixed + slope * 50, rel=1e-6)


@given(POSITIVE, POSITIVE, POSITIVE)
def test_a_plane_is_found_again(fixed: float, first: float, second: float) -> None:
    sizes = [(10, 4), (100, 4), (10, 64), (100, 64)]
    found = Plane.fit(sizes, [fixed + first * a + second * b for a, b in sizes])
    assert found.at(70, 30) == pytest.approx(fixed + first * 70 + second * 30, rel=1e-6)


@given(st.lists(POSITIVE, min_size=3, max_size=3))
def test_nothing_takes_less_than_no_time(values: list[float]) -> None:
    found = Line.fit([1, 10, 100], values)
    assert found.fixed >= 0
    assert found.slope >= 0


def test_relative_errors_count() -> None:
    """A small size that is twice as slow pulls as much as a large one: absolute errors would not see it."""
    found = Line.fit([1, 2, 1000], [2.0, 2.0, 1000.0])
    assert abs(found.at(1) - 2) / 2 < 0.3


def test_far_is_four_times_the_largest() -> None:
    found = Line.fit([10, 100], [1.0, 2.0])
    assert not found.is_far(400)
    assert found.is_far(401)


def test_measurements_must_tell_something() -> None:
    with pytest.raises(ArgumentError, match="two sizes"):
        Line.fit([5, 5], [1.0, 1.0])
    with pytest.raises(ArgumentError, match="on no line"):
        Plane.fit([(1, 1), (2, 2), (3, 3)], [1.0, 2.0, 3.0])
    with pytest.raises(ArgumentError, match="above zero"):
        Line.fit([1, 2], [0.0, 1.0])
