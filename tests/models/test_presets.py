"""Presets are the paper's table, keys that are written win, and a run records values, not the preset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from calling import answer, limerank, refusal

from limerank.api.run import Run
from limerank.config import RunConfig, load_run_config
from limerank.data.store.dataset import StoredDataset
from limerank.errors import UsageError
from limerank.models import RANKERS, check_model
from limerank.models.presets import BUDGET_OPTIONS, PRESETS, Preset, budget_options, overridden
from limerank.training.configuration import load_configuration

TABLE = """
Learning Rate       & 0.0001 & 0.001 & 0.0004
Batch Size          & 1024   & 8192  & 1024
Number of Heads     & 4      & 4     & 4
Epochs              & 2      & 10    & 1
Embedding Dimension & 32     & 32    & 256
Number of Links     & 16     & 8     & 32
Max Sequence Length & 256    & 50    & 1024
Interaction MLP     & [512, 128, 64] & [512, 256, 128] & [96]
"""
KEYS = ["learning_rate", "batch_requests", "heads", "epochs", "width", "links", "max_history", "head"]


def config_file(folder: Path, **values: Any) -> Path:
    path = folder / "c.yaml"
    path.write_text(yaml.safe_dump({"dataset": "d", **values}))
    return path


def test_presets_are_the_table_of_the_paper() -> None:
    columns = zip(*(line.split("&")[1:] for line in TABLE.strip().splitlines()), strict=True)
    for (name, preset), column in zip(PRESETS.items(), columns, strict=True):
        expected = dict(zip(KEYS, map(yaml.safe_load, column), strict=True))
        assert preset.model_dump(mode="json") == expected, name
    assert list(PRESETS) == ["kuairand", "taobao-ad", "industrial"]
    assert set(KEYS) == set(Preset.model_fields)


@pytest.mark.parametrize("name", sorted(RANKERS))
@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_fits_every_ranker(tmp_path: Path, preset: str, name: str) -> None:
    """The links of the table are each ranker's own budget, heads are set where there are heads.

    No tower is narrower than E and T.
    """
    config = load_configuration(config_file(tmp_path, preset=preset, model={"name": name}))
    values = PRESETS[preset]
    _, options = check_model(config.model, "c.yaml")
    assert (options.width, options.head) == (values.width, values.head)
    assert all(getattr(options, option) == values.links for option in budget_options(type(options)))
    assert getattr(options, "heads", values.heads) == values.heads
    assert options.tower_hidden == max(64, values.width)
    assert (config.train.learning_rate, config.train.epochs) == (values.learning_rate, values.epochs)
    assert (config.train.batch_requests, config.train.max_history) == (values.batch_requests, values.max_history)
    assert config.train.warmup_fraction == 0.05


def test_every_budget_option_is_some_ranker_s() -> None:
    used = {option for ranker in RANKERS.values() for option in budget_options(ranker.options_type)}
    assert used == set(BUDGET_OPTIONS)


def test_written_keys_and_overrides_win(tmp_path: Path) -> None:
    path = config_file(tmp_path, preset="kuairand", model={"name": "lime-mha", "links": 5}, train={"epochs": 7}, seed=3)
    config = load_configuration(path, ["model.heads=2", "train.max_history=10"])
    assert (config.model["links"], config.model["heads"], config.model["width"]) == (5, 2, 32)
    assert (config.train.epochs, config.train.max_history, config.train.learning_rate) == (7, 10, 1e-4)
    assert config.seed == 3
    assert load_configuration(path, ["preset=taobao-ad"]).train.learning_rate == 1e-3
    assert load_configuration(path, ["preset=null"]).train.learning_rate == 3e-3


def test_a_mistake_is_one_line(tmp_path: Path) -> None:
    path = config_file(tmp_path, preset="kuairnd", model={"name": "ttsn"})
    message = refusal(2, "train", path, "--out", tmp_path / "run")
    assert message == f"error: {path}: key 'preset': unknown value 'kuairnd'; did you mean 'kuairand'?\n"
    with pytest.raises(UsageError, match="no ranker 'ttsm'; did you mean 'ttsn'"):
        load_configuration(config_file(tmp_path, preset="kuairand", model={"name": "ttsm"}))
    with pytest.raises(UsageError, match="key 'train'"):
        load_configuration(config_file(tmp_path, preset="kuairand", model={"name": "ttsn"}, train=3))
    with pytest.raises(UsageError, match="key 'preset': a finished run has none"):
        load_run_config(config_file(tmp_path, preset="kuairand", model={"name": "ttsn"}))


def test_a_run_records_values_not_the_preset(dataset: StoredDataset, tmp_path: Path) -> None:
    """Whatever a later version makes of the preset, the run stays what it was."""
    path = config_file(tmp_path, preset="taobao-ad", model={"name": "lime-mha"}, train={"epochs": 1})
    overrides = ("--set", f"dataset={dataset.path}", "--set", "model.head=[8]")
    answer("train", path, *overrides, "--out", tmp_path / "run")
    written = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert "preset" not in written
    values = {"width": 32, "heads": 4, "head": [8], "links": 8, "name": "lime-mha"}
    assert {key: written["model"][key] for key in values} == values
    assert written["train"]["learning_rate"] == 1e-3
    run = Run.open(tmp_path / "run")
    assert run.config.preset is None
    assert run.ranker(dataset).options.head == (8,)
    said = limerank("train", path, *overrides, "--out", tmp_path / "again").stderr
    assert "preset taobao-ad: the paper's values, except train.epochs 1 (paper: 10), model.head [8] (paper" in said


def test_what_a_file_writes_over_is_named(tmp_path: Path) -> None:
    path = config_file(tmp_path, preset="kuairand", model={"name": "lime-xor", "links": 32}, train={"epochs": 2})
    assert overridden(load_configuration(path)) == ["model.links 32 (paper: 16)"]
    assert overridden(load_configuration(path, ["model.links=16"])) == []
    path = config_file(tmp_path, preset="industrial", model={"name": "mha", "tower_hidden": 64})
    assert overridden(load_configuration(path)) == ["model.tower_hidden 64 (preset: 256)"]


def test_a_preset_is_never_dumped() -> None:
    config = RunConfig(dataset=Path("d"), model={"name": "ttsn"}, preset="kuairand")
    assert "preset" not in config.model_dump()
