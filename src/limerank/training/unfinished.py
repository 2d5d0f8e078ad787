"""The folder of a training that is under way: `RUN.unfinished`, which becomes `RUN` when the training is finished.

It is there from the first step on, so that a training that is killed can be resumed; a run that stands at `RUN` is
always whole, and one that is being replaced stays until the new one is finished.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from limerank import files
from limerank.errors import ConflictError, DataError
from limerank.training.checkpoint import LAST
from limerank.training.run import CONFIG, RECORD, UNFINISHED_ENDING
from limerank.training.steps.not_finite import FAILED_BATCH

LOCK, REPLACES = "lock", "replaces-a-run"


def unfinished_folder(out: Path) -> Path:
    """Where a run is while it trains."""
    named = out if out.name else Path(os.path.abspath(out))  # noqa: PTH100 (`.` has no name, and links stay links)
    return named.with_name(f"{named.name}{UNFINISHED_ENDING}")


def finished_folder(named: Path) -> Path:
    """Where a run will be, by that name or by the one that its folder has until then."""
    return named.with_name(named.name.removesuffix(UNFINISHED_ENDING)) if named.name else named


def resume_command(out: Path) -> str:
    """What to type to go on with an unfinished training."""
    return f"limerank train --resume {shlex.quote(str(out))}"


@contextmanager
def begun(out: Path, *, overwrite: bool) -> Iterator[Path]:
    """The folder of a new training; `clear` it when all that can be checked has been.

    Another training's, if it can be resumed, is replaced only by `overwrite`. If this one fails before its first
    checkpoint, nothing of it is left, but for a batch that it failed on.
    """
    files.check_free(out, marker=RECORD, overwrite=overwrite)
    folder = unfinished_folder(out)
    if is_resumable(folder) and not overwrite:
        raise ConflictError(
            f"{folder} holds a training that can be resumed: {resume_command(out)}; or begin anew with --overwrite "
            "(in Python overwrite=True)"
        )
    if folder.is_dir() and any(folder.iterdir()) and not any((folder / name).exists() for name in (LOCK, CONFIG)):
        raise ConflictError(f"{folder}: holds something else than a training; choose another --out")
    folder.mkdir(parents=True, exist_ok=True)
    own = folder.stat().st_ino
    with files.locked(folder / LOCK, "training"):
        try:
            with _telling(out):
                yield folder
        finally:
            still_there = folder.is_dir() and folder.stat().st_ino == own
            if still_there and not is_resumable(folder) and not (folder / FAILED_BATCH).exists():
                shutil.rmtree(folder)


def clear(folder: Path, *, overwrite: bool) -> None:
    """Make room for a new training in its folder; what was there is given up."""
    for path in folder.iterdir():
        if path.name != LOCK:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    if overwrite:
        files.write_text(folder / REPLACES, "")


@contextmanager
def reopened(out: Path) -> Iterator[Path]:
    """The folder of a training that was stopped, locked for whoever resumes it."""
    folder = unfinished_folder(out)
    if not folder.is_dir():
        if (out / RECORD).is_file():
            raise ConflictError(f"{out}: is finished; to train it longer, train anew with more train.epochs")
        raise DataError(f"{folder}: no unfinished training here; begin one: limerank train CONFIG --out {out}")
    with files.locked(folder / LOCK, "training"):
        if not is_resumable(folder):
            raise DataError(
                f"{folder / LAST}: no checkpoint was written yet; begin anew: limerank train CONFIG --out {out}"
            )
        with _telling(out):
            yield folder


def is_resumable(folder: Path) -> bool:
    """Whether there is something to go on from."""
    return (folder / LAST).is_file() or is_done(folder)


def is_done(folder: Path) -> bool:
    """Whether only the last step is missing: to become the run."""
    return (folder / RECORD).is_file()


def publish(folder: Path, out: Path) -> None:
    """Make a finished training the run at `out`; then what was only needed on the way goes."""
    overwrite = (folder / REPLACES).exists()
    files.publish_directory(folder.absolute(), out.absolute(), marker=RECORD, overwrite=overwrite)
    for name in (REPLACES, LOCK):
        (out / name).unlink(missing_ok=True)
    shutil.rmtree(out / LAST.parent, ignore_errors=True)


@contextmanager
def _telling(out: Path) -> Iterator[None]:
    """Ctrl-C where the training itself had no word for it: before its first step, or after its last."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        if stopped.args:
            raise
        saved = is_resumable(unfinished_folder(out))
        kept = f"go on with: {resume_command(out)}" if saved else "nothing was kept: no step was done yet"
        raise KeyboardInterrupt(f"interrupted; {kept}") from None
