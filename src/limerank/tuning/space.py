"""What is searched: for each dotted key of a run configuration a range or a list of choices, typed as the key is."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Self, get_args

from pydantic import Field, model_validator

from limerank.errors import UsageError
from limerank.typed import Typed, validate

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from pydantic.fields import FieldInfo

FORMS = "{low: ..., high: ...} or {choices: [...]}"
MOST_PROBES = 16


class Choices(Typed):
    """One of a few values, of any type; the sampler knows no order among them."""

    choices: tuple[Any, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        if any(value in self.choices[:position] for position, value in enumerate(self.choices)):
            raise ValueError("a choice stands twice")
        return self

    def probes(self) -> tuple[Any, ...]:
        """The values to check before anything runs: all of them."""
        return self.choices

    def holds(self, value: Any) -> bool:
        """Whether it can be sampled."""
        return value in self.choices

    def encode(self, value: Any) -> Any:
        """What Optuna calls a value: the position of a choice, for it knows no lists."""
        return self.choices.index(value)

    def decode(self, sampled: Any) -> Any:
        """The value that Optuna calls so."""
        return self.choices[sampled]

    def distribution(self) -> BaseDistribution:
        """The same for Optuna."""
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(range(len(self.choices)))


class _Range(Typed):
    """All values from `low` to `high`, both included."""

    low: Any
    high: Any
    log: bool = Field(default=False, description="sample the logarithm evenly, for values that span magnitudes")
    step: Any = None

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if not self.low < self.high:
            raise ValueError(f"low {self.low} must be below high {self.high}")
        if self.log and self.low <= 0:
            raise ValueError(f"with log, low must be above 0 (got {self.low})")
        if self.log and self.step is not None:
            raise ValueError("log and step do not go together")
        if self.step is not None:
            low, high, step = (Decimal(str(number)) for number in (self.low, self.high, self.step))
            if step <= 0 or (high - low) % step:
                raise ValueError(f"high {self.high} must be low {self.low} plus a whole number of steps of {self.step}")
        return self

    def holds(self, value: Any) -> bool:
        """Whether it can be sampled."""
        if not isinstance(value, int | float) or not self.low <= value <= self.high:
            return False
        return self.step is None or not (Decimal(str(value)) - Decimal(str(self.low))) % Decimal(str(self.step))

    def encode(self, value: Any) -> Any:
        """What Optuna calls a value: itself."""
        return value

    def decode(self, sampled: Any) -> Any:
        """The value that Optuna calls so."""
        return sampled


class FloatRange(_Range):
    """Of a key that takes fractions."""

    low: float = Field(allow_inf_nan=False)
    high: float = Field(allow_inf_nan=False)
    step: float | None = None

    def probes(self) -> tuple[float, ...]:
        """The values to check before anything runs: both ends."""
        return self.low, self.high

    def distribution(self) -> BaseDistribution:
        """The same for Optuna."""
        from optuna.distributions import FloatDistribution

        return FloatDistribution(self.low, self.high, log=self.log, step=self.step)


class WholeRange(_Range):
    """Of a key that takes whole numbers."""

    low: int
    high: int
    step: int | None = None

    def probes(self) -> tuple[int, ...]:
        """The values to check before anything runs: all, or of many both ends."""
        values = range(self.low, self.high + 1, self.step or 1)
        return tuple(values) if len(values) <= MOST_PROBES else (self.low, self.high)

    def distribution(self) -> BaseDistribution:
        """The same for Optuna."""
        from optuna.distributions import IntDistribution

        return IntDistribution(self.low, self.high, log=self.log, step=self.step or 1)


Dimension = Choices | FloatRange | WholeRange
Space = dict[str, Dimension]


def dimension_of(key: str, written: Any, field: FieldInfo, where: str) -> Dimension:
    """A key's part of the space, from what is written; a range is of the key's own type."""
    named = f"{where}: space '{key}'"
    if isinstance(written, Choices | FloatRange | WholeRange):
        written = written.model_dump(exclude_unset=True)
    if not isinstance(written, Mapping) or ("choices" in written) == ("low" in written or "high" in written):
        raise UsageError(f"{named}: must be {FORMS} (got {written!r})")
    types = _types(field.annotation)
    if "choices" in written:
        return _with_numbers(validate(Choices, written, named), types)
    if float in types:
        return validate(FloatRange, written, named)
    if int in types:
        return validate(WholeRange, written, named)
    raise UsageError(f"{named}: is no number and has no range; write {{choices: [...]}}")


def _with_numbers(written: Choices, types: set[Any]) -> Choices:
    """YAML reads 1e-4 as text: of a key that takes numbers it is one."""

    def number(value: Any) -> Any:
        try:
            return float(value) if isinstance(value, str) else value
        except ValueError:
            return value

    return Choices(choices=tuple(map(number, written.choices))) if types & {int, float} else written


def _types(annotation: Any) -> set[Any]:
    """The types a field may have: those of a union, without what a list or tuple holds."""
    inside = get_args(annotation)
    if not inside or isinstance(annotation, type) or not _is_union(annotation):
        return {annotation}
    return {one for argument in inside for one in _types(argument)}


def _is_union(annotation: Any) -> bool:
    from types import UnionType
    from typing import Union, get_origin

    return get_origin(annotation) in (Union, UnionType)
