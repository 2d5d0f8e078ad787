"""Training: learns, stops early, repeats itself, and leaves a complete run folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from sklearn.metrics import roc_auc_score

from limerank.api.run import Run
from limerank.config import RunConfig, TrainConfig, load_run_config
from limerank.data.build.prepare import prepare
from limerank.data.raw.log import RawLog
from limerank.data.sources.simulated import SimulatedConfig, simulate
from limerank.data.store.dataset import StoredDataset
from limerank.errors import ConflictError, DataError, UsageError
from limerank.evaluation.evaluate import evaluate, evaluation_loader, oracle, predict
from limerank.progress import Progress
from limerank.splits import Part
from limerank.training.optimizer import learning_rate_factor
from limerank.training.trainer import train

QUIET = Progress(quiet=True)


def epoch_lines(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "epoch"]


def test_a_run_folder_says_everything(runs: dict[str, Run], dataset: StoredDataset) -> None:
    run = runs["lime-mha"]
    written = {"config.yaml", "run.json", "metrics.jsonl", "model.safetensors", "report.html"}
    assert {p.name for p in run.path.iterdir()} == written
    assert run.record.data_fingerprint == dataset.fingerprint
    assert run.record.seed == 1
    assert {"limerank", "torch", "python", "numpy", "polars"} <= set(run.record.versions)
    lines = epoch_lines(run.path)
    assert [line["epoch"] for line in lines] == list(range(1, run.record.epochs + 1))
    assert lines[-1]["train_loss"] < lines[0]["train_loss"]
    assert set(run.record.test) == {"click", "long_view"}


def test_the_folder_can_be_moved_with_its_dataset(runs: dict[str, Run]) -> None:
    """The dataset's path is relative to the run, so no absolute path is written down."""
    values = yaml.safe_load((runs["ttsn"].path / "config.yaml").read_text())
    assert not Path(values["dataset"]).is_absolute()


@pytest.mark.parametrize("name", ["ttsn", "mha", "lime-mha"])
def test_recorded_metrics_can_be_computed_again(runs: dict[str, Run], dataset: StoredDataset, name: str) -> None:
    run = Run.open(runs[name].path)
    loader = evaluation_loader(dataset, Part.TEST, run.config.train.max_history)
    again = evaluate(run.ranker(dataset), loader)
    for task, metrics in run.record.test.items():
        assert again[task].auc == pytest.approx(metrics.auc, abs=1e-6)
        assert again[task].ne == pytest.approx(metrics.ne, abs=1e-6)


def test_same_seed_same_result(dataset: StoredDataset, tmp_path: Path) -> None:
    config = RunConfig(
        dataset=dataset.path,
        model={"name": "lime-mha"},
        train=TrainConfig(epochs=1, batch_requests=32, max_history=10),
        seed=5,
    )
    first, second = (train(config, tmp_path / name, QUIET) for name in "ab")
    assert first.record.test == second.record.test
    other = train(config.model_copy(update={"seed": 6}), tmp_path / "c", QUIET)
    assert other.record.test != first.record.test


def test_early_stopping_keeps_the_best_epoch(dataset: StoredDataset, tmp_path: Path) -> None:
    """With a tiny log every ranker overfits; training stops and the kept weights are the best epoch's."""
    settings = TrainConfig(epochs=60, batch_requests=32, max_history=10, patience=2, learning_rate=0.02)
    run = train(RunConfig(dataset=dataset.path, model={"name": "mha"}, train=settings), tmp_path / "run", QUIET)
    lines = epoch_lines(run.path)
    values = [sum(task["ne"] for task in line["validation"].values()) for line in lines]
    assert run.record.epochs == run.record.best_epoch + 2 < 60
    assert run.record.best_epoch == values.index(min(values)) + 1
    assert sum(m.ne or 0 for m in run.record.validation.values()) == pytest.approx(min(values), abs=1e-5)


def test_training_beats_the_base_rate_and_stays_below_the_oracle(tmp_path: Path) -> None:
    dataset = prepare(simulate(SimulatedConfig(users=300, items=300, topics=6, sessions=8, seed=1)), tmp_path / "d")
    config = RunConfig(dataset=dataset.path, model={"name": "lime-mha"}, train=TrainConfig(epochs=3, max_history=50))
    run = train(config, tmp_path / "run", QUIET)
    best = oracle(evaluation_loader(dataset, Part.TEST, 50))["click"]
    trained = run.record.test["click"]
    assert trained.ne is not None
    assert best.ne is not None
    assert best.ne < trained.ne < 0.98


