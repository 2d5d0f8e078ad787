"""Axes: where a value stands between two ends, and round numbers to write beside it that never touch each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from limerank.report.text import LINE, text_width

TICKS = 5
LARGEST, SMALLEST = 1e300, 1e-290  # what is beyond is no measurement, and would overflow on the way
FARTHEST = 305.0  # decades, the end of what a number can be
NARROWEST = 1e-6  # values nearer to each other than this part of themselves are one value
BETWEEN_LABELS = 6.0
MOST_DECIMALS = 6
FINER = 2.5  # decades on which 2 and 5 are labeled too

Tick = tuple[float, str]


def drawable(value: float) -> bool:
    """Whether a number can stand in a picture."""
    return math.isfinite(value) and abs(value) <= LARGEST


def positive(value: float) -> bool:
    """Whether a number can stand on a logarithmic axis."""
    return SMALLEST <= value <= LARGEST


class Scale:
    """From values to fractions of an axis; logarithmic ones take positive values only."""

    def __init__(self, values: Iterable[float], *, logarithmic: bool = False, margin: float = 0.0) -> None:
        values = list(values)
        self.logarithmic = logarithmic
        self.whole = all(value == int(value) for value in values)
        self.doubling = logarithmic and all(_power_of_two(value) for value in values)
        lengths = [self._length(value) for value in values]
        low, high = apart(min(lengths), max(lengths)) if not logarithmic else _decades_apart(lengths)
        low, high = low - margin * (high - low), high + margin * (high - low)
        self.low, self.high = (max(low, -FARTHEST), min(high, FARTHEST)) if logarithmic else (low, high)

    def fraction(self, value: float) -> float:
        """0 at the axis's beginning, 1 at its end."""
        part = (self._length(value) - self.low) / (self.high - self.low)
        return min(1.0, max(0.0, part))

    def ticks(self, touch: Callable[[Sequence[Tick]], bool]) -> list[Tick]:
        """As many round numbers as can be written so that none of them `touch`."""
        fallback: list[Tick] = []
        for ticks in self._candidates():
            if ticks and not fallback:
                fallback = ticks[:1]
            if len(ticks) > 1 and not touch(ticks):
                return ticks
        return fallback

    def _length(self, value: float) -> float:
        return math.log10(value) if self.logarithmic else value

    def _candidates(self) -> Iterator[list[Tick]]:
        """Rows of ticks, from many to few."""
        if self.logarithmic:
            yield from self._decades()
            low, high = 10**self.low, 10**self.high
        else:
            low, high = self.low, self.high
        found = ticks(low, high, whole=self.whole)
        step = found[1] - found[0] if len(found) > 1 else high - low
        labeled = [(tick, tick_label(tick, step, max(abs(low), abs(high)))) for tick in found]
        for skip in range(1, max(2, len(labeled))):
            yield labeled[::skip]

    def _decades(self) -> Iterator[list[Tick]]:
        """Powers of two where all values are some, else 1, 2 and 5 of each power of ten, else powers of ten."""
        slack = 1e-9
        if self.doubling:
            first, last = math.ceil((self.low - slack) / math.log10(2)), math.floor((self.high + slack) / math.log10(2))
            for skip in range(1, max(2, last - first + 1)):
                yield [(2.0**power, _short(2.0**power)) for power in range(first, last + 1, skip)]
        first, last = math.floor(self.low), math.ceil(self.high)
        finer = [
            (power, factor)
            for power in (range(first, last + 1) if self.high - self.low <= FINER else ())
            for factor in (1, 2, 5)
            if self.low - slack <= power + math.log10(factor) <= self.high + slack
        ]
        yield [(float(f"{factor}e{power}"), _short(float(f"{factor}e{power}"))) for power, factor in finer]
        first, last = math.ceil(self.low - slack), math.floor(self.high + slack)
        for skip in range(1, max(2, last - first + 1)):
            yield [(float(f"1e{power}"), _short(float(f"1e{power}"))) for power in range(first, last + 1, skip)]


class Label(NamedTuple):
    """A tick of a horizontal axis: where its line is, where its words are, and what they say."""

    at: float
    middle: float
    text: str


