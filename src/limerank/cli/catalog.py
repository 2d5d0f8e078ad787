"""`limerank items`: upsert, delete and list items of a store, between two exports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from limerank.cli.common import JsonOption, StoreArgument, emit_json, emit_table, listed, read_rows, say
from limerank.errors import UsageError

if TYPE_CHECKING:
    from limerank.serve.overlay.live import LiveCatalog

app = typer.Typer(
    no_args_is_help=True, help="The items of a store between two exports: durable, seen by the next request."
)

IdsArgument = Annotated[list[str], typer.Argument(help="Item ids.")]


@app.command(epilog="Example: limerank items upsert stores/demo --file new-items.csv")
def upsert(
    store: StoreArgument,
    file: Annotated[
        Path,
        typer.Option(
            help="A row per item: column item_id, one per item feature by its name, and what people call it; CSV, "
            "Parquet or JSON lines (.jsonl)."
        ),
    ],
    separator: Annotated[str, typer.Option(help="Between the values of lists that are written as text.")] = "|",
    as_json: JsonOption = False,
) -> None:
    """Add items, or replace what is known of them: all of the file or nothing."""
    change = _catalog(store).upsert(read_rows(file), separator=separator)
    if as_json:
        emit_json(asdict(change))
        return
    say(f"upserted {len(change.added) + len(change.replaced):,}: {len(change.added):,} new")


@app.command(epilog="Example: limerank items delete stores/demo i7 i8")
def delete(store: StoreArgument, ids: IdsArgument, as_json: JsonOption = False) -> None:
    """Take items out of the catalog; histories keep their events with them."""
    change = _catalog(store).delete(ids)
    if as_json:
        emit_json(asdict(change))
        return
    say(f"deleted {len(change.deleted):,}")
    _say_absent("not in the catalog", change.absent)


@app.command("list", epilog="Example: limerank items list stores/demo")
def list_items(
    store: StoreArgument,
    ids: Annotated[list[str] | None, typer.Argument(help="Items to look up; default: all that were changed.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Where items come from (bundle, overlay, deleted, unfit, unknown) and as of when their rows are."""
    live = _catalog(store)
    found = live.current().status(ids) if ids else live.changed()
    if as_json:
        emit_json({"store": str(store), "bundle": live.bundle.manifest.id, "items": [asdict(one) for one in found]})
        return
    if not found:
        say("nothing was changed since the bundle was exported")
        return
    rows = [[one.item_id, one.source, one.changed_at or "-", one.computed_at or "-", one.note] for one in found]
    emit_table("", ["item", "source", "changed (UTC)", "row as of (UTC)", "note"], rows, wrap="note")


@app.command(epilog="Example: limerank items forget stores/demo --contained")
def forget(
    store: StoreArgument,
    ids: Annotated[list[str] | None, typer.Argument(help="Items whose change is to be dropped.")] = None,
    contained: Annotated[
        bool, typer.Option("--contained", help="All upserts that the active bundle holds with the same features.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Drop changes, so that the bundle's own items are served again."""
    if bool(ids) == contained:
        raise UsageError("name items, or pass --contained; not both")
    forgotten = _catalog(store).forget(None if contained else ids)
    if as_json:
        emit_json({"forgotten": forgotten})
        return
    say(f"forgot {len(forgotten):,} changes")
    _say_absent("had no change", [item for item in ids or () if item not in forgotten])


@app.command(epilog="Example: limerank items fold stores/demo")
def fold(
    store: StoreArgument,
    activate: Annotated[bool, typer.Option("--activate/--no-activate", help="Make the new bundle active.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Publish the active bundle with all upserts in it: same weights, same encoders, no dataset needed."""
    from limerank.serve.bundles.store import BundleStore
    from limerank.serve.overlay.fold import fold as folded

    opened = BundleStore.open(store)
    bundle = folded(opened)
    if activate:
        opened.make_active(bundle)
    if as_json:
        emit_json({"bundle": bundle.manifest.id, "items": bundle.manifest.items - 1, "active": opened.current_id()})
        return
    say(f"bundle {bundle.manifest.id}: {bundle.manifest.items - 1:,} items" + (", active" if activate else ""))


def _catalog(store: Path) -> LiveCatalog:
    from limerank.serve.bundles.store import BundleStore
    from limerank.serve.overlay.live import LiveCatalog

    return LiveCatalog(BundleStore.open(store).open_bundle())


def _say_absent(what: str, ids: Sequence[str]) -> None:
    if ids:
        say(f"{what}: {listed(ids)}")
