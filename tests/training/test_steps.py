"""What one step is made of: precision, time order, what is not finite, task weights, empty parts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from limerank.api.dataset import Dataset
from limerank.api.run import Run
from limerank.config import RunConfig, TrainConfig
from limerank.data.batches import RequestLoader
from limerank.data.sources.simulated import SimulatedConfig, simulate
from limerank.data.store.dataset import StoredDataset
from limerank.errors import DataError, UsageError
from limerank.models import RANKERS, build_ranker
from limerank.progress import Progress
from limerank.splits import ByColumn, Part
from limerank.training.checkpoint import LAST, read_any_header, read_tensors
from limerank.training.steps.step import TrainingStep, task_weights
from limerank.training.trainer import train
from limerank.training.unfinished import unfinished_folder

QUIET = Progress(quiet=True)
CPU = torch.device("cpu")


def configured(dataset: StoredDataset, model: dict[str, Any], **training: Any) -> RunConfig:
    settings = {"epochs": 1, "batch_requests": 16, "max_history": 10, **training}
    return RunConfig(dataset=dataset.path, model=model, train=TrainConfig(**settings), seed=3)


def lines(run: Path, kind: str) -> list[dict[str, Any]]:
    written = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in written if line["kind"] == kind]


@pytest.mark.parametrize("name", sorted(RANKERS))
def test_every_ranker_learns_in_bf16(dataset: StoredDataset, name: str) -> None:
    """Mixed precision: the loss is that of fp32 up to bf16's digits, the weights stay fp32, and a step moves them."""
    loader = RequestLoader(dataset, Part.TRAIN, batch_requests=8, max_history=10)
    batch = loader.assemble(loader.requests[-8:])
    losses = {}
    for precision in ("fp32", "bf16"):
        torch.manual_seed(0)
        ranker = build_ranker({"name": name, "unknown_rate": 0.0}, dataset.encoders.space(), 2, "test").train()
        step = TrainingStep(ranker, TrainConfig(precision=precision), ("click", "long_view"), CPU)
        losses[precision] = step(batch, 1.0)
        assert step(batch, 1.0) < losses[precision]
        assert {parameter.dtype for parameter in ranker.parameters()} == {torch.float32}
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=0.03)


