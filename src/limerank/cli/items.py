"""Items as people know them: the display column of the log beside the ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from limerank.serve.catalog import Catalog

MOST_CHARACTERS = 60


class ItemNames:
    """What a catalog calls its items; nothing where its log named no display column."""

    def __init__(self, catalog: Catalog) -> None:
        self.column = catalog.bundle.manifest.display
        self._catalog = catalog

    def of(self, items: Sequence[str]) -> list[str | None]:
        """The display of each item, None where there is none."""
        return self._catalog.displays_of(items)

    def facts(self, items: Sequence[str]) -> list[dict[str, Any]]:
        """`{"display": ...}` of each item for JSON; empty without a display column."""
        return [{} if self.column is None else {"display": display} for display in self.of(items)]

    def columns(self) -> list[str]:
        """The column of a table that shows displays, if there is one."""
        return [] if self.column is None else [self.column]

    def cells(self, items: Sequence[str]) -> list[list[str]]:
        """What stands in that column for each item."""
        return [[] if self.column is None else [_short(display or "")] for display in self.of(items)]

    def joined(self, items: Sequence[str]) -> list[str]:
        """Ids and displays in one text each: `318 The Shawshank Redemption (1994)`."""
        shown = zip(items, self.of(items), strict=True)
        return [f"{item} {_short(display)}" if display else item for item, display in shown]


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MOST_CHARACTERS else line[: MOST_CHARACTERS - 3] + "..."