def test_a_finished_run_is_kept_unless_overwrite(runs: dict[str, Run]) -> None:
    run = runs["ttsn"]
    with pytest.raises(ConflictError, match="exists already"):
        train(run.config, run.path, QUIET)


def test_a_run_refuses_another_dataset(runs: dict[str, Run], tmp_path: Path) -> None:
    run = runs["ttsn"]
    prepare(simulate(SimulatedConfig(users=30, items=50, topics=3, sessions=8)), tmp_path / "other")
    moved = Run(run.path, run.config.model_copy(update={"dataset": tmp_path / "other"}), run.record)
    with pytest.raises(DataError, match="fingerprint .* is not that of run"):
        moved.dataset()


def test_damaged_weights_are_named(runs: dict[str, Run], dataset: StoredDataset, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "run"
    shutil.copytree(runs["mha"].path, copy)
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(DataError, match="model.safetensors: cannot be loaded as weights of 'mha'"):
        Run(copy, runs["mha"].config, runs["mha"].record).ranker(dataset)


def test_bad_configuration_names_file_key_and_near_match(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("dataset: d\nmodel: {name: mha}\ntrain: {epoch: 3}\n")
    with pytest.raises(UsageError, match=r"c\.yaml: unknown key 'train.epoch'; did you mean 'epochs'\?"):
        load_run_config(path)
    path.write_text("dataset: d\nmodel: {name: mha}\ntrain: {epochs: many}\n")
    with pytest.raises(UsageError, match=r"c\.yaml: key 'train.epochs'.*got 'many'"):
        load_run_config(path)
    path.write_text("model: {name: mha}\n")
    with pytest.raises(UsageError, match=r"c\.yaml: key 'dataset' is missing"):
        load_run_config(path)


def test_only_a_run_is_replaced(runs: dict[str, Run], tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "config.yaml").write_text("precious")
    with pytest.raises(ConflictError, match="holds no run.json, so it is not ours to replace"):
        train(runs["ttsn"].config, mine, QUIET, overwrite=True)
    assert (mine / "config.yaml").read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_gauc_groups_by_user(runs: dict[str, Run], dataset: StoredDataset) -> None:
    """Computed here from predictions joined with the log's users by scikit-learn."""
    ranker = runs["mha"].ranker(dataset)
    loader = evaluation_loader(dataset, Part.TEST, 20)
    predictions = predict(ranker, loader)
    offsets = dataset.column("requests/user_offsets").astype(np.int64)
    user = np.searchsorted(offsets, predictions.rows, side="right") - 1
    labels = dataset.column("events/label.click")[predictions.rows]
    scores, weights = [], []
    for one in np.unique(user):
        inside = user == one
        if 0 < labels[inside].mean() < 1:
            scores.append(roc_auc_score(labels[inside], predictions.probability[inside, 0]))
            weights.append(inside.sum())
    assert evaluate(ranker, loader)["click"].gauc == pytest.approx(np.average(scores, weights=weights), abs=1e-9)


def test_learning_rate_rises_then_falls() -> None:
    settings = TrainConfig(warmup_fraction=0.1, final_learning_rate_fraction=0.2)
    factors = [learning_rate_factor(step, 100, settings) for step in range(100)]
    peak = factors.index(max(factors))
    assert 5 <= peak <= 12
    assert factors[0] < 0.2
    assert factors[-1] == pytest.approx(0.2, abs=0.02)
    assert factors[:peak] == sorted(factors[:peak])
    assert factors[peak:] == sorted(factors[peak:], reverse=True)


def test_labels_changed_on_disk_are_noticed(raw_log: RawLog, tmp_path: Path) -> None:
    dataset = prepare(raw_log, tmp_path / "d")
    path = dataset.segments[0] / "events" / "label.click.npy"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    config = RunConfig(dataset=dataset.path, model={"name": "ttsn"})
    with pytest.raises(DataError, match="label.click.npy: content does not match"):
        train(config, tmp_path / "run", QUIET)
