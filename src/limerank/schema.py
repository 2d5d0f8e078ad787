"""What the columns of a dataset mean: features with a role and a kind, and the tasks to predict.

The role decides where a feature may go, which is how leakage is made impossible:
`item` features enter the item tower and the history; `event` features are only ever visible in the history;
`user` and `context` features enter the user side, never the item tower.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from limerank.splits import ByColumn, GlobalTime, Split
from limerank.typed import Typed

PADDING_INDEX = 0
UNKNOWN_INDEX = 1
FIRST_KNOWN_INDEX = 2
MOST_QUANTILES = 10_000
MISSING_LABEL = 255
"""In the store, where labels are bytes; in a batch a missing label is NaN."""

NAME_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$"  # names become file names
DISPLAY = "<display>"  # no feature can be called so


class Role(StrEnum):
    """Who a feature describes, and therefore which side of a ranker may read it."""

    ITEM = "item"
    EVENT = "event"
    USER = "user"
    CONTEXT = "context"


class Kind(StrEnum):
    """How a feature's values become numbers a ranker can read."""

    CATEGORICAL = "categorical"
    HASHED = "hashed"
    CONTINUOUS = "continuous"
    MULTI_VALUED = "multi_valued"
    VECTOR = "vector"


class TimeUnit(StrEnum):
    """What the numbers of the time column count since 1970, or `iso` for texts such as 2026-01-31T12:00:00Z."""

    SECONDS = "s"
    MILLISECONDS = "ms"
    MICROSECONDS = "us"
    NANOSECONDS = "ns"
    ISO = "iso"


class Feature(Typed):
    """One feature of the raw log."""

    name: str = Field(pattern=NAME_PATTERN)
    role: Role
    kind: Kind = Kind.CATEGORICAL
    column: str = Field(default="", description="column of the raw table; the feature's name when empty")
    buckets: int | None = Field(
        default=None, ge=2, le=2**30, description="of a continuous feature (default 16) or of a hash (default 65536)"
    )
    minimum_count: int = Field(default=1, ge=1, description="rarer categories become 'unknown'")
    separator: str = Field(default="|", min_length=1, description="between the values of a list written as text")

    @property
    def source_column(self) -> str:
        """The raw column this feature is read from."""
        return self.column or self.name

    @property
    def bucket_count(self) -> int:
        """How many buckets a continuous or hashed feature has."""
        return self.buckets or (65_536 if self.kind is Kind.HASHED else 16)

    @model_validator(mode="after")
    def _fits_together(self) -> Feature:
        if self.name.endswith((".values", ".offsets")):
            raise ValueError(f"feature '{self.name}': a name must not end in .values or .offsets")
        if self.kind in (Kind.MULTI_VALUED, Kind.VECTOR) and self.role not in (Role.ITEM, Role.USER):
            raise ValueError(f"feature '{self.name}': {self.kind.value} features must have the role 'item' or 'user'")
        if self.buckets is not None and self.kind not in (Kind.CONTINUOUS, Kind.HASHED):
            raise ValueError(f"feature '{self.name}': buckets are for continuous and hashed features")
        if self.kind is Kind.CONTINUOUS and self.bucket_count > MOST_QUANTILES:
            raise ValueError(f"feature '{self.name}': a continuous feature has at most {MOST_QUANTILES} buckets")
        return self


