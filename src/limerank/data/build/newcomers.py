"""Items and users that new events bring, and whether anything describes them."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from limerank.data.build.dictionary import Dictionary
from limerank.data.build.entities import Table
from limerank.data.raw.log import RawLog
from limerank.schema import Role

IDS_SHOWN = 5
NAMES = {Role.ITEM: "items", Role.USER: "users"}


@dataclass(frozen=True)
class Newcomers:
    """The ids of one role that a dataset does not have, and those among them that lack a description."""

    what: str
    """`items` or `users`: what they are called, and the option that describes them."""
    ids: pl.Series
    undescribed: pl.Series
    untold: tuple[str, ...]
    """The columns that neither the table nor the events have."""
    table: str | None
    """The file that was given to describe them."""
    in_table: int
    """How many of the ids it has."""

    @classmethod
    def of(cls, role: Role, raw: RawLog, known: pl.Series, seen: Dictionary, table: Table) -> Newcomers:
        """Those that the events or the table name; a dataset that drops rare ones takes no new ones at all.

        A feature is told by the table if it has the column, else by the events if they have it.
        """
        what, schema = NAMES[role], raw.schema
        given = raw.items if role is Role.ITEM else raw.users
        minimum = schema.minimum_item_events if role is Role.ITEM else schema.minimum_user_events
        found = pl.concat([seen.ordered()[0].alias("id"), table.ids.alias("id")]).unique()
        ids = found.filter(~found.is_in(known.implode())).sort() if minimum == 1 else found.clear()
        in_events = set.intersection(*(set(file.columns) for file in raw.events))
        columns = {f.source_column for f in schema.with_role(role)} - {table.id_column}
        by_table = columns & set(given.columns if given is not None else ())
        untold = columns - by_table - in_events
        rows = given[table.id_column].cast(pl.String) if given is not None else pl.Series([], dtype=pl.String)
        outside = ids.filter(~ids.is_in(rows.implode()))
        undescribed = ids if untold else outside if by_table else ids.clear()
        name = raw.names[what] if given is not None else None
        return cls(what, ids, undescribed, tuple(sorted(untold)), name, len(ids) - len(outside))

    @property
    def examples(self) -> list[str]:
        """Some of the undescribed ids."""
        return self.undescribed.head(IDS_SHOWN).to_list()

    @property
    def complaint(self) -> str:
        """Who lacks a description, and of what; empty if nobody does."""
        count = len(self.undescribed)
        if not count:
            return ""
        ids = ", ".join(f"'{one}'" for one in self.examples) + (" ..." if count > IDS_SHOWN else "")
        columns = ", ".join(f"'{one}'" for one in self.untold)
        if self.table is None:
            why = f"nothing tells {columns}"
        elif not self.in_table:
            why = f"{self.table} has no new {self.what}: are their ids written alike?"
        elif count < len(self.ids):
            why = f"{self.table} has only {self.in_table:,} of them"
        else:
            why = f"neither {self.table} nor the events have {columns}"
        return f"{count:,} of {len(self.ids):,} new {self.what} without a description ({ids}; {why})"

    @property
    def note(self) -> str:
        """A table that was of no use, where nobody lacks a description; empty otherwise."""
        if self.table is None or self.in_table or self.complaint:
            return ""
        return f"{self.table}: has no new {self.what}; {self.what} that the dataset knows keep their description"
