"""`limerank bench states`: what approximate user states of LIME-XOR cost in accuracy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from limerank.cli.common import JsonOption, emit_json, emit_table, progress_for, say

EPILOG = "Example: limerank bench states --users 10 --events 20"


def states(
    users: Annotated[int, typer.Option(min=1, max=100, help="Users who act.")] = 40,
    events: Annotated[int, typer.Option(min=1, help="New events of each.")] = 40,
    out: Annotated[Path | None, typer.Option(help="Write the JSON object to this file, too.")] = None,
    as_json: JsonOption = False,
) -> None:
    """LIME-XOR's states that grow against stale links, compared with exact ones, by budget (a minute or two)."""
    from limerank.bench.engine.stale import run_state_bench
    from limerank.files import write_json

    result = run_state_bench(progress_for(as_json), users=users, events=events)
    if out is not None:
        write_json(out, result.model_dump())
    if as_json:
        emit_json(result.model_dump())
        return
    shortest, middle, longest = result.histories
    emit_table(
        f"{users} users with {shortest:.0f} to {longest:.0f} events (median {middle:.0f}), {events} new ones each",
        [
            "activation",
            "budget",
            "not read anew",
            "mean change of a logit",
            "largest",
            "deviation",
            "top 20 kept",
        ],
        [
            [
                row.activation,
                row.budget,
                f"{row.appended_fraction:.0%}",
                f"{row.mean_change:.3f}",
                f"{row.largest_change:.2f}",
                f"{row.logit_deviation:.2f}",
                f"{row.top_kept:.1%}",
            ]
            for row in result.rows
        ],
    )
    say(
        f"trained {result.epochs} epochs on a simulated log, seed {result.seed}, d {result.width}, {result.links} links"
    )
