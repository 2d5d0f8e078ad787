"""A draft as the commented text of a `dataset.yaml`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

from limerank.data.draft.decisions import Chosen, Decision, Draft, Label, safe_name
from limerank.schema import Kind, TimeUnit

COMMENT_COLUMN = 56

TODO = {
    "user_id": "the column that says who; no name looks like it",
    "item_id": "the column that says what was shown; no name looks like it",
    "time": "the column that says when: numbers since 1970, or texts such as 2026-01-31T12:00:00Z; none looks like it",
    "tasks": "the column to predict, 0/1 or a rating; none looks like it. "
    "Write for example: [{name: click, column: my_column}] or add positive_from: 4",
}


def render(draft: Draft, folder: Path) -> str:
    """The text of a description that will stand in `folder`; valid as it stands unless the draft has a `todo`."""
    lines = [
        f"# A first description of {draft.tables['events']}, written by `limerank init`.",
        f"# It looked at {draft.sample}. Read every line: CHECK marks a guess, and columns that are",
        "# left out are commented out with the reason. All keys: docs/how-to/bring-your-own-log.md",
        "",
        *_tables(draft, folder),
        "",
        *_keys(draft),
        "",
        "# item: candidates and history; event: history only; user, context: the user side.",
        *_features(draft),
        "",
        "# What to predict. The first is the main one; each more is one more output of the ranker.",
        *_tasks(draft.labels),
        "",
        *_split(draft),
    ]
    return "\n".join(lines) + "\n"


def feature_values(decisions: tuple[Decision, ...]) -> list[tuple[dict[str, Any], Decision]]:
    """The features as they are written, each name once, beside what was decided."""
    taken: set[str] = set()
    written = []
    for decision in decisions:
        column = decision.facts.name
        name = safe_name(column)
        if name in taken and decision.role is not None:
            name = safe_name(f"{decision.role.value}_{name}")
        while name in taken:
            name += "_2"
        if decision.role is not None:
            taken.add(name)
        values: dict[str, Any] = {"name": name}
        if decision.role is not None:
            values["role"] = decision.role.value
        if name != column:
            values["column"] = column
        if decision.kind is not Kind.CATEGORICAL:
            values["kind"] = decision.kind.value
        written.append((values | decision.options, decision))
    return written


def _tables(draft: Draft, folder: Path) -> list[str]:
    lines = ["tables:"]
    for name, path in draft.tables.items():
        lines.append(f"  {name}: {_scalar(_relative(path, folder))}")
    for name in ("items", "users"):
        if name in draft.unfit:
            lines.append(_with(f"  {name}: []", f"CHECK: the table that was given does not fit: {draft.unfit[name]}"))
        elif name not in draft.tables:
            lines.append(_with(f"  {name}: []", f"none was given (--{name})"))
    dialect = draft.dialect
    if dialect.separator is not None:
        lines.append(f'  separator: "{dialect.separator}"'.replace("\t", "\\t"))
    if dialect.null_values:
        values = f"  null_values: {_flow(list(dialect.null_values))}"
        lines.append(_with(values, "CHECK: found among numbers; they mean 'missing' in every column then"))
    return lines


def _keys(draft: Draft) -> list[str]:
    lines = [
        _key("user_id", draft.user),
        _key("item_id", draft.item),
        _key("time", draft.time),
    ]
    if draft.time.column is not None:
        what = "texts" if draft.time_unit is TimeUnit.ISO else "from the size of the numbers"
        if not draft.time.column.stored.is_numeric() and draft.time_unit is not TimeUnit.ISO:
            what = what if draft.time.column.low is not None else "the column holds times, so this does not matter"
        lines.append(_with(f"time_unit: {draft.time_unit.value}", what))
    if draft.request.column is not None:
        lines.append(_key("request_id", draft.request))
    else:
        lines.append("# request_id: none found, so rows with the same user and the same time are one request")
    if draft.display is not None:
        shown = f"what people call an item: shown beside ids, never a feature; {draft.display.summary()}"
        lines.append(_with(f"display: {_scalar(draft.display.name)}", shown))
    if draft.bad_rows:
        found = f"found {draft.bad_rows:,} in {draft.sample}"
        remedy = f"CHECK: take away the first # to leave out rows that cannot be read and set them aside; {found}"
        lines.append(_with("# on_bad_rows: drop", remedy))
    return lines


def _key(key: str, chosen: Chosen) -> str:
    if chosen.column is None:
        return f"# {key}:  # TODO: {TODO[key]}"
    check = f"CHECK: {chosen.check}; " if chosen.check else ""
    return _with(f"{key}: {_scalar(chosen.column.name)}", check + chosen.comment)


def _features(draft: Draft) -> list[str]:
    written = feature_values(draft.features)
    used = [entry for entry in written if entry[1].role is not None]
    lines = ["features:" if used else "features: []  # TODO: at least one feature of the item"]
    for values, decision in used:
        check = f"CHECK: {decision.check}; " if decision.check else ""
        reason = f"; {decision.reason}" if decision.reason else ""
        lines.append(_with(f"  - {_flow(values)}", f"{check}{decision.facts.summary()}{reason}"))
    for values, decision in written:
        if decision.role is None:
            shown = f" ({decision.facts.summary()})" if decision.facts.examples else ""
            as_seen = "" if draft.whole else ", as far as the sample goes"
            likely = {"name": values.pop("name"), "role": decision.likely.value, **values}
            lines.append(_with(f"  # - {_flow(likely)}", f"left out{as_seen}: {decision.reason}{shown}"))
    return lines


def _tasks(labels: tuple[Label, ...]) -> list[str]:
    if not labels:
        return [f"tasks: []  # TODO: {TODO['tasks']}"]
    lines = ["tasks:"]
    for number, label in enumerate(labels):
        values: dict[str, Any] = {"name": label.name}
        if label.name != label.facts.name:
            values["column"] = label.facts.name
        if label.positive_from is not None:
            whole = label.positive_from == int(label.positive_from)
            values["positive_from"] = int(label.positive_from) if whole else label.positive_from
        check = f"CHECK: {label.check}; " if label.check else ""
        rate = f"{check}{label.positive_rate:.1%} positive"
        if label.missing == "skip":
            values["missing"] = "skip"
            facts = label.facts
            rate += f" where it is known; empty in {facts.nulls / facts.rows:.1%} of rows, which do not train this task"
        if number == 0:
            lines.append(_with(f"  - {_flow(values)}", rate))
        else:
            lines.append(_with(f"  # - {_flow(values)}", f"{rate}; take away the first # to learn it too"))
    return lines


def _split(draft: Draft) -> list[str]:
    if draft.split_per_user:
        return [
            "# Each user's last events are the test part, the ones before them the validation part.",
            _with("split: {protocol: last_fraction}", f"CHECK: not by time, because {draft.split_per_user}"),
        ]
    return [
        "# The end of the log by time is the test part, the part before it the validation part.",
        "split: {protocol: global_time, validation_fraction: 0.1, test_fraction: 0.1}",
    ]


def _with(line: str, comment: str) -> str:
    return f"{line:<{COMMENT_COLUMN}}  # {_comment(comment)}"


def _comment(text: str) -> str:
    return " ".join(text.split())


def _flow(value: Any) -> str:
    """A value on one line."""
    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**9)
    return text.strip()


def _scalar(value: str) -> str:
    return _flow([value])[1:-1]


def _relative(path: str, folder: Path) -> str:
    """The path as seen from the description's folder; an absolute one stays as it is unless it is inside."""
    target = Path(path)
    if target.is_absolute():
        home = folder.absolute()
        return target.relative_to(home).as_posix() if target.is_relative_to(home) else target.as_posix()
    return Path(os.path.relpath(target, folder)).as_posix()
