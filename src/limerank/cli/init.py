"""`limerank init`: a first description of a log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from limerank.cli.common import JsonOption, OverwriteOption, emit_json, progress_for, say


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(epilog="Example: limerank init --from log.csv.gz --items items.csv --out dataset.yaml")(init)


def init(
    log: Annotated[
        str,
        typer.Option(
            "--from", help="The log: a file, a folder or a quoted pattern, CSV or Parquet.", show_default=False
        ),
    ],
    items: Annotated[str | None, typer.Option("--items", help="A table with one row per item.")] = None,
    users: Annotated[str | None, typer.Option("--users", help="A table with one row per user.")] = None,
    out: Annotated[Path, typer.Option("--out", help="The description to write.")] = Path("dataset.yaml"),
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Look at the columns of a log and write a commented first dataset.yaml."""
    from limerank import files
    from limerank.data.draft.infer import infer
    from limerank.data.draft.yaml_text import feature_values, render
    from limerank.errors import ConflictError, UsageError

    if out.is_dir():
        raise UsageError(f"--out {out}: is a folder; name the file, for example {out / 'dataset.yaml'}")
    if out.exists() and not overwrite:
        raise ConflictError(f"{out} exists already; choose another place or pass --overwrite")
    progress_for(as_json).say(f"looking at {log}")
    draft = infer(log, items, users)
    text = render(draft, out.parent)
    files.write_text(out, text)
    checks = text.count("CHECK:")
    if as_json:
        written = feature_values(draft.features)
        chosen = {"user_id": draft.user, "item_id": draft.item, "time": draft.time, "request_id": draft.request}
        emit_json(
            {
                "description": str(out),
                "todo": list(draft.todo),
                "checks": checks,
                **{key: value.column.name if value.column else None for key, value in chosen.items()},
                "time_unit": draft.time_unit.value if draft.time.column else None,
                "display": draft.display.name if draft.display else None,
                "bad_rows": draft.bad_rows,
                "bad_values": [
                    {"column": odd.column, "rows": odd.count, "first": odd.first, "value": odd.value, "text": odd.text}
                    for odd in draft.oddities
                ],
                "tasks": [label.name for label in draft.labels[:1]],
                "features": [values for values, decision in written if decision.role is not None],
                "left_out": {d.facts.name: d.reason for _, d in written if d.role is None},
            }
        )
        return
    say(f"wrote {out}: {len([d for d in draft.features if d.role])} features, {checks} guesses to check")
    for odd in draft.oddities:
        say(f"CHECK: '{odd.column}' {odd.text}")
    if draft.bad_rows:
        say(f"correct such values, or take away the # before on_bad_rows: drop in {out} to leave out their rows")
    for key in draft.todo:
        say(f"TODO: no column was found for '{key}'; fill it in by hand, the file says how")
    say(f"next: read {out} (look for CHECK and TODO), then: limerank prepare table --raw {out} --out datasets/mine")
