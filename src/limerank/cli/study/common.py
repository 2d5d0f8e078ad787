"""Options and steps that the studies share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from limerank.cli.common import emit_json, say

if TYPE_CHECKING:
    from limerank.data.sources.simulated import SimulatedConfig
    from limerank.study.results import StudyResult

DatasetOption = Annotated[
    Path | None, typer.Option(help="A prepared dataset; default: the evaluation log medium, made in --out.")
]
OutOption = Annotated[Path, typer.Option("--out", help="Folder for datasets, runs and results.")]
QuickOption = Annotated[
    bool,
    typer.Option(
        "--quick",
        help="Small sizes where no option says others, within two minutes: shows that it works, proves nothing. Below "
        "--out, in quick.",
    ),
]
SeedsOption = Annotated[int | None, typer.Option(min=1, help="How many training seeds, from 1 on; default 3.")]
SideBySideOption = Annotated[
    int | None, typer.Option("--threads", min=1, help="Trainings side by side, a thread each; default: all cores.")
]


@contextmanager
def studying(study: str, out: Path, *, quick: bool) -> Iterator[Path]:
    """The folder of a study, for one process at a time.

    Quick modes have one of their own: what they make is never taken for a result, and never replaces one.
    """
    from limerank import files
    from limerank.errors import if_interrupted

    folder = out / "quick" if quick else out
    files.check_writable(folder, "--out")
    folder.mkdir(parents=True, exist_ok=True)
    said = f"interrupted; what is finished stays in {folder}, and the same command goes on from there"
    with files.locked(folder / f"{study}.lock", "studying"), if_interrupted(said):
        yield folder


def deliver(result: StudyResult, folder: Path, show: Callable[[], None], *, as_json: bool) -> None:
    """Write a study's JSON file and page, then show it: the one JSON object, or tables and where the files are."""
    from limerank.study.pages import STUDIES
    from limerank.study.results import QUICK, write_study

    study = STUDIES[result.study]
    described, page = write_study(result, folder, study.fill(), study.title())
    if as_json:
        emit_json({**result.model_dump(mode="json"), "result": str(described), "page": str(page)})
        return
    show()
    if result.made.quick:
        say(QUICK)
    say(f"results: {described}; page: {page}")


def dataset_for(
    dataset: Path | None, folder: Path, *, overwrite: bool = False, log: SimulatedConfig | None = None
) -> Path:
    """The dataset that was named, or one made where the study is: of a simulated log, or the evaluation log."""
    if dataset is not None:
        return dataset
    from limerank.study.simulated_log import evaluation_dataset, simulated_dataset

    if log is None:
        return evaluation_dataset(folder, overwrite=overwrite)
    return simulated_dataset(log, folder / "dataset", overwrite=overwrite)
