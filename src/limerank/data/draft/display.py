"""The column that people know items by: a title is shown beside ids, and there is nothing to learn from it."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from limerank.data.draft.column_facts import ColumnFacts, Looks, words_of
from limerank.data.draft.entities import Entities, agreement
from limerank.data.draft.roles import HARDLY_SHARED, NEARLY_UNIQUE, SAME
from limerank.data.draft.words import DISPLAY_ORDER, ITEM_NOUNS


def find_display(
    items_table: Sequence[ColumnFacts] | None, in_events: Sequence[ColumnFacts], entities: Entities
) -> ColumnFacts | None:
    """A text that nearly every item has its own of and that is called a title or a name; the items table goes first."""
    from_table = [facts for facts in items_table or () if _names_things(facts, facts.rows)]
    items = entities.item
    from_events = [
        facts
        for facts in in_events
        if items is not None and _names_things(facts, items.n_unique()) and _is_of_the_item(facts, items)
    ]
    return next(iter([*sorted(from_table, key=_rank), *sorted(from_events, key=_rank)]), None)


def _rank(facts: ColumnFacts) -> tuple[int, bool]:
    """How likely the name is that of an item: `title` before `name`, `product_name` before `brand_name`."""
    words = set(words_of(facts.name))
    position = next((number for number, known in enumerate(DISPLAY_ORDER) if words & known), len(DISPLAY_ORDER))
    return position, _says_more(words)


def _says_more(words: set[str]) -> bool:
    """Whether a name may be that of something else: a brand, an author."""
    return bool(words - ITEM_NOUNS - frozenset().union(*DISPLAY_ORDER))


def _names_things(facts: ColumnFacts, items: int) -> bool:
    is_text = facts.stored == pl.String and facts.looks in (Looks.TEXT, Looks.LIST)
    if not is_text or _rank(facts)[0] == len(DISPLAY_ORDER) or facts.distinct < 2:
        return False
    own = NEARLY_UNIQUE if _says_more(set(words_of(facts.name))) else HARDLY_SHARED
    return facts.distinct >= own * items


def _is_of_the_item(facts: ColumnFacts, items: pl.Series) -> bool:
    same = agreement(items, facts.values)
    return Entities.is_constant(items, facts.values) if same is None else same >= SAME
