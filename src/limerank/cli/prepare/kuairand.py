"""`limerank prepare kuairand-1k`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from limerank.cli.common import JsonOption, OverwriteOption, progress_for
from limerank.cli.prepare.common import OutOption, RawOption, SelectOnTestOption, prepare_app, publish

if TYPE_CHECKING:
    from limerank.data.raw.log import RawLog


@prepare_app.command(
    "kuairand-1k", epilog="Example: limerank prepare kuairand-1k --download --raw raw --out datasets/kuairand-1k"
)
def kuairand_1k(
    raw: RawOption,
    out: OutOption,
    download: Annotated[
        bool, typer.Option("--download", help="Fetch it from Zenodo into --raw first (1.1 GB).")
    ] = False,
    protocol: Annotated[
        str, typer.Option(metavar="paper|whole-log|first-16-days", help="Which days train, select and test.")
    ] = "paper",
    tasks: Annotated[
        str, typer.Option(metavar="NAMES", help="Feedback to predict, separated by commas.")
    ] = "is_click,long_view",
    minimum_item_events: Annotated[int, typer.Option(min=1, help="Rarer videos are dropped.")] = 30,
    include_random: Annotated[
        bool, typer.Option("--include-random", help="Also read the log of randomly shown videos.")
    ] = False,
    clock: Annotated[
        str, typer.Option(metavar="time_ms|logged", help="Where hour and weekday come from; 'logged' leaks a little.")
    ] = "time_ms",
    select_on_test: SelectOnTestOption = False,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Prepare KuaiRand-1K from its raw CSV files (docs/datasets/kuairand-1k.md)."""
    from limerank.data.sources.kuairand import download_kuairand, read_kuairand

    def read() -> RawLog:
        return read_kuairand(
            download_kuairand(raw, progress=progress_for(as_json)) if download else raw,
            protocol=protocol,
            tasks=tuple(filter(None, (task.strip() for task in tasks.split(",")))),
            include_random=include_random,
            minimum_item_events=minimum_item_events,
            clock=clock,
        )

    publish(read, out, overwrite=overwrite, as_json=as_json, select_on_test=select_on_test)
