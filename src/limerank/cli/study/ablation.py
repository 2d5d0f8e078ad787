"""`limerank study ablation`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from limerank.cli.common import JsonOption, OverwriteOption, emit_table, progress_for
from limerank.cli.study.common import (
    DatasetOption,
    OutOption,
    QuickOption,
    SeedsOption,
    SideBySideOption,
    dataset_for,
    deliver,
    studying,
)

if TYPE_CHECKING:
    from limerank.config import TrainConfig
    from limerank.study.ablation.plan import AblationPlan
    from limerank.study.ablation.results import AblationStudy, Found
    from limerank.study.configuration import StudyConfig

QUICK_GROUPS = "keys,order,rows,linear"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog="Example: limerank study ablation --groups keys,links --seeds 3 --out studies/ablation")(
        ablation
    )


def ablation(
    out: OutOption = Path("studies/ablation"),
    dataset: DatasetOption = None,
    groups: Annotated[
        str | None,
        typer.Option(
            help="What to change, comma-separated: keys, links, link-start, start, norm, activation, context, age, "
            "order, output, readout, layers, rows (precision, trains nothing else) and linear (linear attention at "
            "equal rank). Default: all."
        ),
    ] = None,
    models: Annotated[str, typer.Option(help="What is changed: lime-mha, lime-xor or both.")] = "lime-mha,lime-xor",
    seeds: SeedsOption = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="At most so many, for all; default 4.")] = None,
    links: Annotated[
        int | None, typer.Option(min=1, help="l of the base, and what is l elsewhere; default 32.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A YAML file whose `train` is for all; see compare-rankers.md.")
    ] = None,
    found: Annotated[
        Path | None,
        typer.Option(
            help="The accuracy.json of a study that searched: the group linear trains every ranker, the base included, "
            "with what was found for it."
        ),
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option(help="An earlier ablation.json of the same, whose groups are taken where --groups asks for none."),
    ] = None,
    quick: QuickOption = False,
    overwrite: OverwriteOption = False,
    threads: SideBySideOption = None,
    as_json: JsonOption = False,
) -> None:
    """What each choice in LIME is worth, and LIME beside linear attention of equal rank.

    Fills the two sections that the paper leaves empty. Variants and their base are trained from the same seeds and
    compared seed by seed. Resumable: finished runs are kept. All groups with 3 seeds are 123 trainings.
    """
    from dataclasses import replace

    from limerank.data.sources.simulated import SimulatedConfig
    from limerank.study.ablation.run import run_ablation

    plan = _plan(groups, models, seeds, _training(config, epochs, quick), links, quick)
    plan = replace(plan, found=_found(found, plan), keep=keep)
    tiny = SimulatedConfig(users=60, items=200, topics=6, sessions=8, slots=6) if quick else None
    with studying("ablation", out, quick=quick) as folder:
        prepared = dataset_for(dataset, folder, overwrite=overwrite, log=tiny)
        result = run_ablation(prepared, plan, folder, progress_for(as_json), overwrite=overwrite, workers=threads)
        deliver(result, folder, lambda: _tables(result), as_json=as_json)


def _training(config: Path | None, epochs: int | None, quick: bool) -> TrainConfig:
    """How all variants are trained; what is a single ranker's own in the file would make the comparison unfair."""
    from limerank.errors import UsageError
    from limerank.study.configuration import StudyConfig

    given = StudyConfig() if config is None else StudyConfig.read(config)
    if own := [key for key in ("preset", "rankers", "variants", "space") if getattr(given, key)]:
        raise UsageError(f"{config}: key '{own[0]}': an ablation trains all variants alike; leave only 'train'")
    if epochs is not None:
        given = given.with_train(epochs=epochs)
    if quick:
        given = quick_training(given)
    return (given if given.says("epochs") else given.with_train(epochs=4)).training("")


