"""What the columns of a dataset mean: features with a role and a kind, and the tasks to predict.

The role decides where a feature may go, which is how leakage is made impossible:
`item` features enter the item tower and the history; `event` features are only ever visible in the history;
`user` and `context` features enter the user side, never the item tower.
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field, model_validator

PADDING_INDEX = 0
UNKNOWN_INDEX = 1
FIRST_KNOWN_INDEX = 2

NAME_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$"  # names become file names


class Role(StrEnum):
    """Who a feature describes, and therefore which side of a ranker may read it."""

    ITEM = "item"
    EVENT = "event"
    USER = "user"
    CONTEXT = "context"


class Kind(StrEnum):
    """How a feature's values become indices of an embedding table."""

    CATEGORICAL = "categorical"
    CONTINUOUS = "continuous"
    MULTI_VALUED = "multi_valued"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Feature(_Strict):
    """One feature of the raw log."""

    name: str = Field(pattern=NAME_PATTERN)
    role: Role
    kind: Kind = Kind.CATEGORICAL
    column: str = Field(default="", description="column of the raw table; the feature's name when empty")
    buckets: int = Field(default=16, ge=2, le=10_000, description="quantile buckets of a continuous feature")
    minimum_count: int = Field(default=1, ge=1, description="rarer categories become 'unknown'")

    @property
    def source_column(self) -> str:
        """The raw column this feature is read from."""
        return self.column or self.name


class Task(_Strict):
    """One binary label to predict."""

    name: str = Field(pattern=NAME_PATTERN)
    column: str = Field(default="", description="column of 0/1 labels; the task's name when empty")
    true_probability: str | None = Field(default=None, description="column with the true probability, if it is known")

    @property
    def source_column(self) -> str:
        """The raw column that holds this task's labels."""
        return self.column or self.name


class Split(_Strict):
    """A split by global time: the last part of the log is the test set, the part before it validation."""

    protocol: str = Field(default="global_time", pattern="^global_time$")
    validation_fraction: float = Field(default=0.1, gt=0, lt=0.5)
    test_fraction: float = Field(default=0.1, gt=0, lt=0.5)


class Schema(_Strict):
    """The meaning of a raw log: which columns identify, which describe and which are to be predicted."""

    user_id: str = "user_id"
    item_id: str = "item_id"
    time: str = "time"
    request_id: str | None = Field(default=None, description="rows of one request share it; default: user and time")
    features: tuple[Feature, ...] = Field(min_length=1)
    tasks: tuple[Task, ...] = Field(min_length=1)
    split: Split = Split()

    @model_validator(mode="after")
    def _names_are_unique(self) -> Schema:
        for what, names in (
            ("feature", [feature.name for feature in self.features]),
            ("task", [task.name for task in self.tasks]),
        ):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(f"{what} '{twice[0]}' is declared twice")
        if not any(feature.role is Role.ITEM for feature in self.features):
            raise ValueError("at least one feature must have the role 'item'")
        labels = {task.source_column for task in self.tasks}
        truths = {task.true_probability for task in self.tasks}
        for feature in self.features:
            if feature.role is Role.CONTEXT and feature.source_column in labels:
                raise ValueError(f"feature '{feature.name}' would tell the label to the ranker; give it role 'event'")
            if feature.role in (Role.CONTEXT, Role.EVENT) and feature.source_column in truths:
                raise ValueError(f"feature '{feature.name}' is a true probability; it must not be a feature")
            if feature.kind is Kind.MULTI_VALUED and feature.role is not Role.ITEM:
                raise ValueError(f"feature '{feature.name}': multi_valued features must have the role 'item'")
        return self

    def with_role(self, role: Role) -> tuple[Feature, ...]:
        """The features of one role: single-valued first, then multi-valued, each in declared order."""
        chosen = [feature for feature in self.features if feature.role is role]
        return tuple(sorted(chosen, key=lambda feature: feature.kind is Kind.MULTI_VALUED))


class EncodedFeature(_Strict):
    """A feature after its vocabulary or buckets are fitted: all a ranker needs to know of it."""

    name: str
    kind: Kind
    size: int = Field(ge=FIRST_KNOWN_INDEX, description="number of indices, padding and unknown included")


class FeatureSpace(_Strict):
    """The encoded features of a dataset, by role, in the order their index columns have in a batch."""

    item: tuple[EncodedFeature, ...]
    event: tuple[EncodedFeature, ...] = ()
    user: tuple[EncodedFeature, ...] = ()
    context: tuple[EncodedFeature, ...] = ()
