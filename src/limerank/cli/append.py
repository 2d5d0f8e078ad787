"""`limerank append`: later events, a rehearsal of that, or the last ones taken back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from limerank.cli.common import JsonOption, emit_json, progress_for, say
from limerank.errors import UsageError, if_interrupted

if TYPE_CHECKING:
    from limerank.data.build.append import Addition
    from limerank.data.store.dataset import StoredDataset

COUNTED = ("events", "requests", "items", "users")


def append(
    dataset: Annotated[Path, typer.Argument(help="A prepared dataset.")],
    events: Annotated[
        list[Path] | None,
        typer.Option("--events", help="File or folder with new events, written like the old. Repeatable."),
    ] = None,
    items: Annotated[Path | None, typer.Option(help="Table that describes new items.")] = None,
    users: Annotated[Path | None, typer.Option(help="Table that describes new users.")] = None,
    allow_undescribed: Annotated[
        bool, typer.Option("--allow-undescribed", help="Take in new items and users that nothing describes.")
    ] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Take the last append back; instead of --events.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything and say what would happen; change nothing.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Add later events to a dataset without rebuilding it, or take the last ones back."""
    if undo:
        if events or items or users or allow_undescribed:
            raise UsageError("--undo takes the last append back and adds nothing; pass it alone, or leave it out")
        _undo(dataset, dry_run, as_json)
    elif not events:
        raise UsageError("pass --events FILE to add events, or --undo to take the last append back")
    else:
        _append(dataset, events, items, users, allow_undescribed, dry_run, as_json)


def _append(
    dataset: Path,
    events: list[Path],
    items: Path | None,
    users: Path | None,
    allow_undescribed: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    import os
    import time

    from limerank.api.dataset import Dataset

    started = time.perf_counter()
    before = Dataset.open(dataset)
    with if_interrupted(f"interrupted; {dataset} has all of the new events or none: limerank describe {dataset} tells"):
        addition = before.add(
            events, items=items, users=users, allow_undescribed=allow_undescribed, dry_run=dry_run, quiet=as_json
        )
    if dry_run and not os.access(dataset, os.W_OK):
        addition.notes.append(f"{dataset}: you may not write here, so appending itself would be refused")
    facts = _facts(dataset, addition, before, Dataset.open(dataset), dry_run)
    facts["seconds"] = round(time.perf_counter() - started, 2)
    if as_json:
        emit_json(facts)
        return
    for note in facts["notes"]:
        progress_for(as_json).say(f"note: {note}")
    _show(facts)


def _facts(
    dataset: Path, addition: Addition, before: StoredDataset, after: StoredDataset, dry_run: bool
) -> dict[str, Any]:
    from limerank.times import time_text

    return {
        "dataset": str(dataset),
        "dry_run": dry_run,
        "fingerprint": after.fingerprint,
        "grown_from": before.fingerprint,
        "added": {name: getattr(addition.segment, name) for name in COUNTED},
        "dropped": addition.dropped,
        "bad_rows": [bad.model_dump(exclude={"file"}) for bad in addition.bad_rows]
        if dry_run
        else after.set_aside()[len(before.manifest.bad_rows) :],
        "undescribed": {
            one.what: {"count": len(one.undescribed), "examples": one.examples} for one in addition.newcomers
        },
        "from": time_text(addition.first_time),
        "to": time_text(addition.last_time),
        "segments": len(after.segments),
        "notes": after.with_paths(addition.notes),
    }


def _show(facts: dict[str, Any]) -> None:
    dataset = facts["dataset"]
    where = f"{dataset} (fingerprint {facts['fingerprint'][:12]})"
    added = f"{_counted(facts['added'])}, from {facts['from']} to {facts['to']}"
    if facts["dropped"]:
        added += f", without {facts['dropped']:,} events whose item or user it does not take in"
    if facts["dry_run"]:
        say(f"would add {added}")
        say(f"nothing was changed: {where}; leave --dry-run out to append")
        return
    say(f"added {added}, in {facts['seconds']} s: {where}")
    say(f"next: limerank describe {dataset}; then limerank export RUN --store STORE, to rank with the new events")


def _undo(dataset: Path, dry_run: bool, as_json: bool) -> None:
    from limerank.api.dataset import Dataset

    left, restored = Dataset.open(dataset).undo_append(dry_run=dry_run)
    taken_back = {name: left.counts[name] - restored.counts[name] for name in COUNTED}
    facts = {
        "dataset": str(dataset),
        "dry_run": dry_run,
        "fingerprint": (left if dry_run else restored).fingerprint,
        "undone": left.fingerprint,
        "restored": restored.fingerprint,
        "taken_back": taken_back,
    }
    if as_json:
        emit_json(facts)
        return
    if dry_run:
        say(f"would take back {_counted(taken_back)}")
        say(f"nothing was changed: {dataset} (fingerprint {left.fingerprint[:12]}); leave --dry-run out to undo")
        return
    say(f"took back {_counted(taken_back)}: {dataset} is as before (fingerprint {restored.fingerprint[:12]})")
    say("bundles exported since still rank with them: export again; runs trained since do not fit any more: train anew")


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())
