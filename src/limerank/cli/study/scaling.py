"""`limerank study scaling`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from limerank.cli.common import (
    JsonOption,
    OverwriteOption,
    emit_table,
    parse_counts,
    progress_for,
)
from limerank.cli.study.common import OutOption, QuickOption, SeedsOption, SideBySideOption, deliver, studying

if TYPE_CHECKING:
    from limerank.study.scaling.results import ScalingStudy


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog="Example: limerank study scaling --links 8,16,32 --only grid --out studies/scaling")(scaling)


def scaling(
    out: OutOption = Path("studies/scaling"),
    dataset: Annotated[
        Path | None, typer.Option(help="A prepared dataset for the grid; default: a simulated log, made in --out.")
    ] = None,
    history: Annotated[str | None, typer.Option(help="History lengths of the grid; default 32,64,128,256.")] = None,
    links: Annotated[str | None, typer.Option(help="Numbers of links; default 8,16,32,64.")] = None,
    layers: Annotated[str | None, typer.Option(help="Depths of LIME-XOR; default 1,2,3,6.")] = None,
    topics: Annotated[str | None, typer.Option(help="Topics of the simulated logs; default 16,24,48.")] = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Links of LIME-XOR against topics, too (HSTU trains long).")
    ] = False,
    only: Annotated[
        Literal["grid", "interests"] | None, typer.Option(help="One half of the study; default: both.")
    ] = None,
    seeds: SeedsOption = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Of every training at most; default 3.")] = None,
    quick: QuickOption = False,
    overwrite: OverwriteOption = False,
    threads: SideBySideOption = None,
    as_json: JsonOption = False,
) -> None:
    """What history length, links and layers are worth, and how many links a log of so many topics needs.

    The defaults are 159 trainings on small logs, about 40 minutes on two idle cores. What is finished is kept.
    """
    from dataclasses import replace

    from limerank.errors import UsageError
    from limerank.study.scaling.study import ScalingPlan, check_used, run_scaling

    plan = replace(ScalingPlan().quick() if quick else ScalingPlan(), deep=deep)
    for option, given, name, half in (
        ("--history", history, "histories", "grid"),
        ("--links", links, "links", only),
        ("--layers", layers, "layers", "grid"),
        ("--topics", topics, "topics", "interests"),
    ):
        if given is not None:
            if only is not None and half != only:
                raise UsageError(f"--only {only}: {option} is of the other half, {half}; leave one of them out")
            plan = plan.having(name, parse_counts(given, option))
    plan = replace(plan, seeds=tuple(range(1, seeds + 1)) if seeds else plan.seeds, epochs=epochs or plan.epochs)
    check_used(dataset, plan, only)
    progress = progress_for(as_json)
    with studying("scaling", out, quick=quick) as folder:
        progress.say(f"{plan.trainings(only)} trainings")
        study = run_scaling(
            dataset, plan, folder, progress, only=only, quick=quick, overwrite=overwrite, workers=threads
        )
        deliver(study, folder, lambda: tables(study), as_json=as_json)


def tables(study: ScalingStudy) -> None:
    """What a terminal shows of it."""
    from limerank.study.scaling.results import said

    for model in study.models():
        emit_table(
            f"{model}: change against the smallest cell, percent",
            ["events", "links", "NE", "AUC"],
            [[n, count, said(change.ne, 3), said(change.auc, 3)] for (n, count), change in study.grid(model).items()],
        )
    if study.gaps:
        emit_table(
            "fraction of the gap to the skyline that is closed",
            ["ranker", "topics", "links", "closed"],
            [[g.model, g.topics, g.links, "-" if g.of_means is None else f"{g.of_means:.3f}"] for g in study.gaps],
        )
