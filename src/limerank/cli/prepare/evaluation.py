"""`limerank prepare evaluation`."""

from __future__ import annotations

from typing import Annotated

import typer

from limerank.cli.common import JsonOption, OverwriteOption
from limerank.cli.prepare.common import OutOption, prepare_app, publish


@prepare_app.command(epilog="Example: limerank prepare evaluation hard --out datasets/hard")
def evaluation(
    log: Annotated[str, typer.Argument(metavar="easy|medium|hard", help="Which of the three.")],
    out: OutOption,
    times: Annotated[int, typer.Option(min=1, help="So many times its users, for what a larger log is worth.")] = 1,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Draw one of the logs on which rankers are compared; they never change (docs/explanation/evaluation-logs.md).

    With --times users are more and all else is alike: what do rankers gain by a larger log?
    """
    from limerank.data.sources.simulation.evaluation import evaluation_log

    publish(lambda: evaluation_log(log, times), out, overwrite=overwrite, as_json=as_json)