@pytest.mark.parametrize("name", ["lime-mha", "hstu", "sasrec", "sim"])
def test_in_the_order_of_time_every_batch_is_predicted_before_it_is_learned(
    dataset: StoredDataset, tmp_path: Path, name: str
) -> None:
    """Step by step the progressive logloss is the training loss: same batch, same weights, before the update."""
    config = configured(dataset, {"name": name, "unknown_rate": 0.0}, order="time", log_steps=1, epochs=9)
    run = train(config, tmp_path / "run", QUIET)
    steps, windows = lines(run.path, "step"), lines(run.path, "progressive")
    assert len(steps) == len(windows) == run.record.steps == -(-len(dataset.requests_in(Part.TRAIN)) // 16)
    for step, window in zip(steps, windows, strict=True):
        logloss = [task["logloss"] for task in window["progressive"].values()]
        assert sum(logloss) / len(logloss) == pytest.approx(step["train_loss"], abs=1e-5)
    until = [window["until_time"] for window in windows]
    assert until == sorted(until)
    assert run.record.epochs == run.record.best_epoch == 1
    assert lines(run.path, "epoch")[0]["epoch"] == 1


def test_windows_cover_every_row_once(dataset: StoredDataset, tmp_path: Path) -> None:
    """The last one too, however few steps are left for it."""
    run = train(configured(dataset, {"name": "ttsn"}, order="time", log_steps=4), tmp_path / "run", QUIET)
    rows = sum(window["progressive"]["click"]["rows"] for window in lines(run.path, "progressive"))
    start = dataset.column("requests/start")
    train_requests = dataset.requests_in(Part.TRAIN)
    assert rows == int((start[train_requests + 1] - start[train_requests]).sum())


def test_a_loss_that_is_not_finite_keeps_its_batch_and_names_its_requests(
    dataset: StoredDataset, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    config = configured(dataset, {"name": "mha", "sharpness": 1e38}, learning_rate=1.0)
    with pytest.raises(DataError, match=r"step \d+: the loss is nan.*its requests: \d+ \(user u\d+, 2025-") as refused:
        train(config, out, QUIET)
    path = unfinished_folder(out) / "failed-batch.safetensors"
    assert str(path) in str(refused.value)
    assert "with a lower train.learning_rate or with train.clip_norm=1" in str(refused.value)
    with safe_open(path, framework="pt") as opened:
        requests = [int(number) for number in opened.metadata()["requests"].split(",")]
    loader = RequestLoader(dataset, Part.TRAIN, batch_requests=16, max_history=10)
    again = loader.assemble(np.array(requests))
    assert torch.equal(load_file(path)["labels"].nan_to_num(-1), again.labels.nan_to_num(-1))
    assert str(requests[0]) in str(refused.value)
    train(configured(dataset, {"name": "mha"}), out, QUIET)
    assert not path.exists()


def test_weights_that_are_not_finite_are_never_saved(dataset: StoredDataset, tmp_path: Path) -> None:
    """A learning rate at which it diverges: whatever is noticed first, the last checkpoint is whole and finite."""
    out = tmp_path / "run"
    wild = {"learning_rate": 1.0, "warmup_fraction": 0.0, "epochs": 30, "patience": 30, "checkpoint_steps": 1}
    with pytest.raises(DataError, match=r"step \d+: .*its requests: .*the checkpoint of step \d+ in .* is whole"):
        train(configured(dataset, {"name": "mamba"}, **wild), out, QUIET)
    last = unfinished_folder(out) / LAST
    assert read_any_header(last).state.step > 0
    weights = {name: value for name, value in read_tensors(last).items() if name.startswith("model.")}
    assert all(bool(value.isfinite().all()) for value in weights.values())


def test_task_weights_are_those_of_named_tasks() -> None:
    tasks = ("click", "long_view")
    assert task_weights(TrainConfig(), tasks, CPU) is None
    assert task_weights(TrainConfig(task_weights={"click": 0.5, "long_view": 0.5}), tasks, CPU) is None
    weights = task_weights(TrainConfig(task_weights={"long_view": 0.25}), tasks, CPU)
    assert weights is not None
    assert weights.tolist() == [1.0, 0.25]
    with pytest.raises(UsageError, match="no task 'clik'; its tasks: click, long_view"):
        task_weights(TrainConfig(task_weights={"clik": 1.0}), tasks, CPU)
    with pytest.raises(UsageError, match="all are 0"):
        task_weights(TrainConfig(task_weights={"click": 0.0, "long_view": 0.0}), tasks, CPU)


def test_a_task_of_weight_0_teaches_nothing(dataset: StoredDataset, tmp_path: Path) -> None:
    """Trained on clicks alone, the other task's own last layer stays where it began."""
    model = {"name": "ttsn", "task_head": [4]}
    trained = train(configured(dataset, model, task_weights={"long_view": 0.0}), tmp_path / "run", QUIET)
    torch.manual_seed(3)
    start = build_ranker(trained.config.model, dataset.encoders.space(), 2, "test").state_dict()
    after = trained.ranker(dataset).state_dict()
    assert torch.equal(after["head.of_tasks.0.weight"][1], start["head.of_tasks.0.weight"][1])
    assert not torch.equal(after["head.of_tasks.0.weight"][0], start["head.of_tasks.0.weight"][0])


def test_a_part_without_labels_is_said_before_training(tmp_path: Path) -> None:
    """Nothing could select the weights; a part without requests is refused by `prepare` already."""
    raw = simulate(SimulatedConfig(users=12, items=30, topics=3, sessions=6, slots=4, seed=1))
    events = pl.concat([batch for file in raw.events for batch in file.batches()])
    place = events["time"].rank("dense") / events["time"].n_unique()
    part = (
        pl.when(place < 0.6)
        .then(pl.lit("train"))
        .when(place < 0.8)
        .then(pl.lit("validation"))
        .otherwise(pl.lit("test"))
    )
    known = pl.when(part != "validation").then("click")
    events = events.with_columns(part=part).with_columns(click=known)
    task = raw.schema.tasks[0].model_copy(update={"missing": "skip"})
    schema = raw.schema.model_copy(
        update={"split": ByColumn(column="part", validation=("validation",)), "tasks": (task,)}
    )
    data = Dataset.build(events, items=raw.items, users=raw.users, schema=schema, out=tmp_path / "data", quiet=True)
    with pytest.raises(DataError, match="no row of the validation part has a label"):
        train(configured(data, {"name": "ttsn"}), tmp_path / "run", QUIET)
    assert not (tmp_path / "run.unfinished").exists()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own modules, when they are imported
def test_compiled_it_learns_the_same(dataset: StoredDataset) -> None:
    """Traced, forward and backward; the last stage, which makes machine code, takes a minute and is left out."""
    loader = RequestLoader(dataset, Part.TRAIN, batch_requests=8, max_history=10)
    batch = loader.assemble(loader.requests[-8:])
    losses = {}
    for compile in (False, True):
        torch.manual_seed(0)
        ranker = build_ranker({"name": "ttsn", "unknown_rate": 0.0}, dataset.encoders.space(), 2, "test").train()
        step = TrainingStep(ranker, TrainConfig(compile=compile), ("click", "long_view"), CPU, compiler="aot_eager")
        losses[compile] = [step(batch, 1.0) for _ in range(3)]
    assert losses[True] == pytest.approx(losses[False], abs=1e-4)
    assert losses[True][2] < losses[True][0]


def test_the_log_says_how_it_went(runs: dict[str, Run]) -> None:
    """Step lines with the mean loss since the last, the learning rate and the speed; then the epoch's."""
    run = runs["ttsn"]
    steps, epochs = lines(run.path, "step"), lines(run.path, "epoch")
    assert [line["step"] for line in epochs] == [epoch * epochs[0]["step"] for epoch in (1, 2)]
    assert all(0 < line["learning_rate"] <= run.config.train.learning_rate for line in steps)
    assert all(line["rows_per_second"] > 0 for line in steps)
    assert run.record.stage_seconds["training"] > 0
