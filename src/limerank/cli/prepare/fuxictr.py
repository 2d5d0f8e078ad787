"""`limerank prepare fuxictr`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from limerank.cli.common import JsonOption, OverwriteOption
from limerank.cli.prepare.common import OutOption, SelectOnTestOption, prepare_app, publish


@prepare_app.command(
    epilog="Example: limerank prepare fuxictr --config config/dataset_config.yaml --dataset-id kuaivideo_x1 "
    "--data-root data --out datasets/kuaivideo"
)
def fuxictr(
    config: Annotated[
        Path, typer.Option(help="dataset_config.yaml, a folder with it, a tuner file, or a feature_map.json.")
    ],
    out: OutOption,
    dataset_id: Annotated[
        str | None, typer.Option(help="Which dataset of the file; needed if there are several.")
    ] = None,
    data_root: Annotated[
        Path | None, typer.Option(help="Where to look for data files; default: relative to the configuration.")
    ] = None,
    user_id: Annotated[
        str | None, typer.Option(help="Column of the user id; default: the group_id or a usual name.")
    ] = None,
    item_id: Annotated[str | None, typer.Option(help="Column of the item id; default: a usual name.")] = None,
    max_history: Annotated[int | None, typer.Option(min=1, help="Keep no longer histories than this.")] = None,
    select_on_test: SelectOnTestOption = False,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Prepare a FuxiCTR or LongCTR dataset and say what was understood and ignored (docs/datasets/fuxictr.md)."""
    from limerank.data.sources.fuxictr.read import Choices, read_fuxictr

    choices = Choices(user_id, item_id, max_history)
    publish(
        lambda: read_fuxictr(config, dataset_id, data_root, choices),
        out,
        overwrite=overwrite,
        as_json=as_json,
        select_on_test=select_on_test,
    )
