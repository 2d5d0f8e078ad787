"""`limerank prepare simulated`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from limerank.cli.common import JsonOption, OverwriteOption, progress_for
from limerank.cli.prepare.common import OutOption, prepare_app, publish

if TYPE_CHECKING:
    from limerank.data.raw.log import RawLog


@prepare_app.command(epilog="Example: limerank prepare simulated --users 8000 --out datasets/simulated")
def simulated(
    out: OutOption,
    users: Annotated[int, typer.Option(min=1)] = 3000,
    items: Annotated[int, typer.Option(min=1)] = 10_000,
    topics: Annotated[int, typer.Option(min=1)] = 16,
    sessions: Annotated[int, typer.Option(min=1, help="Days; at most one session a day.")] = 16,
    slots: Annotated[int, typer.Option(min=1, help="Items shown in a session.")] = 12,
    seed: Annotated[int, typer.Option(min=0)] = 7,
    raw: Annotated[
        Path | None, typer.Option(help="Also write the raw tables here, as `prepare table` reads them.")
    ] = None,
    new_day: Annotated[
        Path | None,
        typer.Option(help="Hold the last day back and write its events here (.csv), to try `limerank append` with."),
    ] = None,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Draw a log whose true click probabilities are known (docs/explanation/simulated-log.md)."""
    from limerank.data.sources.simulated import SimulatedConfig, simulate, without_last_day
    from limerank.data.sources.table.read import write_table_log
    from limerank.errors import ConflictError

    config = SimulatedConfig(users=users, items=items, topics=topics, sessions=sessions, slots=slots, seed=seed)
    if raw is not None and raw.exists():
        raise ConflictError(f"{raw} exists already; raw tables never replace anything, choose another --raw")
    if new_day is not None and new_day.exists():
        raise ConflictError(f"{new_day} exists already; choose another --new-day")

    def read() -> RawLog:
        progress_for(as_json).say(f"drawing up to {users * sessions * slots:,} events")
        log = simulate(config)
        if new_day is not None:
            log = without_last_day(log, config, new_day)
        if raw is not None:
            write_table_log(log, raw)
        return log

    publish(read, out, overwrite=overwrite, as_json=as_json)