class Task(Typed):
    """One binary label to predict."""

    name: str = Field(pattern=NAME_PATTERN)
    column: str = Field(default="", description="column of the label; the task's name when empty")
    positive_from: float | None = Field(
        default=None, description="the label is 1 from this value on (a rating of 4, say); default: the column is 0/1"
    )
    true_probability: str | None = Field(default=None, description="column with the true probability, if it is known")
    missing: Literal["refuse", "skip"] = Field(
        default="refuse",
        description="an event without this label: an error, or left out of the loss and the metrics of this task",
    )

    @property
    def source_column(self) -> str:
        """The raw column that holds this task's labels."""
        return self.column or self.name

    @model_serializer(mode="wrap")
    def _only_what_is_new(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without `missing: refuse`: versions that know no missing labels read these tasks, and only these."""
        values: dict[str, Any] = serialize(self)
        if self.missing == "refuse":
            values.pop("missing", None)
        return values


class Histories(Typed):
    """Histories that stand ready-made in the rows of a log, as lists of equal length, instead of following from time.

    Their elements are items of the catalog (`item_ids`), or known only by some item features (`items`: feature name to
    column). What happened is in `events` (event feature name to column).
    """

    item_ids: str | None = Field(default=None, description="column with lists of item ids")
    items: dict[str, str] = Field(default_factory=dict, description="item feature to its column of lists")
    events: dict[str, str] = Field(default_factory=dict, description="event feature to its column of lists")
    separator: str = Field(default="^", min_length=1, description="between the elements of a list written as text")
    newest: Literal["last", "first"] = "last"
    length: str | None = Field(
        default=None,
        description="events column with the number of elements that count; the lists are then in the users table, "
        "one full sequence per user",
    )

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of lists."""
        return (*([self.item_ids] if self.item_ids else []), *self.items.values(), *self.events.values())

    @model_validator(mode="after")
    def _one_kind_of_element(self) -> Histories:
        if bool(self.item_ids) == bool(self.items):
            raise ValueError("histories need either item_ids or items, not both")
        return self


class Schema(Typed):
    """The meaning of a raw log: which columns identify, which describe and which are to be predicted."""

    user_id: str = "user_id"
    item_id: str = "item_id"
    time: str | None = Field(default="time", description="null only when histories are ready-made")
    time_unit: TimeUnit = TimeUnit.MILLISECONDS
    request_id: str | None = Field(default=None, description="rows of one request share it; default: user and time")
    features: tuple[Feature, ...] = Field(min_length=1)
    tasks: tuple[Task, ...] = Field(min_length=1)
    split: Split = GlobalTime()
    max_history: int | None = Field(default=None, ge=1, description="no request has a longer history than this")
    minimum_item_events: int = Field(default=1, ge=1, description="events of rarer items are dropped, as if unlogged")
    minimum_user_events: int = Field(default=1, ge=1, description="events of rarer users are dropped")
    histories: Histories | None = None
    on_bad_rows: Literal["refuse", "drop"] = Field(
        default="refuse", description="events with a value that cannot be read: an error, or set aside and counted"
    )
    display: str | None = Field(
        default=None,
        description="column with what people call an item (a title): shown beside ids in rankings, never a feature",
    )

    @model_validator(mode="after")
    def _is_consistent(self) -> Schema:
        for what, names in (
            ("feature", [feature.name for feature in self.features]),
            ("task", [task.name for task in self.tasks]),
        ):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(f"{what} '{twice[0]}' is declared twice")
        if not any(feature.role is Role.ITEM for feature in self.features):
            raise ValueError("at least one feature must have the role 'item'")
        self._check_no_label_leaks()
        if self.histories is not None:
            self._check_histories(self.histories)
        elif self.time is None:
            raise ValueError("time: is needed, because histories follow from it; only ready-made histories do without")
        if self.time is None and not isinstance(self.split, ByColumn):
            raise ValueError("split: a log without time must be split by a column (protocol: column)")
        if self.display == self.item_id:
            raise ValueError(f"display: '{self.display}' is the id, which is always shown; name another column")
        return self

    def _check_no_label_leaks(self) -> None:
        labels = {task.source_column for task in self.tasks}
        truths = {task.true_probability for task in self.tasks}
        for feature in self.features:
            if feature.role is not Role.EVENT and feature.source_column in labels:
                raise ValueError(f"feature '{feature.name}' would tell the label to the ranker; give it role 'event'")
            if feature.source_column in truths:
                raise ValueError(f"feature '{feature.name}' is a true probability; it must not be a feature")

    def _check_histories(self, histories: Histories) -> None:
        for role, named in ((Role.ITEM, histories.items), (Role.EVENT, histories.events)):
            declared = {f.name: f for f in self.features if f.role is role}
            for name in named:
                if name not in declared:
                    raise ValueError(f"histories.{role.value}s: no {role.value} feature '{name}'")
                if declared[name].kind in (Kind.MULTI_VALUED, Kind.VECTOR):
                    raise ValueError(f"histories.{role.value}s: '{name}' must have one value per element")
        for feature in self.with_role(Role.EVENT):
            if feature.name not in histories.events:
                raise ValueError(
                    f"feature '{feature.name}': with ready-made histories, name its column of lists in histories.events"
                )

    @property
    def display_column(self) -> Feature | None:
        """What people call items, to be read like an item feature and used as none."""
        if self.display is None:
            return None
        return Feature.model_construct(name=DISPLAY, role=Role.ITEM, column=self.display)

    def with_role(self, role: Role) -> tuple[Feature, ...]:
        """The features of one role: single-valued first, then lists, then vectors, each in declared order."""
        order = {Kind.MULTI_VALUED: 1, Kind.VECTOR: 2}
        chosen = [feature for feature in self.features if feature.role is role]
        return tuple(sorted(chosen, key=lambda feature: order.get(feature.kind, 0)))


class EncodedFeature(Typed):
    """A feature after its vocabulary or buckets are fitted: all a ranker needs to know of it."""

    name: str
    kind: Kind
    size: int = Field(ge=1, description="number of indices, padding and unknown included; the width of a vector")


class FeatureSpace(Typed):
    """The encoded features of a dataset, by role, in the order their index columns have in a batch."""

    item: tuple[EncodedFeature, ...]
    event: tuple[EncodedFeature, ...] = ()
    user: tuple[EncodedFeature, ...] = ()
    context: tuple[EncodedFeature, ...] = ()
