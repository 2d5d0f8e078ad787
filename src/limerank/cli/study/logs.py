"""`limerank study logs`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from limerank.cli.common import JsonOption, OverwriteOption, emit_table, progress_for
from limerank.cli.study.common import OutOption, QuickOption, deliver, studying


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        epilog="Example: limerank study logs --dataset datasets/mine --dataset datasets/easy --out studies/logs"
    )(logs)


def logs(
    out: OutOption = Path("studies/logs"),
    dataset: Annotated[
        list[Path] | None,
        typer.Option(help="A prepared dataset; may be repeated; default: the three evaluation logs, made in --out."),
    ] = None,
    quick: QuickOption = False,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
) -> None:
    """What logs are like: sizes, lengths, popularity, repeats, drift, floors of counting; nothing is trained."""
    from limerank.data.store.dataset import StoredDataset
    from limerank.errors import UsageError
    from limerank.study.logs.page import property_rows
    from limerank.study.logs.run import evaluation_datasets, run_logs

    paths = dataset or []
    for number, path in enumerate(paths):
        if path.resolve() in [before.resolve() for before in paths[:number]]:
            raise UsageError(f"--dataset {path}: is named twice; leave one of them out")
    given = [StoredDataset.open(path) for path in paths]
    with studying("logs", out, quick=quick) as folder:
        chosen = given or evaluation_datasets(folder, quick=quick, overwrite=overwrite)
        result = run_logs(chosen, progress_for(as_json), quick=quick)
        columns = ["", *(log.name for log in result.logs)]
        deliver(result, folder, lambda: emit_table("logs", columns, property_rows(result.logs)), as_json=as_json)
