"""Which column plays which part in a log: the ids, the time, the labels, and what the others describe.

Names give the first hint, the values the proof: what is the same in all rows of an item describes the item, and so for
users and requests.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import polars as pl

from limerank.data.draft.column_facts import ColumnFacts, Looks, epoch_unit, words_of
from limerank.data.draft.decisions import Decision, Label
from limerank.data.draft.entities import LEAST_PAIRS, Entities, agreement
from limerank.data.draft.words import (
    AMOUNT_WORDS,
    CONTEXT_WORDS,
    LABEL_ORDER,
    MODEL_WORDS,
    OUTCOME_WORDS,
    RATING_WORDS,
    TIME_NAMES,
    TIME_WORDS,
)
from limerank.schema import Kind, Role, TimeUnit

SAME = 0.98
MOSTLY_SAME = 0.5
MANY_CATEGORIES = 20_000
NEARLY_UNIQUE = 0.9
HARDLY_SHARED = 0.5
FOLLOWS_TIME = 0.99


def id_candidates(columns: Sequence[ColumnFacts], nouns: Collection[str]) -> list[ColumnFacts]:
    """Columns whose name says that they identify such a thing, the surest first."""
    scored: list[tuple[int, int, ColumnFacts]] = []
    for facts in columns:
        words = words_of(facts.name)
        joined = "".join(words)
        score = 0
        if joined in {f"{noun}id" for noun in nouns}:
            score = 3
        elif joined in nouns and len(joined) > 1:
            score = 2
        elif words and words[-1] in ("id", "idx", "index") and set(words) & set(nouns):
            score = 1
        if score and facts.distinct > 1 and facts.looks in (Looks.INTEGER, Looks.TEXT, Looks.FLAG):
            scored.append((-score, len(scored), facts))
    return [facts for _, _, facts in sorted(scored, key=lambda entry: entry[:2])]


def time_candidates(columns: Sequence[ColumnFacts]) -> list[tuple[ColumnFacts, TimeUnit, str]]:
    """Columns that can be the time of an event, the surest first: with their unit and what to check."""
    found = []
    for facts in columns:
        words = set(words_of(facts.name))
        exact = "".join(words_of(facts.name)) in TIME_NAMES
        named = exact or bool(words & TIME_WORDS)
        unit = epoch_unit(facts, nearly=named)
        if facts.looks is Looks.TIME:
            stored_as_text = facts.stored == pl.String
            found.append((4 + named + exact, facts, TimeUnit.ISO if stored_as_text else TimeUnit.MILLISECONDS, ""))
        elif unit is not None and facts.distinct > 1:
            check = "" if named else "the numbers are as large as times, but the name does not say so"
            found.append((3 + named + exact if named else 1, facts, unit, check))
        elif exact and facts.looks in (Looks.INTEGER, Looks.NUMBER) and (facts.low or 0) >= 0:
            found.append(
                (2, facts, TimeUnit.SECONDS, "too small for times since 1970; taken as seconds, say what they are")
            )
    order = sorted(range(len(found)), key=lambda n: (-found[n][0], n))
    return [found[n][1:] for n in order]


def find_labels(columns: Sequence[ColumnFacts], entities: Entities) -> list[Label]:
    """Columns that can be learned, the likeliest first."""
    found = []
    for facts in columns:
        words = set(words_of(facts.name))
        rank = next((n for n, known in enumerate(LABEL_ORDER) if words & set(known)), len(LABEL_ORDER))
        named = rank < len(LABEL_ORDER) or bool(words & OUTCOME_WORDS)
        numbers = facts.values.cast(pl.Float64, strict=False) if facts.looks in (Looks.FLAG, Looks.INTEGER) else None
        if facts.looks is Looks.FLAG and facts.distinct == 2 and numbers is not None:
            if not named and _describes_something(facts, entities):
                continue
            is_named = named or words & {"is", "has"}
            check = "" if is_named else "0/1, but the name does not say what it means"
            found.append(Label(facts, None, float(numbers.mean() or 0), rank + (0 if is_named else 1), check))  # type: ignore[arg-type]
        elif is_rating(facts, words):
            threshold, rate = _threshold(facts)
            check = "from which value on is it a success?"
            found.append(Label(facts, threshold, rate, len(LABEL_ORDER) + 2, check))
    return sorted(found, key=lambda label: label.order)


def _describes_something(facts: ColumnFacts, entities: Entities) -> bool:
    """Whether a flag belongs to the item, the user or the request rather than to the row."""
    keys = (entities.item, entities.user)
    if any(key is not None and (agreement(key, facts.values) or 0) >= MOSTLY_SAME for key in keys):
        return True
    return entities.request is not None and (agreement(entities.request, facts.values) or 0) >= SAME


def agreements(facts: ColumnFacts, entities: Entities) -> dict[Role, float | None]:
    """How much of the same a column is in all rows of an item and of a user."""
    keys = ((Role.ITEM, entities.item), (Role.USER, entities.user))
    return {role: agreement(key, facts.values) if key is not None else None for role, key in keys}


def surely_described(agree: dict[Role, float | None]) -> Role | None:
    """Whether a column describes the item or the user, if that is certain."""
    return next((role for role, value in agree.items() if value is not None and value >= SAME), None)


def role_in_events(facts: ColumnFacts, entities: Entities, *, is_label: bool) -> Decision:
    """What a column of the events describes."""
    if is_label:
        return Decision(facts, "a label, so visible in the history only", Role.EVENT)
    agree = agreements(facts, entities)
    sure = surely_described(agree)
    if is_outcome(facts):
        if sure is None:
            return Decision(facts, "known only afterwards, so visible in the history only", Role.EVENT)
        check = "sounds like an outcome; if it was counted over the whole log, it tells the future: remove it"
        return Decision(facts, f"constant per {sure.value}", sure, check=check)
    if sure is not None:
        exact = (agree[sure] or 0) > 1 - 1e-9
        check = "" if exact else f"not quite the same in all rows of one {sure.value}; its first row counts"
        return Decision(facts, f"constant per {sure.value}", sure, check=check)
    one_per_request = entities.request is not None and entities.is_constant(entities.request, facts.values)
    several_rows = entities.request is not None and agreement(entities.request, facts.values) is not None
    if one_per_request and several_rows:
        return Decision(facts, "constant per request", Role.CONTEXT)
    per_item = agree[Role.ITEM]
    if per_item is not None and per_item >= MOSTLY_SAME:
        check = "the same in most rows of an item, not in all; an item's first row counts"
        return Decision(facts, "", Role.ITEM, check=check)
    sounds_known = bool(set(words_of(facts.name)) & CONTEXT_WORDS)
    if one_per_request and sounds_known:
        check = "known before the item is shown? requests of one row cannot tell"
        return Decision(facts, "the name sounds like context", Role.CONTEXT, check=check)
    check = "varies from row to row, so taken as known only afterwards (history only)"
    if one_per_request:
        check += "; role: context if known before"
    elif sounds_known:
        check = "sounds like context, but differs within some requests, which context must not; so history only"
    return Decision(facts, "", Role.EVENT, check=check)


def is_rating(facts: ColumnFacts, words: set[str]) -> bool:
    """Whether a column is a grade that people gave, by its name and its few values."""
    if facts.looks not in (Looks.INTEGER, Looks.NUMBER) or facts.low is None or facts.high is None:
        return False
    values = facts.values.drop_nulls().cast(pl.Float64)
    halves = bool((values * 2 == (values * 2).floor()).all())
    opposite = set(values.unique().to_list()) == {-1.0, 1.0}
    named = bool(words & (RATING_WORDS | OUTCOME_WORDS))
    return named and halves and (opposite or (3 <= facts.distinct <= 21 and facts.low >= -10 and facts.high <= 10))


def _threshold(facts: ColumnFacts) -> tuple[float, float]:
    """The value that splits a rating most evenly."""
    values = facts.values.drop_nulls().cast(pl.Float64)
    steps = values.unique().sort().to_list()[1:]
    rates = {step: float((values >= step).mean() or 0) for step in steps}
    best = min(steps, key=lambda step: (abs(rates[step] - 0.5), step))
    return best, rates[best]


def is_outcome(facts: ColumnFacts) -> bool:
    """Whether the name says that a column is only known after the item was shown."""
    words = words_of(facts.name)
    return bool(set(words) & OUTCOME_WORDS) or (facts.looks is Looks.FLAG and words[:1] == ["is"])


def is_time(facts: ColumnFacts) -> bool:
    """Whether a column is a time by its type, or by its name and the size of its numbers."""
    return facts.looks is Looks.TIME or bool(set(words_of(facts.name)) & TIME_WORDS and epoch_unit(facts, nearly=True))


def useless(facts: ColumnFacts, time: pl.Series | None) -> str:
    """Why a column of the events cannot be a feature of any role, or an empty text."""
    if not facts.name:
        return "has no name; give it one in the header if it means something"
    if facts.looks is Looks.EMPTY:
        return "empty"
    if facts.looks is Looks.OTHER:
        return f"its type {facts.stored} cannot be read"
    if facts.values.dtype.is_float() and not facts.values.drop_nulls().is_finite().all():
        return "holds NaN or infinite values, which prepare refuses; leave missing values empty, then take it in"
    if facts.distinct == 1:
        return "the same value in every row"
    if is_time(facts):
        return "a time; only one column is the time of the event"
    if set(words_of(facts.name)) & MODEL_WORDS and facts.looks is Looks.NUMBER:
        return "looks like a probability or a model's output, not like something observed"
    if facts.distinct == facts.rows and facts.looks in (Looks.INTEGER, Looks.TEXT) and facts.rows > LEAST_PAIRS:
        return "a different value in every row"
    if time is not None and facts.looks in (Looks.INTEGER, Looks.NUMBER, Looks.TEXT) and _follows(facts.values, time):
        return "only grows with time, so the values of the test part are never seen in training"
    return ""


def _follows(values: pl.Series, time: pl.Series) -> bool:
    """Whether later rows have larger values: days, counters, second clocks."""
    frame = pl.DataFrame({"time": time, "value": values}).drop_nulls().sort("time", "value")
    if frame.height <= LEAST_PAIRS or frame["time"].n_unique() < 3:
        return False
    if frame["value"].is_sorted():
        return True
    return float(frame.select(pl.corr(pl.col("time").rank(), pl.col("value").rank())).item() or 0) >= FOLLOWS_TIME


def with_kind(decision: Decision, entities: int) -> Decision:
    """Choose how the values of a feature become numbers; `entities` is how many items or users there are."""
    facts, role = decision.facts, decision.role
    words = set(words_of(facts.name))
    options: dict[str, Any] = dict(decision.options)
    check = decision.check
    if facts.looks in (Looks.LIST, Looks.VECTOR):
        if role not in (Role.ITEM, Role.USER):
            return decision.left_out("lists can describe items and users only")
        if facts.separator not in (None, "|"):
            options["separator"] = facts.separator
        kind = Kind.VECTOR if facts.looks is Looks.VECTOR else Kind.MULTI_VALUED
    elif facts.stored.is_float() or (facts.looks is Looks.NUMBER):
        kind = Kind.CONTINUOUS
        if facts.looks in (Looks.FLAG, Looks.INTEGER) and not words & AMOUNT_WORDS and facts.distinct <= 50:
            check = check or "stored as fractions; if these are categories, store them as integers or text"
    elif facts.looks is Looks.INTEGER and words & AMOUNT_WORDS and facts.distinct > 12:
        kind = Kind.CONTINUOUS
    elif entities > LEAST_PAIRS and facts.distinct >= NEARLY_UNIQUE * entities and not words & AMOUNT_WORDS:
        what = role.value if role is not None else "row"
        return decision.left_out(f"nearly every {what} has its own, so there is nothing to learn from it")
    elif facts.distinct >= MANY_CATEGORIES:
        kind = Kind.HASHED
        options["buckets"] = min(2 ** (2 * facts.distinct).bit_length(), 2**22)
    else:
        kind = Kind.CATEGORICAL
        if role in (Role.ITEM, Role.USER) and entities > LEAST_PAIRS and facts.distinct >= HARDLY_SHARED * entities:
            check = check or f"hardly any two {role.value}s share a value; is there something to learn from it?"
        elif facts.looks is Looks.INTEGER and facts.distinct > 100 and not words & {"id", "code", "zip"}:
            check = check or "whole numbers taken as names; if their size means something, use kind: continuous"
    if kind is Kind.CONTINUOUS and facts.except_for:  # the draft must be one that prepare can read
        kind = Kind.CATEGORICAL
        check = (
            f"looks like numbers, except {facts.except_for}; correct it or leave it empty, then use kind: continuous"
        )
    return Decision(facts, decision.reason, role, kind, options, check)
