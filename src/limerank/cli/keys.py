"""`limerank keys`: who may use a service."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from limerank.cli.common import JsonOption, StoreArgument, emit_json, emit_table, say

if TYPE_CHECKING:
    from limerank.service.security.keys import KeyRecord

app = typer.Typer(no_args_is_help=True, help="API keys of a store: shown once, kept as hashes.")


@app.command(epilog="Example: limerank keys create stores/demo --scope rank,write --name shop --expires-days 90")
def create(
    store: StoreArgument,
    scope: Annotated[
        str, typer.Option(help="rank (rank, recommend, explain), write (events, items), admin (everything); commas.")
    ],
    name: Annotated[str, typer.Option(help="Whose key it is, for the list.")] = "",
    expires_days: Annotated[float | None, typer.Option(help="Days until it ends; default: never.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a key and show it, this once."""
    from limerank.service.security.keys import create_key

    scopes = [part.strip() for part in scope.split(",") if part.strip()]
    key, record = create_key(_opened(store), scopes, name=name, expires_days=expires_days)
    if as_json:
        emit_json({"key": key, **_facts(record)})
        return
    say(key)
    say("Keep it: only a hash is stored, and nobody can show it again. A service that runs asks for keys from now on.")


@app.command("list", epilog="Example: limerank keys list stores/demo")
def list_all(store: StoreArgument, as_json: JsonOption = False) -> None:
    """All keys, oldest first."""
    from limerank.service.security.keys import list_keys

    facts = [_facts(record) for record in list_keys(_opened(store))]
    if as_json:
        emit_json({"keys": facts})
        return
    if not facts:
        say("no keys; a service on this store answers this machine only")
        return
    columns = ["id", "name", "scopes", "created", "expires", "state"]
    rows = [[", ".join(fact[c]) if c == "scopes" else fact[c] or "" for c in columns] for fact in facts]
    emit_table("", columns, rows)


@app.command(epilog="Example: limerank keys revoke stores/demo 1a2b3c4d")
def revoke(
    store: StoreArgument,
    key_id: Annotated[str, typer.Argument(help="The id of a key: the eight characters after lr_.")],
    as_json: JsonOption = False,
) -> None:
    """End a key at once, also for services that run. A store goes on asking for keys when the last one is revoked."""
    from limerank.service.security.keys import revoke_key

    record = revoke_key(_opened(store), key_id)
    if as_json:
        emit_json(_facts(record))
        return
    say(f"revoked {record.id}")


def _opened(store: Path) -> Path:
    from limerank.serve.bundles.store import BundleStore

    return BundleStore.open(store).path


def _facts(record: KeyRecord) -> dict[str, Any]:
    from limerank.times import iso_time

    return {
        "id": record.id,
        "name": record.name,
        "scopes": record.scopes,
        "created": iso_time(record.created),
        "expires": None if record.expires is None else iso_time(record.expires),
        "state": record.state(time.time_ns() // 1_000_000),
    }