def horizontal(scale: Scale, left: float, right: float, edge: float) -> list[Label]:
    """The labels of an axis from `left` to `right`, none of which leaves a picture that is `edge` wide."""

    def labels(ticks: Sequence[Tick]) -> list[Label]:
        found = []
        for value, text in ticks:
            at, half = left + scale.fraction(value) * (right - left), text_width(text) / 2 + 1
            found.append(Label(at, min(max(at, half), edge - half), text))
        return found

    def touch(ticks: Sequence[Tick]) -> bool:
        spans = [(label.middle, text_width(label.text) / 2) for label in labels(ticks)]
        return any(after - half < before + other + BETWEEN_LABELS for (before, other), (after, half) in pairwise(spans))

    return labels(scale.ticks(touch))


def vertical(scale: Scale, top: float, bottom: float) -> list[tuple[float, str]]:
    """The same for a vertical axis, whose values grow upwards."""

    def touch(ticks: Sequence[Tick]) -> bool:
        heights = [scale.fraction(value) * (bottom - top) for value, _ in ticks]
        return any(upper - lower < LINE for lower, upper in pairwise(heights))

    return [(bottom - scale.fraction(value) * (bottom - top), label) for value, label in scale.ticks(touch)]


def ticks(low: float, high: float, *, whole: bool = False) -> list[float]:
    """Round numbers between two, about five of them."""
    rough = (high - low) / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    factors = (1, 2, 5) if whole else (1, 2, 2.5, 5)
    step = next((power * factor for factor in factors if power * factor >= rough), power * 10)
    if whole:
        step = max(1.0, math.ceil(step))
    slack = 1e-8 * (high - low) / step  # bounds that rounding moved off a round number, never a step of another size
    first, last = math.ceil(low / step - slack), math.floor(high / step + slack)
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def tick_label(value: float, step: float, largest: float) -> str:
    """A tick with as many digits as tell it from its neighbors; the same number of decimals along an axis."""
    if value == 0:
        return "0"
    decimals = _decimals(step)
    if largest < 1e7 and decimals <= MOST_DECIMALS:
        return f"{value:,.{max(0, decimals)}f}"
    digits = max(0, math.floor(math.log10(abs(value))) + decimals)
    return _tidy(f"{value:.{min(digits, 9)}e}")


def apart(low: float, high: float) -> tuple[float, float]:
    """Bounds that are apart, also around a single value."""
    largest = max(abs(low), abs(high))
    if largest < SMALLEST:
        return -1.0, 1.0
    if high - low > NARROWEST * largest:
        return low, high
    return low - 0.1 * largest, high + 0.1 * largest


def number_label(value: float) -> str:
    """A number for an axis or a table: short, and never 0 for what is not."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if value == int(value) and abs(value) < 1e7:
        return f"{int(value):,}"
    return f"{value:.4g}"


def value_labels(values: Sequence[float], among: Sequence[float] = ()) -> list[str]:
    """Numbers that are compared with each other, with the same decimals: enough to tell a fiftieth of their range.

    The range is that of `among`, if there is one; none that is not 0 reads as 0.
    """
    low, high = apart(min(among or values), max(among or values))
    if max(abs(low), abs(high)) < 1e7 and any(value != int(value) for value in values):
        fewest = max(0, math.ceil(-math.log10((high - low) / 50)))
        for decimals in range(fewest, min(fewest + 2, MOST_DECIMALS) + 1):
            said = [f"{value:,.{decimals}f}" for value in values]
            if all(value == 0 or text.strip("-0.,") for value, text in zip(values, said, strict=True)):
                return said
    return [number_label(value) for value in values]


def _decades_apart(lengths: Sequence[float]) -> tuple[float, float]:
    low, high = min(lengths), max(lengths)
    return (low, high) if high - low > NARROWEST else (low - 0.3, high + 0.3)


def _power_of_two(value: float) -> bool:
    return value >= 1 and math.frexp(value)[0] == 0.5


def _decimals(step: float) -> int:
    """How many decimals a step has; negative when it ends in zeros."""
    power = math.floor(math.log10(step) + 1e-9)
    quarter = abs(step / 10.0**power - 2.5) < 1e-6
    return -power + quarter


def _short(value: float) -> str:
    """A power of ten or two as people write it."""
    return f"{value:,.12g}" if 1e-4 <= value < 1e7 else _tidy(f"{value:.3g}")


def _tidy(text: str) -> str:
    mantissa, _, power = text.partition("e")
    return f"{mantissa}e{int(power)}" if power else mantissa
