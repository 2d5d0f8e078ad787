"""`limerank study spectrum`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from limerank.cli.common import JsonOption, OverwriteOption, emit_table, parse_counts, progress_for, use_threads
from limerank.cli.study.common import OutOption, QuickOption, dataset_for, deliver, studying

if TYPE_CHECKING:
    from limerank.study.spectrum.results import SpectrumStudy


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog="Example: limerank study spectrum --pairs 64 --out studies/spectrum")(spectrum)


def spectrum(
    out: OutOption = Path("studies/spectrum"),
    dataset: Annotated[
        Path | None, typer.Option(help="A prepared dataset; default: a simulated log with long histories, in --out.")
    ] = None,
    run: Annotated[
        list[Path] | None,
        typer.Option(
            help="A finished run of hstu, lime-xor or lime-mha to look at; may be repeated. Others are trained."
        ),
    ] = None,
    pairs: Annotated[int | None, typer.Option(min=2, help="Sequences, each with candidates; default 24.")] = None,
    history: Annotated[int | None, typer.Option(min=2, help="Events of a sequence; default 1024.")] = None,
    candidates: Annotated[int | None, typer.Option(min=2, help="Candidates of a sequence; default 1024.")] = None,
    links: Annotated[
        str | None,
        typer.Option(
            help="Numbers of links that LIME rankers are trained with, to see their rank grow; default 8,16,32,64, and "
            "with --run those of the runs."
        ),
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Of trainings at most; default 3.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of trainings, and of which pairs are drawn.")] = 1,
    quick: QuickOption = False,
    overwrite: OverwriteOption = False,
    threads: Annotated[int, typer.Option(min=1, help="Trainings side by side, and threads of the SVDs.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """Singular values of attention matrices and of links: the rank that holds 90 %, against the number of links.

    The defaults take about half an hour on one idle core: most of it to train on histories of 1,024 events, then 9 s
    for each pair, 24 matrices of 1,024 x 1,024. The paper's 256 pairs take 35 minutes more. What is finished is kept.
    """
    from dataclasses import replace

    from limerank.errors import UsageError
    from limerank.study.spectrum.study import LONG_LOG, QUICK_LOG, SpectrumPlan, run_spectrum
    from limerank.training.run import FinishedRun

    use_threads(threads)
    plan = replace(SpectrumPlan().quick() if quick else SpectrumPlan(), seed=seed)
    asked: dict[str, Any] = {"pairs": pairs, "history": history, "candidates": candidates, "epochs": epochs}
    if links is not None or run:
        asked["links"] = () if links is None else tuple(parse_counts(links, "--links"))
    plan = replace(plan, **{name: value for name, value in asked.items() if value is not None})
    given = [FinishedRun.open(path) for path in run or []]
    if given and dataset is not None and not given[0].config.dataset.samefile(dataset):
        raise UsageError(f"--run {given[0].path}: was trained on {given[0].config.dataset}; leave --dataset out")
    if given:
        dataset = given[0].config.dataset
    with studying("spectrum", out, quick=quick) as folder:
        prepared = dataset_for(dataset, folder, overwrite=overwrite, log=QUICK_LOG if quick else LONG_LOG)
        study = run_spectrum(
            prepared, given, plan, folder, progress_for(as_json), quick=quick, overwrite=overwrite, workers=threads
        )
        deliver(study, folder, lambda: _table(study), as_json=as_json)


def _table(study: SpectrumStudy) -> None:
    from limerank.study.spectrum.results import CROSS, SELF

    rows = []
    for one in study.spectra:
        if one.matrix in (SELF, CROSS):
            nuclear, frobenius = one.energies["nuclear"], one.energies["frobenius"]
            rows.append(
                [
                    one.matrix,
                    one.source,
                    f"{nuclear.at_rank[study.links].mean:.3f}",
                    f"{frobenius.at_rank[study.links].mean:.3f}",
                    f"{nuclear.rank_for_90.mean:.1f}",
                    f"{frobenius.rank_for_90.mean:.1f}",
                    f"{one.effective_rank.mean:.1f}",
                ]
            )
    at = f"at {study.links}"
    columns = ["matrix", "of", f"sigma {at}", f"sigma^2 {at}", "90 % of sigma", "90 % of sigma^2", "effective rank"]
    emit_table(f"{study.pairs} pairs, {study.history:,} events x {study.candidates:,} candidates, means", columns, rows)
    emit_table(
        "effective rank against the number of links",
        ["ranker", "matrix", "links", "effective rank"],
        [
            [one.ranker, own.matrix, str(one.links), f"{own.effective_rank.mean:.1f}"]
            for one in study.by_links
            for own in one.matrices
        ],
    )