def _found(path: Path | None, plan: AblationPlan) -> Found | None:
    """What a search found, refused where no group would use it."""
    from limerank.errors import UsageError
    from limerank.study.ablation.contests import read_found
    from limerank.study.ablation.variants import LINEAR, MHA

    if path is None:
        return None
    if LINEAR not in plan.groups or MHA not in plan.bases:
        raise UsageError(f"--found {path}: is for the group '{LINEAR}' of {MHA}; name them too, or leave it out")
    return read_found(path, plan.shared, plan.train)


def quick_training(given: StudyConfig) -> StudyConfig:
    """One epoch on short histories, unless something else is written."""
    short = {"epochs": 1, "max_history": 20}
    return given.with_train(**{key: value for key, value in short.items() if not given.says(key)})


def _plan(
    groups: str | None, models: str, seeds: int | None, train: TrainConfig, links: int | None, quick: bool
) -> AblationPlan:
    from limerank.study.ablation.linear.kernel_error import KernelPlan
    from limerank.study.ablation.plan import AblationPlan
    from limerank.study.ablation.variants import check_bases, parse_groups
    from limerank.study.ablation.variants import groups as all_groups

    shared = {} if links is None else {"links": links}
    known = list(all_groups(32, 4))
    bases = check_bases([name for name in models.split(",") if name])
    if not quick:
        chosen = parse_groups(groups, known)
        return AblationPlan(bases, chosen, range(1, (seeds or 3) + 1), train, shared)
    return AblationPlan(
        bases,
        parse_groups(groups or QUICK_GROUPS, known),
        range(1, (seeds or 2) + 1),
        train,
        {"links": 4, **shared, "width": 16, "tower_hidden": 16, "embedding_width": 8},
        history=64,
        candidates=100,
        repeats=3,
        catalog_requests=10,
        kernel=KernelPlan((2, 4), requests=4, fit_requests=8, candidates=32, steps=10, draws=2),
        quick=True,
    )


def _tables(result: AblationStudy) -> None:
    from limerank.study.ablation.tables import spread

    rows = [
        [
            one.group,
            one.base,
            one.name,
            spread(result.of(one.key).test, "ne"),
            "-" if one.ne is None else f"{one.ne.mean:+.4f}",
            "-" if one.ne is None or one.ne.low is None else f"{one.ne.low:+.4f} to {one.ne.high:+.4f}",
            one.verdict,
        ]
        for one in result.compared
    ]
    if rows:
        title = f"task '{result.task}', NE of the test part; differences by seed to the base, 95 %"
        emit_table(title, ["group", "base", "variant", "NE", "NE - base", "interval", "verdict"], rows)
    if result.rows:
        emit_table(
            "the same runs served from rows of other precision",
            ["ranker", "rows", "bytes per item", "NE - fp32", "best 10 kept"],
            [
                [
                    one.model,
                    one.row_type,
                    "-" if one.bytes_per_item is None else one.bytes_per_item,
                    "-" if one.ne is None else f"{one.ne.mean:+.2e}",
                    "-" if one.top_10 is None else f"{one.top_10:.2%}",
                ]
                for one in result.rows
            ],
        )
    if result.kernel is not None:
        ranks = sorted({row.asked_rank for row in result.kernel.rows})
        emit_table(
            "kernel error: relative Frobenius error against the skyline's attention weights",
            ["method", *(f"r = {rank}" for rank in ranks)],
            [[name, *(f"{row.error:.4f}" for row in result.kernel.of(name))] for name in result.kernel.methods()],
        )
    if result.costs:
        emit_table(
            f"{result.costs[0].history:,} events, {result.costs[0].candidates:,} candidates, one thread",
            ["ranker", "user ms", "µs per candidate", "bytes per item", "bytes per user", "one event more µs", "how"],
            [
                [
                    cost.model,
                    f"{cost.user_ms:.2f}",
                    f"{cost.us_per_candidate:.3f}",
                    cost.bytes_per_item,
                    cost.bytes_per_user,
                    f"{cost.append_us:.0f}",
                    "appended" if cost.appended else "read again",
                ]
                for cost in result.costs
            ],
        )
