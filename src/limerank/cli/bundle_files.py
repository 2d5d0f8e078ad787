"""`limerank bundle diff`, `save` and `load`: two bundles compared, and bundles as files that travel."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from limerank.cli.common import (
    JsonOption,
    OverwriteOption,
    StoreArgument,
    WorkersOption,
    emit_json,
    emit_table,
    say,
)

BundleArgument = Annotated[str | None, typer.Argument(help="A bundle id; default: the active bundle.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the group."""
    app.command(epilog="Example: limerank bundle diff stores/demo 20260101-120000-1a2b3c4d 20260102-120000-5e6f7a8b")(
        diff
    )
    app.command(epilog="Example: limerank bundle save stores/demo --out demo.tar")(save)
    app.command(epilog="Example: limerank bundle load stores/other demo.tar")(load)


def diff(
    store: StoreArgument,
    old: Annotated[str, typer.Argument(help="A bundle id.")],
    new: Annotated[str, typer.Argument(help="Another bundle id.")],
    threads: WorkersOption = None,
    as_json: JsonOption = False,
) -> None:
    """How two bundles differ: facts, items, users, and the rankings of some users."""
    from dataclasses import asdict

    from limerank.serve.bundles.store import BundleStore
    from limerank.serve.engine import Engine
    from limerank.serve.hosting.differences import diff as compare
    from limerank.serve.threads.workers import Workers

    opened = BundleStore.open(store)
    with Workers(threads) as workers:
        before, after = (Engine.open(opened, one, workers=workers, states=0) for one in (old, new))
        found = compare(before, after)
    if as_json:
        emit_json(asdict(found))
        return
    rows: list[list[object]] = [[name, *both] for name, both in found.facts.items()]
    emit_table("", ["what differs", old, new], rows, wrap=new)
    say(f"items: {found.items_added:,} added, {found.items_removed:,} removed, {found.items_changed:,} changed")
    say(f"users: {found.users_added:,} added, {found.users_removed:,} removed")
    ranked = found.rankings
    if ranked["users"]:
        say(f"rankings of {ranked['users']:.0f} users, by the stores' events and items of now:")
        say(f"  the same in the top 10: {ranked['overlap_10']:.1%}, in the top 100: {ranked['overlap_100']:.1%}")
        if "score_difference" in ranked:
            say(f"  mean difference of probabilities: {ranked['score_difference']:.4f}")


def save(
    store: StoreArgument,
    bundle_id: BundleArgument = None,
    out: Annotated[Path, typer.Option(help="The tar file to write.")] = Path("bundle.tar"),
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Verify a bundle, then write it as one plain tar file, for another store or POST /v1/bundles."""
    from limerank.serve.bundles import archive
    from limerank.serve.bundles.store import BundleStore

    bundle = BundleStore.open(store).open_bundle(bundle_id)
    size = archive.save(bundle, out, overwrite=overwrite)
    if as_json:
        emit_json({"bundle": bundle.manifest.id, "out": str(out), "bytes": size})
        return
    say(f"bundle {bundle.manifest.id}: {size:,} bytes in {out}; load it with `limerank bundle load STORE {out}`")


def load(
    store: StoreArgument,
    archive: Annotated[Path, typer.Argument(help="A tar file of `limerank bundle save`.")],
    as_json: JsonOption = False,
) -> None:
    """Take a bundle from a tar file into a store, which is made if need be; verified, and not active yet."""
    from dataclasses import asdict

    from limerank.errors import BundleError
    from limerank.serve.bundles.archive import pieces_of, receive
    from limerank.serve.bundles.store import BUNDLES, BundleStore

    if not archive.is_file():
        raise BundleError(f"{archive}: no such file; name an archive, made with `limerank bundle save`")
    (store / BUNDLES).mkdir(parents=True, exist_ok=True)
    received = receive(BundleStore.open(store), pieces_of(archive))
    if as_json:
        emit_json({"store": str(store), **asdict(received)})
        return
    state = "received and verified" if received.is_new else "was there already, the same"
    say(f"bundle {received.id}: {state}; make it active with `limerank bundle activate {store} {received.id}`")
