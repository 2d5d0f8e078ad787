"""`limerank prepare table`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from limerank.cli.common import JsonOption, OverwriteOption
from limerank.cli.prepare.common import OutOption, SelectOnTestOption, prepare_app, publish


@prepare_app.command(epilog="Example: limerank prepare table --raw my-log --out datasets/mine")
def table(
    raw: Annotated[
        Path,
        typer.Option(
            "--raw", help="Folder with dataset.yaml and the tables (CSV or Parquet), or a dataset.yaml itself."
        ),
    ],
    out: OutOption,
    schema: Annotated[
        Path | None, typer.Option("--schema", help="Description of the log, if it is not dataset.yaml in the folder.")
    ] = None,
    select_on_test: SelectOnTestOption = False,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Prepare your own log (docs/how-to/bring-your-own-log.md)."""
    from limerank.data.sources.table.read import read_table_log

    publish(
        lambda: read_table_log(raw, schema_file=schema),
        out,
        overwrite=overwrite,
        as_json=as_json,
        select_on_test=select_on_test,
    )
