"""`limerank prepare movielens`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from limerank.cli.common import JsonOption, OverwriteOption, progress_for
from limerank.cli.prepare.common import OutOption, RawOption, SelectOnTestOption, prepare_app, publish

if TYPE_CHECKING:
    from limerank.data.raw.log import RawLog


@prepare_app.command(epilog="Example: limerank prepare movielens --download 1m --raw raw --out datasets/ml-1m")
def movielens(
    raw: RawOption,
    out: OutOption,
    download: Annotated[
        str | None,
        typer.Option(metavar="100k|1m|latest-small", help="Fetch this edition from GroupLens into --raw first."),
    ] = None,
    positive_from: Annotated[float, typer.Option(help="Ratings from here on are a like.")] = 4.0,
    split: Annotated[
        str, typer.Option(metavar="last_fraction|global_time", help="How test requests are chosen.")
    ] = "last_fraction",
    select_on_test: SelectOnTestOption = False,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Prepare MovieLens: 100k, 1m, latest and their relatives (docs/datasets/movielens.md)."""
    from limerank.data.sources.movielens.read import download_movielens, read_movielens

    def read() -> RawLog:
        folder = download_movielens(download, raw, progress=progress_for(as_json)) if download else raw
        return read_movielens(folder, positive_from=positive_from, split=split)

    publish(read, out, overwrite=overwrite, as_json=as_json, select_on_test=select_on_test)
