"""`limerank study`: the paper's experiments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from limerank.cli.common import (
    JsonOption,
    OverwriteOption,
    ThreadsOption,
    emit_json,
    emit_table,
    parse_counts,
    parse_rankers,
    progress_for,
    say,
    use_threads,
)

app = typer.Typer(no_args_is_help=True, help="The paper's experiments on your machine.")

DatasetOption = Annotated[
    Path | None, typer.Option(help="A prepared dataset; default: the quickstart's simulated log, made in --out.")
]
OutOption = Annotated[Path, typer.Option("--out", help="Folder for datasets, runs and results.")]


@app.command(epilog="Example: limerank study accuracy --seeds 3 --out studies/accuracy")
def accuracy(
    out: OutOption = Path("studies/accuracy"),
    dataset: DatasetOption = None,
    models: Annotated[str, typer.Option(help="Rankers, comma-separated.")] = "ttsn,mha,lime-mha",
    seeds: Annotated[int, typer.Option(min=1, help="How many training seeds, from 1 on.")] = 3,
    epochs: Annotated[int | None, typer.Option(min=1, help="At most so many, for all; default 4.")] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="A YAML file: `train` for all rankers, and `rankers` with what is their own."),
    ] = None,
    overwrite: OverwriteOption = False,
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="Trainings side by side, a thread each; default: all cores.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """AUC, gAUC and NE of several rankers, several seeds each, and the fraction of the gap each closes."""
    from limerank import files
    from limerank.study.accuracy import run_accuracy, spread
    from limerank.study.configuration import StudyConfig

    chosen = parse_rankers(models)
    given = StudyConfig.read(config) if config is not None else StudyConfig()
    if epochs is not None or "epochs" not in given.train:
        given = given.with_train(epochs=epochs or 4)
    progress = progress_for(as_json)
    study = run_accuracy(
        _dataset(dataset, out, overwrite),
        chosen,
        range(1, seeds + 1),
        given,
        out,
        progress,
        overwrite=overwrite,
        workers=threads,
    )
    result = out / "accuracy.json"
    facts = {**study.model_dump(mode="json"), "verdicts": {n: v.model_dump() for n, v in study.verdicts().items()}}
    files.write_json(result, facts)
    if as_json:
        emit_json({**facts, "result": str(result)})
        return
    rows = [
        [
            name,
            spread([r.test.auc for r in study.of(name)]),
            spread([r.test.gauc for r in study.of(name)]),
            spread([r.test.ne for r in study.of(name)]),
            spread(study.gap_closed.get(name, [])),
            f"{sum(r.seconds for r in study.of(name)) / seeds:.0f}",
        ]
        for name in study.models()
    ]
    if study.oracle is not None:
        rows.append(
            ["oracle", *(spread([v]) for v in (study.oracle.auc, study.oracle.gauc, study.oracle.ne)), "-", "-"]
        )
    emit_table(
        f"task '{study.task}', {seeds} seed{'s' * (seeds > 1)}, mean ± standard deviation",
        ["model", "AUC", "gAUC", "NE", "gap closed", "seconds"],
        rows,
    )
    for name, verdict in study.verdicts().items():
        say(f"{name}: {verdict.text()}")
    if study.skyline_lost():
        say("in some seed a skyline was no better than the baseline: there is no gap to close, so it closes none")
    say(f"results: {result}")


@app.command(epilog="Example: limerank study latency --candidates 1000,10000 --history 256,1024")
def latency(
    out: OutOption = Path("studies/latency"),
    dataset: DatasetOption = None,
    models: Annotated[str, typer.Option(help="Rankers, comma-separated.")] = "ttsn,mha,lime-mha",
    candidates: Annotated[str, typer.Option(help="Numbers of candidates.")] = "16,128,1024,8192,32768",
    history: Annotated[str, typer.Option(help="History lengths.")] = "16,128,1024,4096,16384",
    width: Annotated[int, typer.Option(min=1, help="d, the model width.")] = 32,
    head: Annotated[int, typer.Option(min=1, help="Hidden width of the interaction network.")] = 64,
    repeats: Annotated[int, typer.Option(min=1)] = 7,
    overwrite: OverwriteOption = False,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Milliseconds against candidates and history, user and candidate stage apart, with untrained weights."""
    import torch

    from limerank import files
    from limerank.data.store.dataset import StoredDataset
    from limerank.models import build_ranker
    from limerank.study.latency import contestants, measure_peaks, sweep

    use_threads(threads)
    counts, lengths = parse_counts(candidates, "--candidates"), parse_counts(history, "--history")
    opened = StoredDataset.open(_dataset(dataset, out, overwrite))
    torch.manual_seed(0)
    tasks = len(opened.schema.tasks)
    rankers = {
        name: build_ranker({"name": name, "width": width, "head": [head]}, opened.encoders.space(), tasks, "--models")
        for name in parse_rankers(models)
    }
    peaks = measure_peaks()
    with progress_for(as_json).bar("latency", len(counts) + len(lengths)) as bar:
        by_candidates, by_history = sweep(
            contestants(rankers, opened),
            opened,
            candidates=counts,
            histories=lengths,
            base_candidates=1024,
            base_history=1024,
            repeats=repeats,
            done=bar.advance,
        )
    facts = {
        "machine": peaks.model_dump(),
        "by_candidates": [entry.model_dump() for entry in by_candidates],
        "by_history": [entry.model_dump() for entry in by_history],
    }
    result = out / "latency.json"
    files.write_json(result, facts)
    if as_json:
        emit_json({**facts, "result": str(result)})
        return
    for title, entries in (
        ("against candidates, history 1,024", by_candidates),
        ("against history, 1,024 candidates", by_history),
    ):
        emit_table(
            title,
            ["history", "candidates", "model", "path", "user ms", "score ms", "total ms"],
            [
                [e.history, e.candidates, e.model, e.path, f"{e.user_ms:.3f}", f"{e.score_ms:.3f}", f"{e.total_ms:.3f}"]
                for e in entries
            ],
        )
    say(
        f"{peaks.threads} threads; peaks in this process: {peaks.gemm_gflops:.0f} GFLOP/s, "
        f"{peaks.copy_gbytes_per_second:.0f} GB/s; results: {result}"
    )


def _dataset(dataset: Path | None, out: Path, overwrite: bool) -> Path:
    if dataset is not None:
        return dataset
    from limerank.data.build.prepare import prepare
    from limerank.data.sources.simulated import SimulatedConfig, simulate
    from limerank.data.store.manifest import MANIFEST

    if (out / "dataset" / MANIFEST).is_file() and not overwrite:
        return out / "dataset"
    return prepare(simulate(SimulatedConfig()), out / "dataset", overwrite=overwrite).path
