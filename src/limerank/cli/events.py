"""`limerank events`: what happened since the export, in and out of a store, also beside a running service."""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from limerank.cli.common import (
    JSON_LINES,
    JsonOption,
    OverwriteOption,
    StoreArgument,
    emit_json,
    emit_table,
    progress_for,
    read_rows,
    say,
)
from limerank.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from limerank.serve.histories.past import Happened, StoredHistories

app = typer.Typer(
    no_args_is_help=True, help="Events of a store since the export: durable, part of the next ranking, erasable."
)

UserOption = Annotated[str, typer.Option(help="User id.")]
HISTORIES = "LIMERANK_SERVE_HISTORIES"
HistoriesOption = Annotated[
    str | None,
    typer.Option(
        help="Where the events are: a Redis, redis://USER@HOST:PORT/0 or rediss:// for TLS, its password in "
        "LIMERANK_REDIS_PASSWORD; default: in the store.",
        envvar=HISTORIES,
        show_envvar=False,
    ),
]
AT_ONCE = 2000
NO_CAP = 2**31
"""A service trims its users to the cap it was given; this command knows no cap, and trims nobody."""
ENDINGS = (".parquet", ".csv", *JSON_LINES)


@app.command("import", epilog="Example: limerank events import stores/demo --file events.parquet")
def import_events(
    store: StoreArgument,
    file: Annotated[
        Path,
        typer.Option(
            help="A row per event: columns user_id, item_id, time (milliseconds since 1970 or ISO 8601), if there are "
            "such type, event_id, request_id, position, value, in_history, and one per event feature by its name; CSV, "
            "Parquet or JSON lines (.jsonl)."
        ),
    ],
    histories: HistoriesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Store the events of a file, which is checked as a whole first; the same file again changes nothing."""
    from limerank.serve.bundles.store import BundleStore
    from limerank.serve.histories.tables import events_of
    from limerank.serve.requests import RequestReader

    reader = RequestReader(BundleStore.open(store).open_bundle())
    events = list(events_of(read_rows(file), f"--file {file}"))
    for number, event in enumerate(events, 1):
        reader.check_event(event, f"--file {file}, row {number}")
    with _opened(store, histories) as stored:
        facts = _added(stored, events, len(events), as_json)
    _tell_added(facts, as_json)


@app.command(epilog="Example: limerank events copy stores/demo --to redis://127.0.0.1:6379/0")
def copy(
    store: StoreArgument,
    to: Annotated[
        str, typer.Option(help="The Redis to copy them into: redis://USER@HOST:PORT/0 or rediss:// for TLS.")
    ],
    histories: HistoriesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy all stored events into a Redis, and who was erased; what is there already changes nothing.

    So a copy that was interrupted is begun again, and events that came meanwhile are brought by a second one.
    """
    from limerank.serve.bundles.store import BundleStore
    from limerank.serve.histories.in_redis.store import RedisHistories

    path = BundleStore.open(store).path
    with _opened(store, histories) as there, RedisHistories(to, store=path, cap=NO_CAP) as here:
        here.adopt(there.erasures())
        facts = _added(here, there.events(), there.counts()["events"], as_json)
    _tell_added(facts, as_json)


def _added(stored: StoredHistories, events: Iterable[Happened], count: int, as_json: bool) -> dict[str, int]:
    """Store events, some at a time; what became of them."""
    facts = {"events": 0, "accepted": 0, "duplicates": 0, "forgotten": 0}
    with progress_for(as_json).bar("events", count) as bar:
        waiting = iter(events)
        while some := list(islice(waiting, AT_ONCE)):
            for name, number in asdict(stored.add(some)).items():
                facts[name] += number
            facts["events"] += len(some)
            bar.advance(len(some))
    return facts


def _tell_added(facts: dict[str, int], as_json: bool) -> None:
    if as_json:
        emit_json(facts)
        return
    say(f"stored {facts['accepted']:,} of {facts['events']:,} events; {facts['duplicates']:,} were there already")
    if facts["forgotten"]:
        say(f"not stored, because their user was erased since: {facts['forgotten']:,}")


@app.command(epilog="Example: limerank events export stores/demo --out events.parquet --since 2026-01-31")
def export(
    store: StoreArgument,
    out: Annotated[Path, typer.Option(help="The file to write: .parquet, .csv or .jsonl.")],
    since: Annotated[
        str | None, typer.Option(help="Only events from this time on: 2026-01-31T12:00:00Z or milliseconds since 1970.")
    ] = None,
    overwrite: OverwriteOption = False,
    histories: HistoriesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write all stored events to a file, to train on: user_id, item_id, time, ..., a column per feature."""
    from limerank import files
    from limerank.cli.request import parse_time
    from limerank.serve.histories.tables import table_of

    if out.suffix.lower() not in ENDINGS:
        raise UsageError(f"--out {out}: must end with one of {', '.join(ENDINGS)}")
    first = 0 if since is None else parse_time(since, f"--since {since}")
    with _opened(store, histories) as stored:
        table = table_of(stored.events(first))
    with files.full_disk_named(out), files.staged_file(out, overwrite=overwrite) as staging:
        target = staging / out.name
        if out.suffix.lower() == ".parquet":
            table.write_parquet(target)
        elif out.suffix.lower() == ".csv":
            table.write_csv(target)
        else:
            table.write_ndjson(target)
    if as_json:
        emit_json({"out": str(out), "events": table.height, "columns": table.columns})
        return
    say(f"wrote {table.height:,} events to {out}")


@app.command(epilog="Example: limerank events show stores/demo --user u42")
def show(
    store: StoreArgument,
    user: UserOption,
    limit: Annotated[int, typer.Option(min=1, help="How many events, the newest first.")] = 20,
    histories: HistoriesOption = None,
    as_json: JsonOption = False,
) -> None:
    """What is stored of one user since the export, the newest first."""
    from limerank.times import iso_time, time_text

    with _opened(store, histories) as stored:
        found, past = stored.newest(user, limit), stored.of(user)
    if as_json:
        erased = None if past.erased_at is None else iso_time(past.erased_at)
        events = [{**asdict(one), "time": iso_time(one.time)} for one in found]
        emit_json({"user": user, "events_stored": len(past.events), "erased_at": erased, "events": events})
        return
    if past.erased_at is not None:
        say(f"erased on {time_text(past.erased_at)} UTC; what bundles know of the time before is not read")
    if not found:
        say(f"no events of user {user} are stored")
        return
    rows = [
        [time_text(one.time), one.item_id, one.type, ", ".join(f"{name}={v}" for name, v in one.features.items())]
        for one in found
    ]
    emit_table("", ["time (UTC)", "item", "type", "features"], rows, wrap="features")


@app.command(epilog="Example: limerank events erase stores/demo --user u42")
def erase(
    store: StoreArgument, user: UserOption, histories: HistoriesOption = None, as_json: JsonOption = False
) -> None:
    """Delete a user's stored events and logged rankings, and hide what bundles know of the user up to now.

    Also beside a service, whose processes learn of it.
    """
    from limerank.serve.bundles.store import BundleStore
    from limerank.serve.experiments.log_file import erase_user
    from limerank.serve.hosting.erasure import events_in_bundles, leave_notice
    from limerank.times import iso_time

    with _opened(store, histories) as stored:
        erased = stored.erase(user)
    opened = BundleStore.open(store)
    leave_notice(opened, user)
    deleted = {"events": erased.events, "rankings": erase_user(store, user, erased.erased_at)}
    hidden = events_in_bundles(opened, user)
    if as_json:
        emit_json({"user": user, "erased_at": iso_time(erased.erased_at), "deleted": deleted, "hidden": hidden})
        return
    say(f"erased user {user}: {deleted['events']:,} stored events, {deleted['rankings']:,} logged rankings")
    for bundle, events in hidden.items():
        say(f"bundle {bundle} holds {events:,} events of this user, which are not read any more")


@app.command(epilog="Example: limerank events status stores/demo --verify")
def status(
    store: StoreArgument,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read everything, and check that nothing is damaged.")
    ] = False,
    histories: HistoriesOption = None,
    as_json: JsonOption = False,
) -> None:
    """How many events of how many users are stored, and the bytes they take."""
    with _opened(store, histories) as stored:
        if verify:
            stored.verify()
        counts = stored.counts()
    if as_json:
        emit_json({"store": str(store), **counts, "verified": verify})
        return
    say(f"{counts['events']:,} events of {counts['users']:,} users, {counts['bytes']:,} bytes")
    say(f"erased users: {counts['erased']:,}" + ("; everything is whole" if verify else ""))


@app.command(epilog="Example: limerank events compact stores/demo")
def compact(store: StoreArgument, histories: HistoriesOption = None, as_json: JsonOption = False) -> None:
    """Write the file anew without what was deleted; who adds events waits meanwhile. A Redis does it by itself."""
    with _opened(store, histories) as stored:
        before = stored.counts()["bytes"]
        stored.compact()
        after = stored.counts()["bytes"]
    if as_json:
        emit_json({"store": str(store), "bytes_before": before, "bytes": after})
        return
    say(f"{before:,} bytes before, {after:,} now")


def _opened(store: Path, histories: str | None) -> StoredHistories:
    from limerank.serve.bundles.store import BundleStore
    from limerank.serve.histories.opening import open_histories

    return open_histories(BundleStore.open(store).path, histories, cap=NO_CAP)
