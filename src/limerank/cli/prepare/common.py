"""`limerank prepare`: what every source shares. The sources' own commands are in `prepare_*.py`."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from limerank.cli.common import emit_json, first_training, say

if TYPE_CHECKING:
    from limerank.data.raw.log import RawLog
    from limerank.data.store.dataset import StoredDataset

prepare_app = typer.Typer(
    no_args_is_help=True, help="Turn a log into a dataset: checked, split, encoded on train only, memory-mapped."
)

OutOption = Annotated[Path, typer.Option("--out", help="Folder of the new dataset.")]
RawOption = Annotated[Path, typer.Option("--raw", help="Folder with the files as their owner publishes them.")]
SelectOnTestOption = Annotated[
    bool,
    typer.Option(
        "--select-on-test", help="Carve no validation part and select on the test part, as leaderboards do; recorded."
    ),
]


def publish(
    read: Callable[[], RawLog],
    out: Path,
    *,
    overwrite: bool,
    as_json: bool,
    select_on_test: bool = False,
    compare: Callable[[StoredDataset], list[str]] | None = None,
) -> None:
    """Read a raw log, prepare it at `out` and say what came out; `compare` adds what it finds in the dataset."""
    from dataclasses import replace

    from limerank import files
    from limerank.api.dataset import Dataset
    from limerank.data.store.manifest import MANIFEST
    from limerank.errors import if_interrupted

    started = time.perf_counter()
    files.check_free(out, marker=MANIFEST, overwrite=overwrite)
    files.check_writable(out, "--out")
    with if_interrupted(f"interrupted; no dataset was written to {out}"):
        raw = read()
    if select_on_test:
        split = raw.schema.split.model_copy(update={"select_on_test": True})
        raw = replace(raw, schema=raw.schema.model_copy(update={"split": split}))
    dataset = Dataset.build(raw, out=out, overwrite=overwrite, quiet=as_json)
    compared = compare(dataset) if compare is not None else []
    facts: dict[str, Any] = {
        "dataset": str(out),
        "fingerprint": dataset.fingerprint,
        **dataset.manifest.counts,
        "dropped": dataset.manifest.dropped,
        "bad_rows": dataset.set_aside(),
        "notes": [*dataset.notes, *compared],
        "seconds": round(time.perf_counter() - started, 2),
    }
    if as_json:
        emit_json(facts)
        return
    say(
        f"prepared {facts['events']:,} events in {facts['requests']:,} requests in {facts['seconds']} s: {out} "
        f"(fingerprint {dataset.fingerprint[:12]})"
    )
    for line in compared:
        say(line)
    say(f"next: limerank describe {out}; then {first_training(out)}")
