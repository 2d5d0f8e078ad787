"""`limerank study accuracy`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from limerank.cli.common import JsonOption, OverwriteOption, emit_table, progress_for, say
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
    from limerank.study.accuracy.results import AccuracyStudy
    from limerank.study.configuration import StudyConfig

DEFAULT_EPOCHS = 4
QUICK_MODELS, QUICK_SEEDS, QUICK_TRIALS = "ttsn,lime-mha,mha", 2, 2


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog="Example: limerank study accuracy --search 3 --seeds 3 --out studies/accuracy")(accuracy)


def accuracy(
    out: OutOption = Path("studies/accuracy"),
    dataset: DatasetOption = None,
    models: Annotated[
        str | None,
        typer.Option(
            help="Rankers, variants of --config and groups (paper, peers, all), comma-separated; default: the paper's "
            "table (b), its linear-attention peers, and all variants.",
            show_default=False,
        ),
    ] = None,
    seeds: SeedsOption = None,
    search: Annotated[
        int | None,
        typer.Option(min=0, help="Trials for every ranker, chosen by validation NE; 0, the default: none."),
    ] = None,
    found: Annotated[
        Path | None, typer.Option(help="The accuracy.json of another study, whose search is used instead.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="At most so many, for all; default 4.")] = None,
    preset: Annotated[
        str | None, typer.Option(help="The paper's sizes for a dataset: kuairand, taobao-ad or industrial.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="A YAML file: `train` for all, `rankers`, `variants` and `space`; see compare-rankers.md."),
    ] = None,
    task: Annotated[str | None, typer.Option(help="Of the table; default: the first of the dataset.")] = None,
    overwrite: OverwriteOption = False,
    threads: SideBySideOption = None,
    quick: QuickOption = False,
    as_json: JsonOption = False,
) -> None:
    """Accuracy of many rankers, several seeds each: the paper's table (b) on your data.

    With --search all get the same number of trials on the validation part; without, each has its defaults.
    """
    from dataclasses import replace

    from limerank.data.sources.simulated import SimulatedConfig, simulated_schema
    from limerank.data.store.dataset import StoredDataset
    from limerank.study.accuracy.run import Asked, run_accuracy
    from limerank.study.configuration import StudyConfig

    seeds = seeds or (QUICK_SEEDS if quick else 3)
    asked = Asked(
        dataset=dataset or out,
        out=out,
        config=_config(StudyConfig.read(config) if config is not None else StudyConfig(), preset, epochs, quick),
        seeds=range(1, seeds + 1),
        models=models or (QUICK_MODELS if quick else None),
        search=search if search is not None else (QUICK_TRIALS if quick and found is None else 0),
        found=found,
        task=task,
        overwrite=overwrite,
        quick=quick,
        workers=threads,
    )
    asked.check(simulated_schema() if dataset is None else StoredDataset.open(dataset).schema)
    tiny = SimulatedConfig(users=200, items=300, topics=6, sessions=8, slots=6, seed=3) if quick else None
    with studying("accuracy", out, quick=quick) as folder:
        prepared = dataset_for(dataset, folder, overwrite=overwrite, log=tiny)
        study = run_accuracy(replace(asked, dataset=prepared, out=folder), progress_for(as_json))
        deliver(study, folder, lambda: _print(study), as_json=as_json)


def _config(given: StudyConfig, preset: str | None, epochs: int | None, quick: bool) -> StudyConfig:
    if preset is not None:
        given = given.model_copy(update={"preset": preset})
    given = given.checked()
    if epochs is not None or not given.says("epochs"):
        given = given.with_train(epochs=epochs or (1 if quick else DEFAULT_EPOCHS))
    return given


def _print(study: AccuracyStudy) -> None:
    from limerank.study.accuracy import table

    seeds = len(study.made.seeds)
    emit_table(
        f"{study.dataset.name}, task '{study.task}', {seeds} seed{'s' * (seeds > 1)}, mean ± standard deviation",
        list(table.ACCURACY_COLUMNS),
        table.accuracy_rows(study),
    )
    if columns := table.published_columns(study):
        say("")
        emit_table(f"published for {study.dataset.published}", ["row", "AUC", *columns], table.published_rows(study))
    say("")
    emit_table(
        f"differences, {study.level:.0%} intervals over users and seeds (* leaves out zero)",
        list(table.DIFFERENCE_COLUMNS),
        table.difference_rows(study),
    )
    say("")
    emit_table("cost", list(table.COST_COLUMNS), table.cost_rows(study))
    if study.search is not None:
        say("")
        emit_table("search, on validation only", list(table.TRIAL_COLUMNS), table.trial_rows(study))
    say("")
    for name, found in table.verdicts(study).items():
        say(f"{name}: {found}")
    for caveat in study.caveats:
        say(f"note: {caveat}")
