"""A first description of a log nobody has described yet: look at a sample, decide, and say why and how sure.

Nothing is guessed in silence: a doubtful decision carries a text to check, and what was not found stays open.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import polars as pl

from limerank.data.draft.column_facts import ColumnFacts, Looks, facts_of, null_words_of, words_of
from limerank.data.draft.decisions import Chosen, Decision, Draft
from limerank.data.draft.display import find_display
from limerank.data.draft.entities import Entities
from limerank.data.draft.odd_rows import facts_of_table_column, odd_rows
from limerank.data.draft.refused import refused_times, with_oddities
from limerank.data.draft.roles import (
    agreements,
    find_labels,
    id_candidates,
    is_time,
    role_in_events,
    surely_described,
    time_candidates,
    useless,
    with_kind,
)
from limerank.data.draft.sample import Sample, open_tables, paths_of, sample_of
from limerank.data.draft.words import ITEM_NOUNS, REQUEST_WORDS, USER_NOUNS
from limerank.data.raw.columns import times
from limerank.data.raw.location import Location
from limerank.data.sources.table.files import Dialect, load
from limerank.data.sources.table.rows import row_names
from limerank.errors import DataError
from limerank.schema import Kind, Role, TimeUnit

LEAST_ROWS_PER_REQUEST = 1.2
LARGE_CATALOG = 1_000_000
MANY_NEW_USERS = 0.5


@dataclass(frozen=True)
class _Given:
    """What there is to look at."""

    paths: dict[str, str]
    dialect: Dialect
    sample: Sample
    tables: dict[str, tuple[ColumnFacts, ...]]


def infer(log: str, items: str | None = None, users: str | None = None) -> Draft:
    """Look at a log (file, folder or pattern) and the tables beside it."""
    paths = paths_of(log, items, users)
    files, dialect = open_tables(paths)
    sample = sample_of(files["events"])
    frames = {name: load(its_files) for name, its_files in files.items() if name != "events"}
    null_words = tuple(sorted({word for frame in (sample.rows, *frames.values()) for word in null_words_of(frame)}))
    tables = {
        name: tuple(facts_of_table_column(c, null_words, row_names(files[name])) for c in frame.iter_columns())
        for name, frame in frames.items()
    }
    given = _Given(paths, Dialect(dialect.separator, dialect.quote, null_words), sample, tables)

    rows = sample.rows.filter(~odd_rows(sample.rows, null_words))
    draft = _draft(given, rows)
    timeless = refused_times(draft, rows)
    if timeless is not None:
        draft = _draft(given, rows.filter(~timeless))
    described = {column for frame in frames.values() for column in frame.columns}
    return with_oddities(draft, sample, described)


def _draft(given: _Given, rows: pl.DataFrame) -> Draft:
    """Decide everything from the rows of the sample that can be read."""
    null_words = given.dialect.null_values
    columns = [facts_of(column, null_words) for column in rows.iter_columns()]
    nameless = [facts for facts in columns if not facts.name]
    columns = [facts for facts in columns if facts.name]
    beside = {name: list(table) for name, table in given.tables.items()}

    user = _choose_id(columns, USER_NOUNS, beside.get("users"))
    item = _choose_id([c for c in columns if c is not user.column], ITEM_NOUNS, beside.get("items"))
    unfit = _unfit(beside, {"users": user.column, "items": item.column})
    beside = {name: facts for name, facts in beside.items() if name not in unfit}
    rest = [facts for facts in columns if facts is not user.column and facts is not item.column]
    time, unit, known_times = _choose_time(rest)
    rest = [facts for facts in rest if facts is not time.column]
    entities = Entities.of(_values(item), _values(user), known_times)
    request = _choose_request(rest, entities)
    if request.column is not None:
        rest = [facts for facts in rest if facts is not request.column]
        entities = entities.with_request(request.column.values)
    labels = find_labels(rest, entities)
    label_names = {label.facts.name for label in labels}
    display = find_display(beside.get("items"), [c for c in rest if c.name not in label_names], entities)
    features = [
        *_the_id_itself(item.column, beside.get("items")),
        *_beside(beside.get("items"), item.column, Role.ITEM),
        *_in_events([*rest, *nameless], entities, label_names, beside),
        *_beside(beside.get("users"), user.column, Role.USER),
    ]
    shown = "what people call an item, so it is the display"
    return Draft(
        tables={name: path for name, path in given.paths.items() if name not in unfit},
        dialect=given.dialect,
        sample=given.sample.said,
        whole=given.sample.whole,
        user=user,
        item=item,
        time=time,
        time_unit=unit,
        request=request,
        features=tuple(d.left_out(shown) if d.facts is display else d for d in features),
        labels=tuple(labels),
        split_per_user=_why_per_user(entities),
        unfit=unfit,
        display=display,
    )


def _choose_id(columns: Sequence[ColumnFacts], nouns: Collection[str], table: list[ColumnFacts] | None) -> Chosen:
    """By name, or as the one column that the table beside the log is keyed by."""
    candidates = id_candidates(columns, nouns)
    if table is not None:
        keys = {facts.name for facts in table if facts.distinct == facts.rows}
        in_both = [facts for facts in candidates if facts.name in keys]
        in_both = in_both or [facts for facts in columns if facts.name in keys and facts.distinct > 1]
        candidates = in_both or candidates
    if not candidates:
        return Chosen()
    best = candidates[0]
    check = ""
    if best.written_as_floats:
        check = "ids written as 1.0, which prepare refuses; write them as whole numbers"
    elif len(candidates) > 1:
        check = f"or is it '{candidates[1].name}'?"
    return Chosen(best, best.summary(), check)


def _unfit(beside: dict[str, list[ColumnFacts]], keys: dict[str, ColumnFacts | None]) -> dict[str, str]:
    """Tables that cannot be joined with the log."""
    unfit = {}
    for name, table in beside.items():
        key = keys[name]
        column = next((facts for facts in table if key is not None and facts.name == key.name), None)
        if key is None:
            unfit[name] = f"it is not known which column of the log identifies {name}"
        elif column is None:
            unfit[name] = f"it has no column '{key.name}' as the log has; rename the one it identifies {name} by"
        elif column.distinct < column.rows:
            unfit[name] = f"some '{key.name}' stand in several of its rows or are empty; keep one row of each"
        elif not set(key.values.drop_nulls().cast(pl.String)) & set(column.values.cast(pl.String)):
            unfit[name] = f"no '{key.name}' of the log is in it; write ids the same way in both"
    return unfit


def _choose_time(columns: Sequence[ColumnFacts]) -> tuple[Chosen, TimeUnit, pl.Series | None]:
    candidates = time_candidates(columns)
    if not candidates:
        return Chosen(), TimeUnit.MILLISECONDS, None
    facts, unit, check = candidates[0]
    try:
        known_times = times(facts.values.drop_nulls(), unit, Location("sample"))
    except DataError as refused:
        return Chosen(facts, facts.summary(), f"prepare will not read it: {refused}"), unit, None
    first, last = (datetime.fromtimestamp(int(t) / 1000, UTC) for t in (known_times.min(), known_times.max()))  # type: ignore[arg-type]
    comment = f"{first:%Y-%m-%d} to {last:%Y-%m-%d}, e.g. {', '.join(facts.examples)}"
    return Chosen(facts, comment, check), unit, None if facts.nulls else known_times


def _choose_request(columns: Sequence[ColumnFacts], entities: Entities) -> Chosen:
    """A column whose values come back, always with one user and one time."""
    if entities.request is None:
        return Chosen()
    found = []
    for facts in columns:
        repeats = facts.rows / max(facts.distinct, 1) >= LEAST_ROWS_PER_REQUEST and facts.distinct > 1
        if repeats and not facts.nulls and facts.looks in (Looks.INTEGER, Looks.TEXT) and not is_time(facts):
            named = bool(set(words_of(facts.name)) & REQUEST_WORDS)
            if entities.is_constant(facts.values, entities.request):
                found.append((not named, facts))
    if not found:
        return Chosen()
    unnamed, best = min(found, key=lambda entry: entry[0])
    check = "always one user and one time, but the name does not say what it is" if unnamed else ""
    return Chosen(best, f"{best.summary()}; always one user and one time", check)


def _the_id_itself(item: ColumnFacts | None, table: list[ColumnFacts] | None) -> list[Decision]:
    if item is None:
        return []
    known = max(item.distinct, table[0].rows if table else 0)
    if known < LARGE_CATALOG:
        return [Decision(item, "the id itself", Role.ITEM)]
    return [
        Decision(item, "the id itself; hashed, because there are very many", Role.ITEM, Kind.HASHED, {"buckets": 2**20})
    ]


def _beside(table: list[ColumnFacts] | None, key: ColumnFacts | None, role: Role) -> list[Decision]:
    """What the columns of an items or users table become."""
    decisions = []
    for facts in table or ():
        if key is None or facts.name != key.name:
            why_not = useless(facts, None)
            decision = Decision(facts, f"from the {role.value}s table", role)
            decisions.append(decision.left_out(why_not) if why_not else with_kind(decision, facts.rows))
    return decisions


def _in_events(
    columns: Sequence[ColumnFacts], entities: Entities, label_names: set[str], beside: dict[str, list[ColumnFacts]]
) -> list[Decision]:
    decisions = []
    elsewhere = {facts.name: name for name, table in beside.items() for facts in table}
    for facts in columns:
        if facts.name in elsewhere and facts.name not in label_names:
            role = Role.ITEM if elsewhere[facts.name] == "items" else Role.USER
            taken = f"taken from the {elsewhere[facts.name]} table instead"
            decisions.append(Decision(facts, taken, likely=role))
            continue
        why_not = useless(facts, entities.time)
        if why_not:
            likely = surely_described(agreements(facts, entities)) or Role.EVENT
            decisions.append(Decision(facts, why_not, likely=likely))
            continue
        decision = role_in_events(facts, entities, is_label=facts.name in label_names)
        decisions.append(with_kind(decision, entities.count(decision.role)))
    order = {Role.ITEM: 0, Role.EVENT: 1, Role.USER: 2, Role.CONTEXT: 3, None: 4}
    return sorted(decisions, key=lambda decision: order[decision.role])


def _values(chosen: Chosen) -> pl.Series | None:
    return None if chosen.column is None else chosen.column.values


def _why_per_user(entities: Entities) -> str:
    """Users that first appear at the end of the log make a poor test set for rankers that read histories."""
    if entities.user is None or entities.time is None or len(entities.user) < 100:
        return ""
    frame = pl.DataFrame({"user": entities.user, "time": entities.time}).drop_nulls()
    start = frame["time"].quantile(0.9)
    seen = frame.filter(pl.col("time") <= start)["user"].unique()
    end = frame.filter(pl.col("time") > start)["user"]
    fraction = (~end.is_in(seen.implode())).sum() / max(len(end), 1)
    if fraction <= MANY_NEW_USERS:
        return ""
    return f"in the last 10 % by time, {fraction:.0%} of the rows belong to users who were not there before"
