"""A dataset as FuxiCTR's users have it: a `dataset_config.yaml` or `feature_map.json`, and csv, parquet or npz files.

Also the layout of LongCTR: rows that point into one full sequence per user (`user_info`) and into `item_info`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from limerank.data.raw.log import RawLog
from limerank.data.sources.fuxictr import files
from limerank.data.sources.fuxictr.config import Column, Configuration, read_configuration
from limerank.data.sources.fuxictr.files import PART, Reader, Wanted
from limerank.data.sources.fuxictr.longctr import SEQUENCE, SEQUENCE_LENGTH, read_side_tables
from limerank.data.sources.fuxictr.roles import Assignment, Constancy, assign_roles, find_constancy, pair_sequences
from limerank.errors import DataError, UsageError, did_you_mean
from limerank.schema import Feature, Histories, Kind, Role, Schema
from limerank.typed import validate

USER_NAMES = ("group_id", "user_index", "user_id", "userid", "uid", "user")
ITEM_NAMES = (
    "item_index", "item_id", "itemid", "adgroup_id", "ad_id", "video_id", "photo_id", "article_id", "news_id",
    "movie_id", "product_id", "goods_id", "sku_id", "item",
)  # fmt: skip
KINDS = {
    "categorical": Kind.CATEGORICAL,
    "numeric": Kind.CONTINUOUS,
    "sequence": Kind.MULTI_VALUED,
    "embedding": Kind.VECTOR,
}


@dataclass(frozen=True)
class Choices:
    """What a person may have to say because a configuration does not."""

    user_id: str | None = None
    item_id: str | None = None
    max_history: int | None = None


def read_fuxictr(
    path: Path, dataset_id: str | None = None, data_root: Path | None = None, choices: Choices | None = None
) -> RawLog:
    """Read a FuxiCTR dataset; the notes of the log say line by line what was understood and what was ignored."""
    configuration = read_configuration(path, dataset_id, data_root)
    return _Reading(configuration, data_root, choices or Choices()).log()


class _Reading:
    """One configuration on its way to a raw log."""

    def __init__(self, configuration: Configuration, data_root: Path | None, choices: Choices) -> None:
        self.configuration = configuration
        self.dataset = configuration.dataset
        self.where = configuration.where
        self.choices = choices
        self.notes: list[str] = list(configuration.notes)
        self.columns: Sequence[Column] = [column for column in self.dataset.columns if column.active]
        self.parts = self._find_parts(data_root)
        self.user_id = self._id_column("user", choices.user_id or self.dataset.group_id, USER_NAMES)
        self.item_id = self._id_column("item", choices.item_id, ITEM_NAMES)
        self.tables = read_side_tables(configuration, self.columns, self.user_id, self.item_id, data_root)
        self.assignment = Assignment()

    def log(self) -> RawLog:
        """The raw log."""
        self._set_aside()
        located = self.tables.located() if self.tables else {}
        if not self.tables:
            pair_sequences(self.columns, self.assignment)
        self.notes += assign_roles(
            self.columns, self.assignment, self._constancy(), located, user_id=self.user_id, item_id=self.item_id
        )
        histories = self._histories()
        features = [feature for column in self.columns if (feature := self._feature(column)) is not None]
        reader = Reader(self.dataset.data_format, self._wanted(features, histories), self._padded(features, histories))
        events = [reader.event_file(file, part) for part, found in self.parts.items() for file in found]
        schema = validate(Schema, self._schema(features, histories), self.where, DataError)
        items, users = self.tables.frames(features, self.configuration.processed) if self.tables else (None, None)
        names = {"items": "items", "users": "users"} | (self.tables.names if self.tables else {})
        self._explain(schema)
        return RawLog(schema, tuple(events), items, users, self._origin(), names, tuple(self.notes))

    def _find_parts(self, data_root: Path | None) -> dict[str, tuple[Path, ...]]:
        """The files of each part; a validation part that is the test part again is left out."""
        written = {"train": self.dataset.train_data, "valid": self.dataset.valid_data, "test": self.dataset.test_data}
        parts = {
            part: files.find_files(self.configuration, text, f"{part}_data", data_root)
            for part, text in written.items()
            if text
        }
        carved = "10 % of the training requests, drawn with a fixed seed, select"
        if "test" not in parts:
            if "valid" not in parts:
                raise DataError(f"{self.where}: neither valid_data nor test_data; a dataset needs something to test on")
            parts["test"] = parts.pop("valid")
            self.notes.append(f"no test_data: valid_data is the test part; without --select-on-test {carved}")
        elif parts.get("valid") == parts["test"]:
            del parts["valid"]
            self.notes.append(
                f"valid_data is test_data: this configuration selects on the test set; unless --select-on-test {carved}"
            )
        if parts["train"] == parts["test"]:
            raise DataError(f"{self.where}: train_data and test_data are the same files; correct one of them")
        return parts

    def _id_column(self, what: str, named: str | None, usual: Sequence[str]) -> str:
        """The raw column that identifies users or items."""
        by_name = {column.name: column for column in self.columns if column.type not in ("sequence", "embedding")}
        if named is not None:
            if named in by_name:
                return by_name[named].copied_from
            if named in {column.copied_from for column in by_name.values()}:
                return named
            raise UsageError(f"{self.where}: no column '{named}' for the {what} id{did_you_mean(named, by_name)}")
        metas = [name for name in usual if name in by_name and by_name[name].type == "meta"]
        found = metas or [name for name in usual if name in by_name]
        if not found:
            raise UsageError(
                f"{self.where}: which column is the {what} id? pass --{what}-id; columns: {', '.join(sorted(by_name))}"
            )
        column = by_name[found[0]]
        self.notes.append(f"{what} id: column '{column.copied_from}' (--{what}-id chooses another)")
        if self.configuration.processed and column.type != "meta":
            self.notes.append(
                f"WARNING: '{column.name}' holds FuxiCTR's indices, in which all rare {what}s share one; "
                f"each {what} has its own id only in the raw files"
            )
        return column.copied_from

    def _set_aside(self) -> None:
        """Columns that are known to be of no use before any row is read."""
        for column in self.dataset.columns:
            if not column.active:
                self.notes.append(f"ignored '{column.name}': it is not active")
        features = {column.name: column for column in self.columns if column.type != "meta"}
        for column in features.values():
            copied = column.copied_from
            if column.pretrained_emb is not None and copied == column.name:
                self.notes.append(f"'{column.name}': its pretrained embedding is ignored, the column itself is read")
            elif column.pretrained_emb is not None:
                reason = f"it is a copy of '{copied}' for a pretrained embedding; give vectors as type: embedding"
                self.assignment.ignore(column.name, reason)
            elif copied != column.name and copied in features and features[copied].type == column.type:
                self.assignment.ignore(column.name, f"it is a copy of '{copied}'")
            if self.tables and column.type == "sequence" and column.share_embedding and not self.tables.has(column):
                self.assignment.ignore(column.name, f"histories are in {SEQUENCE} of user_info")
            if column.name in self.dataset.labels or copied in self.dataset.labels:
                raise DataError(
                    f"{self.where}: '{column.name}' is a feature and the label; remove it from feature_cols"
                )

    def _constancy(self) -> Constancy:
        aside = {*self.assignment.ignored, *self.assignment.item_sequences.values()}
        asked = [
            column
            for column in self.columns
            if column.type != "meta" and column.name not in aside
            if not column.source or column.name in self.assignment.item_sequences
            if not (self.tables and self.tables.has(column))
        ]
        wanted = {name: Wanted(name, name, files.as_it_is) for name in (self.user_id, self.item_id)}
        wanted |= {column.name: self._column(column) for column in asked if column.name not in wanted}
        reader = Reader(self.dataset.data_format, tuple(wanted.values()))
        training = [reader.event_file(file, "train") for file in self.parts["train"]]
        return find_constancy(training, self.user_id, self.item_id, [column.name for column in asked])

    def _histories(self) -> Histories:
        assignment = self.assignment
        if self.tables:
            return Histories(item_ids=SEQUENCE, length=SEQUENCE_LENGTH)
        if not assignment.item_sequences:
            raise DataError(
                f"{self.where}: no history: no sequence shares its embedding with an item feature (share_embedding); "
                "for a log with times instead of histories use `limerank prepare table`"
            )
        copies = {column.name: column.copied_from for column in self.columns}
        of_ids = next((name for name in assignment.item_sequences if copies[name] == self.item_id), None)
        if of_ids is None:
            return Histories(items=dict(assignment.item_sequences), events=dict(assignment.event_sequences))
        for name, sequence in list(assignment.item_sequences.items()):
            if name != of_ids:
                assignment.ignore(sequence, f"the history has item ids, and '{name}' follows from them")
                del assignment.item_sequences[name]
        return Histories(item_ids=assignment.item_sequences[of_ids], events=dict(assignment.event_sequences))

    def _feature(self, column: Column) -> Feature | None:
        role = self.assignment.roles.get(column.name)
        if role is None or column.name in self.assignment.ignored:
            return None
        kind = KINDS[column.type]
        if kind in (Kind.MULTI_VALUED, Kind.VECTOR) and role not in (Role.ITEM, Role.USER):
            self.assignment.ignore(column.name, f"a {column.type} must describe a user or an item, not the request")
            return None
        if kind is Kind.CONTINUOUS:
            self.notes.append(f"'{column.name}' is cut into buckets at quantiles; FuxiCTR feeds the plain number")
        least = 1 if self.configuration.processed else column.min_categr_count or self.dataset.min_categr_count
        values: dict[str, Any] = {"name": column.name, "role": role, "kind": kind, "separator": column.splitter}
        if kind in (Kind.CATEGORICAL, Kind.MULTI_VALUED):
            values["minimum_count"] = least
        return validate(Feature, values, f"{self.where}, column '{column.name}'", DataError)

    def _column(self, column: Column) -> Wanted:
        return files.wanted_column(column, processed=self.configuration.processed)

    def _wanted(self, features: Sequence[Feature], histories: Histories) -> tuple[Wanted, ...]:
        wanted = {name: Wanted(name, name, files.as_it_is) for name in (self.user_id, self.item_id)}
        wanted |= {label: Wanted(label, label, files.untouched) for label in self.dataset.labels}
        if histories.length:
            wanted[histories.length] = Wanted(histories.length, histories.length, files.as_it_is)
        used = {feature.name for feature in features if feature.role is not Role.EVENT}
        sequences = set() if self.tables else set(histories.columns)
        keep_first = self._limit() if self._padding() == "post" else 0
        for column in self.columns:
            if column.name in sequences:
                wanted[column.name] = files.wanted_column(
                    column, processed=self.configuration.processed, keep_first=keep_first
                )
            elif column.name in used and column.name not in wanted and not (self.tables and self.tables.has(column)):
                wanted[column.name] = self._column(column)
        return tuple(wanted.values())

    def _padded(self, features: Sequence[Feature], histories: Histories) -> tuple[tuple[str, ...], ...]:
        """Groups of processed sequences: those of one width belong together."""
        if not self.configuration.processed:
            return ()
        sequences = [] if self.tables else list(histories.columns)
        widths = {column.name: column.max_len for column in self.columns}
        together = len({widths[name] for name in sequences}) == 1
        groups = [tuple(sequences)] if together else [(name,) for name in sequences]
        in_tables = {column.name for column in self.columns if self.tables and self.tables.has(column)}
        lists = [f.name for f in features if f.kind is Kind.MULTI_VALUED and f.name not in in_tables]
        return (*groups, *((name,) for name in lists))

    def _history_columns(self) -> list[Column]:
        named = {*self.assignment.item_sequences.values(), *self.assignment.event_sequences.values()}
        return [column for column in self.columns if column.name in named]

    def _limit(self) -> int:
        return min((column.max_len for column in self._history_columns() if column.max_len), default=0)

    def _padding(self) -> str:
        sides = {column.padding for column in self._history_columns()}
        if len(sides) > 1:
            raise DataError(f"{self.where}: the sequences of one history must have the same padding, pre or post")
        return next(iter(sides), "pre") if not self.configuration.processed else "pre"

    def _schema(self, features: Sequence[Feature], histories: Histories) -> dict[str, Any]:
        limits = [self.choices.max_history or 0, self._limit(), (self.dataset.max_len or 0) if self.tables else 0]
        validation = ("valid",) if "valid" in self.parts else ()
        return {
            "user_id": self.user_id,
            "item_id": self.item_id,
            "time": None,
            "features": [feature.model_dump() for feature in features],
            "tasks": [{"name": label} for label in self.dataset.labels],
            "split": {"protocol": "column", "column": PART, "validation": validation},
            "max_history": min((limit for limit in limits if limit), default=None),
            "histories": histories.model_dump(),
        }

    def _explain(self, schema: Schema) -> None:
        assert schema.histories is not None
        for part, found in self.parts.items():
            self.notes.append(f"{part}: {', '.join(file.name for file in found)}")
        self.notes.append(f"labels: {', '.join(self.dataset.labels)}")
        limit = schema.max_history
        if self._limit() and self._padding() == "post":
            self.notes.append(f"padding is post: of longer histories the first {self._limit()} events are kept")
        elif limit:
            self.notes.append(f"of longer histories the last {limit} events are kept")
        if self.configuration.processed:
            self.notes.append("the files hold FuxiCTR's indices: 0 is read as missing, in sequences as padding")
        for role in Role:
            named = [feature.name for feature in schema.with_role(role)]
            self.notes.append(f"{role.value} features: {', '.join(named) or 'none'}")
        self.notes += [f"ignored '{name}': {reason}" for name, reason in self.assignment.ignored.items()]

    def _origin(self) -> dict[str, Any]:
        return {
            "source": "fuxictr",
            "dataset_id": self.configuration.dataset_id,
            "format": self.dataset.data_format,
            "layout": "longctr" if self.tables else "rows",
            "processed": self.configuration.processed,
        }
