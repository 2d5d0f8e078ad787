"""`limerank prepare taobao-ad`."""

from __future__ import annotations

from typing import Annotated

import typer

from limerank.cli.common import JsonOption, OverwriteOption, progress_for
from limerank.cli.prepare.common import OutOption, RawOption, SelectOnTestOption, prepare_app, publish


@prepare_app.command(
    name="taobao-ad", epilog="Example: limerank prepare taobao-ad --raw TaobaoAd_x1 --out datasets/taobao-ad"
)
def taobao_ad(
    raw: RawOption,
    out: OutOption,
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Compare md5, rows and vocabularies with the published ones.")
    ] = True,
    align_histories: Annotated[
        bool,
        typer.Option("--align-histories", help="Line up lists of different length at their newest end; else an error."),
    ] = False,
    select_on_test: SelectOnTestOption = False,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Prepare TaobaoAd_x1: train.csv and test.csv of the RecZoo collection (docs/datasets/taobao-ad.md)."""
    from limerank.data.sources.taobao_ad import compare_with_published, read_taobao_ad

    publish(
        lambda: read_taobao_ad(raw, verify=verify, align=align_histories, progress=progress_for(as_json)),
        out,
        overwrite=overwrite,
        as_json=as_json,
        select_on_test=select_on_test,
        compare=compare_with_published,
    )
