"""Tables that TorchRec cuts over real processes: what is trained, saved and exported is what one process has."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from engines import need

from limerank.api.run import Run
from limerank.data.store.dataset import StoredDataset
from limerank.training.checkpoint import LAST, read_any_header
from limerank.training.unfinished import unfinished_folder
from with_engines.shared_trainings import configuration, configurations, in_float32, jobs_of, log, steps_of
from with_engines.torchrun import assert_close, assert_close_in_float32, torchrun, work
from with_engines.training_program import work as work_here

need("torchrec", "torchrec")
__all__ = ["log"]  # the fixture
EXACT = 1e-9  # in float64, where all that differs is the order of sums
CHOSEN = {
    "tasks that weigh differently, clipped, L2": "row_wise",
    "dense updates of tables": "table_wise",
    "the paper's ranker": "auto",
    "statistics of the batch": "row_wise",
}
"""Trainings, and how tables are cut in them."""

Trained = tuple[Path, dict[str, dict[str, Any]]]


@pytest.fixture(scope="module")
def alone(log: StoredDataset, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """The same by one process, without TorchRec."""
    folder = tmp_path_factory.mktemp("alone")
    asked = {name: config for name, config in configurations(log).items() if name in CHOSEN}
    jobs = jobs_of(asked, folder)
    work_here(jobs + in_float32(jobs))
    return folder, asked


def cut(asked: dict[str, dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """All of them with tables cut as chosen."""
    jobs = jobs_of(asked, folder, embeddings="torchrec")
    for name, job in zip(asked, jobs, strict=True):
        job["config"]["distributed"]["sharding"] = CHOSEN[name]
    return jobs


@pytest.mark.parametrize("processes", [2, 4])
def test_cut_tables_are_trained_as_whole_ones(alone: Trained, tmp_path: Path, processes: int) -> None:
    """Weights and metrics to 1e-9: rows, by row and dense Adam, L2, the common norm that clips, lists of values.

    In float32 to 1e-5, but for biases of keys, which nothing that is predicted depends on. Four
    processes have more ranks than some features have rows. Nothing is said that nobody can act on.
    """
    one, asked = alone
    jobs = cut(asked, tmp_path)
    errors = work(processes, jobs + in_float32(jobs), tmp_path)
    assert "arning" not in errors, errors
    for name in asked:
        assert_close(one / name, tmp_path / name, EXACT)
        assert_close_in_float32(one / f"{name}, float32", tmp_path / f"{name}, float32")


def test_a_share_without_history(log: StoredDataset, tmp_path: Path) -> None:
    """One request a rank, of which some have no history to look up: nobody waits for gradients that do not come.

    Ranks are asked for one row of a table, whose gradient may be zero; weights of a scan have nothing to scan; and
    ISAB makes much of bits that are lost on the way.
    """
    models: list[tuple[str, dict[str, Any]]] = [
        ("dense", {"name": "mha"}),
        ("dense", {"name": "twin"}),
        ("dense", {"name": "sim", "top": 4, "search": "hard", "category": "title"}),
        ("dense", {"name": "isab"}),
        ("sparse", {"name": "mamba"}),
        ("sparse", {"name": "performer"}),
        ("sparse", {"name": "linformer"}),
    ]
    asked = {
        f"cold {model['name']}": configuration(log, model, batch_requests=2, epochs=1, embedding_updates=updates)
        for updates, model in models
    }
    work_here(jobs_of(asked, tmp_path / "alone"))
    work(2, jobs_of(asked, tmp_path / "cut", embeddings="torchrec", sharding="row_wise"), tmp_path)
    for name in asked:
        assert_close(tmp_path / "alone" / name, tmp_path / "cut" / name, EXACT)


def test_another_number_of_processes_goes_on(alone: Trained, log: StoredDataset, tmp_path: Path) -> None:
    """Two with cut tables, one plain, three with cut tables: as if it had never been stopped."""
    one, asked = alone
    jobs = cut(asked, tmp_path)
    for job in jobs:
        job["config"]["train"]["checkpoint_steps"] = 1
    work(2, [{**job, "steps": 2} for job in jobs], tmp_path)
    work_here([{**job, "steps": steps_of(log) // 2 + 1} for job in jobs])
    for job in jobs:
        assert 0 < read_any_header(unfinished_folder(Path(job["out"])) / LAST).state.step < steps_of(log)
    work(3, jobs, tmp_path)
    for name in asked:
        assert_close(one / name, tmp_path / name, EXACT)


def test_a_bundle_does_not_tell_how_many_saved_it(log: StoredDataset, tmp_path: Path) -> None:
    """The same weights, saved by one process, by two with whole tables and by two with cut ones: the same bytes."""
    config = configurations(log)["the paper's ranker"]
    work_here([{"config": config, "out": str(tmp_path / "run"), "type": "float32"}])
    held = {"whole": {}, "rows": {"embeddings": "torchrec", "sharding": "row_wise"}}
    held |= {"tables": {"embeddings": "torchrec", "sharding": "table_wise"}}
    weights = tmp_path / "run/model.safetensors"
    jobs = [
        {"config": {**config, "distributed": way}, "weights": str(weights), "out": str(tmp_path / name)}
        for name, way in held.items()
    ]
    work(2, [{**job, "type": "float32"} for job in jobs], tmp_path)
    expected = exported(tmp_path / "run", tmp_path / "stores/run")
    for name in held:
        assert (tmp_path / name).read_bytes() == weights.read_bytes(), name
        copy = tmp_path / f"run-{name}"
        shutil.copytree(tmp_path / "run", copy)
        shutil.copy(tmp_path / name, copy / "model.safetensors")
        assert exported(copy, tmp_path / "stores" / name) == expected


def exported(run: Path, store: Path) -> dict[str, str]:
    """The hashes of the files of a bundle."""
    bundle = Run.open(run).exported(store, quiet=True).bundle
    return {record.path: record.sha256 for record in bundle.manifest.files}


def test_the_command_trains_with_torchrec(log: StoredDataset, tmp_path: Path) -> None:
    """As it is typed: one voice, no wall of warnings, a run like any other."""
    sets = ["train.epochs=1", "distributed.embeddings=torchrec", "model.width=16"]
    asked = [word for one in sets for word in ("--set", one)]
    run = tmp_path / "run"
    words = ["-m", "limerank", "train", "lime-mha", "--dataset", str(log.path), "--out", str(run)]
    code, said, errors = torchrun(2, *words, *asked)
    assert code == 0, errors
    assert said.count("trained lime-mha") == 1
    assert len([line for line in errors.splitlines() if line.strip()]) <= 3, errors
    assert Run.open(run).evaluate(quiet=True).metrics.keys() == {"click", "buy"}
