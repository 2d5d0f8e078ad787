"""Which role each column of a FuxiCTR configuration plays, where the configuration itself does not say it.

A column that never changes for a user describes the user; one that never changes for an item describes the item; any
other belongs to the request. The training rows decide.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from limerank.data.raw.log import EventFile
from limerank.data.sources.fuxictr.config import Column
from limerank.schema import Role


@dataclass(frozen=True)
class Constancy:
    """Columns that hold one value per user, one per item, and one in all training rows (a missing value is one)."""

    per_user: frozenset[str]
    per_item: frozenset[str]
    overall: frozenset[str]


def find_constancy(files: Iterable[EventFile], user_id: str, item_id: str, columns: Sequence[str]) -> Constancy:
    """Look through all training rows once; memory holds two hashes per id and column, never the rows."""
    if not columns:
        return Constancy(frozenset(), frozenset(), frozenset())
    found: dict[str, pl.DataFrame | None] = {user_id: None, item_id: None}
    for file in files:
        for batch in file.batches():
            hashed = batch.select(
                *(pl.col(key).cast(pl.String).alias(f"key {key}") for key in found),
                *(pl.col(column).hash().alias(f"low {column}") for column in columns),
            ).with_columns(pl.col(f"low {column}").alias(f"high {column}") for column in columns)
            for key, seen in found.items():
                both = hashed if seen is None else pl.concat([seen, hashed], how="diagonal")
                found[key] = _extremes(both, f"key {key}", columns)
    per_user, per_item = (_same(table, columns) for table in found.values())
    whole = found[item_id]
    overall = frozenset(
        column
        for column in columns
        if whole is not None and whole[f"low {column}"].min() == whole[f"high {column}"].max()
    )
    return Constancy(per_user, per_item, overall)


def _extremes(table: pl.DataFrame, key: str, columns: Sequence[str]) -> pl.DataFrame:
    return table.group_by(key).agg(
        *(pl.col(f"low {column}").min() for column in columns), *(pl.col(f"high {column}").max() for column in columns)
    )


def _same(table: pl.DataFrame | None, columns: Sequence[str]) -> frozenset[str]:
    if table is None:
        return frozenset(columns)
    return frozenset(column for column in columns if (table[f"low {column}"] == table[f"high {column}"]).all())


@dataclass
class Assignment:
    """The role of every column that becomes a feature, and why the others do not."""

    roles: dict[str, Role] = field(default_factory=dict)
    ignored: dict[str, str] = field(default_factory=dict)
    item_sequences: dict[str, str] = field(default_factory=dict)
    """Item feature to the sequence that is its history."""
    event_sequences: dict[str, str] = field(default_factory=dict)
    """Event feature to the sequence that is its history."""

    def ignore(self, column: str, reason: str) -> None:
        """Leave a column out."""
        self.ignored.setdefault(column, reason)


def pair_sequences(columns: Sequence[Column], assignment: Assignment) -> None:
    """Give every shared feature its history: the first sequence that shares the feature's embedding."""
    by_name = {column.name: column for column in columns}
    for column in columns:
        if column.type != "sequence" or column.share_embedding is None:
            continue
        shared = column.share_embedding
        if shared in assignment.ignored:
            assignment.ignore(column.name, f"it shares the embedding of '{shared}', which is ignored")
        elif shared not in by_name or by_name[shared].type not in ("categorical", "sequence"):
            assignment.ignore(column.name, f"it shares the embedding of '{shared}', which is not a column here")
        elif shared in assignment.item_sequences:
            first = assignment.item_sequences[shared]
            assignment.ignore(
                column.name, f"'{first}' is the history of '{shared}' already, and a user has one history"
            )
        elif by_name[shared].type == "sequence":
            assignment.ignore(column.name, f"it shares the embedding of the sequence '{shared}'")
        else:
            assignment.item_sequences[shared] = column.name


def assign_roles(
    columns: Sequence[Column],
    assignment: Assignment,
    constancy: Constancy,
    located: Mapping[str, Role],
    *,
    user_id: str,
    item_id: str,
) -> list[str]:
    """Fill in the roles; returns what a person should know of how they were found.

    `located` has the features that stand in a table of users or items.
    """
    notes: list[str] = []
    found: dict[Role, list[str]] = {Role.USER: [], Role.ITEM: [], Role.CONTEXT: []}
    histories = set(assignment.item_sequences.values())
    for column in columns:
        name = column.name
        if column.type == "meta" or name in assignment.ignored or name in histories:
            continue
        if name in assignment.item_sequences:
            _assign_shared(name, assignment, constancy, item_id, notes)
        elif column.copied_from == user_id:
            assignment.roles[name] = Role.USER
        elif column.copied_from == item_id:
            assignment.roles[name] = Role.ITEM
        elif column.source:
            assignment.roles[name] = Role(column.source)
        elif name in located:
            assignment.roles[name] = located[name]
        elif name in constancy.overall:
            assignment.ignore(name, "it has one value in all training rows and so tells nothing")
        else:
            role = (
                Role.USER if name in constancy.per_user else Role.ITEM if name in constancy.per_item else Role.CONTEXT
            )
            assignment.roles[name] = role
            found[role].append(name)
    reasons = {
        Role.USER: "never change for a user",
        Role.ITEM: "never change for an item",
        Role.CONTEXT: "change for users and for items",
    }
    notes += [f"{role.value} features, because they {reasons[role]}: {', '.join(n)}" for role, n in found.items() if n]
    return notes


def _assign_shared(name: str, assignment: Assignment, constancy: Constancy, item_id: str, notes: list[str]) -> None:
    """A feature with a history describes items, unless it never says anything about a candidate."""
    sequence = assignment.item_sequences[name]
    if name in constancy.overall and name != item_id:
        del assignment.item_sequences[name]
        assignment.event_sequences[name] = sequence
        assignment.roles[name] = Role.EVENT
        notes.append(
            f"'{name}' is the same in all training rows, so it tells nothing of candidates: "
            f"it becomes an event feature, seen in the history only ('{sequence}')"
        )
        return
    assignment.roles[name] = Role.ITEM
    notes.append(f"'{name}' is an item feature and '{sequence}' its history, because they share an embedding")
    if name not in constancy.per_item and name != item_id:
        notes.append(f"WARNING: '{name}' changes for some items; the first value of each item counts")
