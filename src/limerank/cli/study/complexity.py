"""`limerank study complexity`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from limerank.cli.common import JsonOption, OverwriteOption, emit_table, parse_rankers, progress_for
from limerank.cli.study.common import OutOption, QuickOption, deliver, studying

if TYPE_CHECKING:
    from limerank.study.complexity.results import ComplexityStudy


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog="Example: limerank study complexity --models hstu,lime-xor --out studies/complexity")(complexity)


def complexity(
    out: OutOption = Path("studies/complexity"),
    models: Annotated[str, typer.Option(help="Rankers, comma-separated.")] = "hstu,mha,sim,twin,ttsn,lime-mha,lime-xor",
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Rounds; what takes seconds is asked less often; default 5.")
    ] = None,
    threads: Annotated[int, typer.Option("--threads", min=1, help="Threads of each engine.")] = 1,
    quick: QuickOption = False,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
) -> None:
    """The paper's architecture table: growth in N and M as claimed, as counted and as measured (minutes)."""
    from dataclasses import replace

    from limerank.study.complexity.run import complexity_plan, quick_complexity_plan, run_complexity

    chosen = parse_rankers(models)
    plan = quick_complexity_plan(chosen, threads) if quick else complexity_plan(chosen, threads)
    plan = replace(plan, repeats=repeats or plan.repeats)
    with studying("complexity", out, quick=quick) as folder:
        result = run_complexity(plan, folder, progress_for(as_json), quick=quick, overwrite=overwrite)
        deliver(result, folder, lambda: _tables(result), as_json=as_json)


def _tables(result: ComplexityStudy) -> None:
    for letter in "NM":
        exponents = [(row.model, row.along_n if letter == "N" else row.along_m) for row in result.rows]
        first = exponents[0][1]
        emit_table(
            f"exponents in {letter}, {first.first:,} to {first.last:,}",
            ["ranker", "claimed", "highest power", "counted", "measured", "user stage", "interaction"],
            [
                [
                    *(model, _number(one.claimed, 0), one.degree, _number(one.counted), _number(one.measured)),
                    *(_number(one.measured_user), _number(one.measured_interact)),
                ]
                for model, one in exponents
            ],
        )


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
