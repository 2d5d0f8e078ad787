"""How a log is split: which requests train, which select and which test. Each is a small typed value.

Validation is carved from the end of the training part. `select_on_test` carves nothing: the ranker is then chosen by
its test metrics, as public leaderboards do, and every run on such a dataset records it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from limerank.errors import UsageError, did_you_mean
from limerank.typed import Typed

NO_PART = 3  # the code of requests that are history only


class Part(StrEnum):
    """The three parts of a split, in the order their codes have on disk."""

    TRAIN = "train"
    VALIDATION = "validation"
    TEST = "test"

    @property
    def code(self) -> int:
        """The number that stands for this part in the store."""
        return list(Part).index(self)


def part_named(name: str) -> Part:
    """The part of that name."""
    if name not in set(Part):
        raise UsageError(f"part: no part '{name}'{did_you_mean(name, Part)}")
    return Part(name)


class _Rule(Typed):
    select_on_test: bool = Field(default=False, description="carve no validation part and select on the test part")


class GlobalTime(_Rule):
    """The last part of the log by time is the test set, the part before it validation; fractions of the requests."""

    protocol: Literal["global_time"] = "global_time"
    validation_fraction: float = Field(default=0.1, gt=0, lt=0.5)
    test_fraction: float = Field(default=0.1, gt=0, lt=0.5)


class Days(_Rule):
    """Whole days: the last `test_days` test; training is everything before, or only the first `train_days`.

    Validation is the last `validation_days` of the training days. Days in between belong to no part: their events are
    history, but nothing is trained or tested on them.
    """

    protocol: Literal["days"] = "days"
    train_days: int | None = Field(default=None, ge=2, description="days from the beginning, validation included")
    validation_days: int = Field(default=1, ge=1)
    test_days: int = Field(default=1, ge=1)
    utc_offset_hours: float = Field(default=0, ge=-12, le=14, description="where midnight is")


class LastEvents(_Rule):
    """Per user: the last `test_events` events test, the `validation_events` before them select.

    A request is never cut in two: it belongs to a part only when all its events do.
    """

    protocol: Literal["last_events"] = "last_events"
    validation_events: int = Field(default=1, ge=1)
    test_events: int = Field(default=1, ge=1)


class LastFraction(_Rule):
    """Per user: the last `test_fraction` of the user's events test, the `validation_fraction` before them select."""

    protocol: Literal["last_fraction"] = "last_fraction"
    validation_fraction: float = Field(default=0.1, gt=0, lt=0.5)
    test_fraction: float = Field(default=0.2, gt=0, lt=0.5)


class ByColumn(_Rule):
    """A column of the events says it. Rows whose value is listed nowhere belong to no part and are history only.

    Without `validation` values, `validation_fraction` of the training requests select: the latest ones, or, when the
    log has no time, ones drawn with a fixed seed.
    """

    protocol: Literal["column"] = "column"
    column: str
    train: tuple[str, ...] = ("train",)
    validation: tuple[str, ...] = ()
    test: tuple[str, ...] = ("test",)
    validation_fraction: float = Field(default=0.1, gt=0, lt=0.5)

    @model_validator(mode="after")
    def _values_differ(self) -> ByColumn:
        values = [*self.train, *self.validation, *self.test]
        if len(set(values)) < len(values):
            raise ValueError("a value of the split column is listed for two parts")
        return self


def _default_rule(value: Any) -> Any:
    return {"protocol": "global_time", **value} if isinstance(value, dict) else value


Split = Annotated[
    Annotated[GlobalTime | Days | LastEvents | LastFraction | ByColumn, Field(discriminator="protocol")],
    BeforeValidator(_default_rule),
]
