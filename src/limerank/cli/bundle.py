"""`limerank bundle`: list, show, verify, activate, roll back, index, collect; the rest is in `bundle_files`."""

from __future__ import annotations

from typing import Annotated

import typer

from limerank.cli import bundle_files
from limerank.cli.common import JsonOption, StoreArgument, ThreadsOption, emit_json, emit_table, say, use_threads
from limerank.times import age_text

app = typer.Typer(no_args_is_help=True, help="The bundles of a store: immutable, verified, one active.")

BundleArgument = bundle_files.BundleArgument
bundle_files.register(app)


@app.command("list", epilog="Example: limerank bundle list stores/demo")
def list_bundles(store: StoreArgument, as_json: JsonOption = False) -> None:
    """All bundles, oldest first."""
    from limerank.errors import BundleError
    from limerank.serve.bundles.store import BundleStore

    opened = BundleStore.open(store)
    current, previous = opened.current_id(), opened.previous_id()
    state = {current: "active", previous: "previous"}
    facts: list[dict[str, str | int]] = []
    for bundle_id, manifest in opened.manifests().items():
        if isinstance(manifest, BundleError):
            facts.append({"id": bundle_id, "model": "", "items": "", "created_at": "", "state": f"broken: {manifest}"})
            continue
        facts.append(
            {
                "id": bundle_id,
                "model": manifest.model["name"],
                "items": manifest.items - 1,
                "created_at": manifest.created_at,
                "state": state.get(bundle_id, ""),
            }
        )
    if as_json:
        emit_json({"store": str(store), "current": current, "previous": previous, "bundles": facts})
        return
    rows = [
        [fact[key] for key in ("id", "model", "items")] + [str(fact["created_at"])[:19], fact["state"]]
        for fact in facts
    ]
    emit_table("", ["bundle", "model", "items", "created (UTC)", "state"], rows, wrap="state")


@app.command(epilog="Example: limerank bundle show stores/demo")
def show(store: StoreArgument, bundle_id: BundleArgument = None, as_json: JsonOption = False) -> None:
    """What a bundle is and what made it."""
    from limerank.errors import BundleError
    from limerank.serve.bundles.bundle import read_manifest
    from limerank.serve.bundles.store import BundleStore

    opened = BundleStore.open(store)
    chosen = bundle_id or opened.current_id()
    if chosen is None:
        raise BundleError(f"{store}: no bundle is active; name one of {', '.join(opened.ids())}")
    manifest = read_manifest(opened.bundle_path(chosen))
    facts = manifest.model_dump(mode="json")
    ages = {"age_seconds": manifest.age_seconds(), "watermark_age_seconds": manifest.watermark_age_seconds()}
    if as_json:
        emit_json(facts | ages)
        return
    rows = [[key, value] for key, value in facts.items() if key != "files"]
    rows.append(["age of item rows", _ago(ages["age_seconds"])])
    rows.append(["age of the newest event", _ago(ages["watermark_age_seconds"])])
    emit_table("", ["key", "value"], rows, wrap="value")
    emit_table("", ["file", "bytes", "sha256"], [[f["path"], f["bytes"], f["sha256"][:12]] for f in facts["files"]])


@app.command(epilog="Example: limerank bundle verify stores/demo")
def verify(store: StoreArgument, bundle_id: BundleArgument = None, as_json: JsonOption = False) -> None:
    """Check every hash, that rows were made by the weights beside them, and that every id finds its own row."""
    from limerank.serve.bundles.store import BundleStore

    manifest = BundleStore.open(store).open_bundle(bundle_id).manifest
    if as_json:
        emit_json({"bundle": manifest.id, "verified_files": len(manifest.files)})
        return
    say(f"bundle {manifest.id}: {len(manifest.files)} files verified, rows match weights, every id finds its row")


@app.command(epilog="Example: limerank bundle activate stores/demo 20260101-120000-1a2b3c4d")
def activate(
    store: StoreArgument, bundle_id: Annotated[str, typer.Argument(help="A bundle id.")], as_json: JsonOption = False
) -> None:
    """Verify a bundle, then make it the active one."""
    from limerank.serve.bundles.store import BundleStore

    opened = BundleStore.open(store)
    opened.activate(bundle_id)
    _active(opened.current_id(), opened.previous_id(), as_json)


@app.command(epilog="Example: limerank bundle rollback stores/demo")
def rollback(store: StoreArgument, as_json: JsonOption = False) -> None:
    """Make the previously active bundle active again."""
    from limerank.serve.bundles.store import BundleStore

    opened = BundleStore.open(store)
    opened.roll_back()
    _active(opened.current_id(), opened.previous_id(), as_json)


@app.command(epilog="Example: limerank bundle index stores/demo")
def index(
    store: StoreArgument,
    bundle_id: BundleArgument = None,
    recall: Annotated[
        float, typer.Option(min=0, max=1, help="Fraction of the exact top K that a search should find.")
    ] = 0.99,
    k: Annotated[int, typer.Option("--k", min=1, help="K, items of an exact answer.")] = 100,
    candidates: Annotated[
        int | None, typer.Option(min=1, help="Candidates that a search finds; default: as many as recommend asks for.")
    ] = None,
    users: Annotated[int, typer.Option(min=1, help="Users for whom the recall is measured.")] = 32,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make the FAISS index of a bundle's rows anew, and measure what it finds of the exact answer."""
    from limerank.serve.bundles.store import BundleStore
    from limerank.serve.retrieval.index import build_index

    use_threads(threads)
    opened = BundleStore.open(store).open_bundle(bundle_id)
    made = build_index(opened, recall=recall, k=k, candidates=candidates, users=users, threads=threads or 1)
    if as_json:
        emit_json(made.model_dump(mode="json"))
        return
    say(f"index of {made.items:,} items, {made.lists:,} lists, of which a search reads {made.probes:,}")
    for found, where in ((made.recall, "there"), (made.linear_recall, "in all lists")):
        say(
            f"of the exact top {k}, {found.candidates:,} candidates found {where} hold {found.mean:.1%} "
            f"(of {found.users} users the worst: {found.least:.1%})"
        )


@app.command(epilog="Example: limerank bundle gc stores/demo --keep 3")
def gc(
    store: StoreArgument,
    keep: Annotated[int, typer.Option(min=1, help="Newest bundles to keep, besides those in use.")] = 3,
    as_json: JsonOption = False,
) -> None:
    """Delete old bundles and leftovers, never the active or previous bundle or one that an experiment names."""
    from limerank.serve.bundles.store import BundleStore

    removed = BundleStore.open(store).collect(keep)
    if as_json:
        emit_json({"removed": removed})
        return
    say(f"removed {len(removed)}: {', '.join(removed)}" if removed else "nothing to remove")


def _ago(seconds: float | None) -> str:
    return "unknown: the log has no times" if seconds is None else age_text(seconds)


def _active(current: str | None, previous: str | None, as_json: bool) -> None:
    if as_json:
        emit_json({"current": current, "previous": previous})
        return
    say(f"active: {current}" + (f" (previous: {previous})" if previous else ""))
