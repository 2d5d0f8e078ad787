"""What is searched is typed: mistakes are refused before anything runs, and what is sampled is what was asked for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from calling import refusal
from hypothesis import given, settings
from hypothesis import strategies as st

from limerank.config import RunConfig, TrainConfig
from limerank.errors import UsageError
from limerank.tuning.configuration import load_tuning
from limerank.tuning.plan import SearchConfig, default_space, plan
from limerank.tuning.record import Trial
from limerank.tuning.sampling import Sampled

RATE = {"low": 1e-4, "high": 1e-2, "log": True}
CONFIGS = {name: RunConfig(dataset=Path("nowhere"), model={"name": name}) for name in ("ttsn", "mha", "lime-mha")}
LIME = {"lime-mha": CONFIGS["lime-mha"]}


@pytest.mark.parametrize(
    ("space", "said"),
    [
        ({"train.learnig_rate": RATE}, "'train.learnig_rate'; did you mean 'train.learning_rate'"),
        ({"learning_rate": RATE}, "did you mean 'train.learning_rate'"),
        ({"model.linkz": {"low": 1, "high": 4}}, "did you mean 'model.links'"),
        ({"train": RATE}, "'train' is a section"),
        ({"train.learning_rate": {"low": 1e-4, "high": 2.0}}, "'train.learning_rate', value 2.0: .*less than or equal"),
        ({"model.links": {"choices": [8, 0]}}, "'model.links', value 0: .*greater than or equal to 1"),
        ({"model.links": {"choices": [8, 8]}}, "'model.links': a choice stands twice"),
        ({"model.links": {"choices": []}}, "'model.links': .*at least one"),
        ({"model.encoding": {"choices": ["none", "postion"]}}, "value postion: unknown value 'postion'; did you mean"),
        ({"model.encoding": {"low": 1, "high": 2}}, "'model.encoding': is no number .*choices"),
        ({"train.epochs": {"low": 1.5, "high": 3}}, "'train.epochs': key 'low': .*integer"),
        ({"train.epochs": {"low": 4, "high": 2}}, "low 4 must be below high 2"),
        ({"train.epochs": {"low": 1, "high": 4, "step": 2}}, "whole number of steps"),
        ({"train.epochs": {"low": 2}}, "'train.epochs': key 'high' is missing"),
        ({"train.epochs": {"low": 2, "high": 4, "stepp": 1}}, "unknown key 'stepp'; did you mean 'step'"),
        ({"train.epochs": 3}, "must be {low: ..., high: ...} or {choices: "),
        ({"train.weight_decay": {"low": 0, "high": 1e-3, "log": True}}, "low must be above 0"),
        ({"model.heads": {"choices": [2, 3]}}, "model.heads=3.*width 32 cannot be split into 3 heads"),
        ({"seed": {"choices": [1, 2]}}, "'seed': cannot be searched"),
        ({"model.name": {"choices": ["mha"]}}, "'rankers'"),
        ({}, "'space' is empty"),
    ],
)
def test_mistakes_in_a_space_name_the_key_and_the_fix(space: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        plan(LIME, space, SearchConfig(), "file.yaml")


def test_combinations_that_cannot_be_are_refused_before_anything_runs() -> None:
    """Each choice is valid alone; two of them are not valid together."""
    space = {"model.width": {"choices": [32, 36]}, "model.heads": {"choices": [4, 8]}}
    with pytest.raises(UsageError, match=r"model.width=36, model.heads=8.*cannot be split"):
        plan(LIME, space, SearchConfig(), "file.yaml")


def test_each_ranker_has_the_space_as_far_as_it_has_the_keys() -> None:
    space = {"model.links": {"choices": [8, 16]}, "model.heads": {"choices": [2, 4]}, "train.learning_rate": RATE}
    contestants = plan(CONFIGS, space, SearchConfig(), "file.yaml").contestants
    searched = {one.ranker: set(one.space) for one in contestants}
    assert searched["lime-mha"] == set(space)
    assert searched["mha"] == {"model.heads", "train.learning_rate"}
    assert searched["ttsn"] == {"train.learning_rate"}
    assert {one.ranker: set(one.left_out) for one in contestants}["ttsn"] == {"model.links", "model.heads"}
    with pytest.raises(UsageError, match="'model.links': unknown key"):
        plan({"ttsn": CONFIGS["ttsn"]}, {"model.links": {"choices": [8]}}, SearchConfig(), "file.yaml")


def test_the_default_space_fits_every_ranker_and_begins_at_its_configuration() -> None:
    space = default_space(TrainConfig(learning_rate=0.2))
    assert space["train.learning_rate"] == {"low": 0.02, "high": 1.0, "log": True}
    for contestant in plan(CONFIGS, None, SearchConfig(), "name").contestants:
        assert Sampled(contestant, SearchConfig(), []).parameters["train.learning_rate"] == 3e-3
        assert contestant.not_at_the_start() == []
        assert ("model.sharpness" in contestant.space) == (contestant.ranker != "ttsn")


def test_an_option_that_is_left_open_begins_with_the_value_it_stands_for() -> None:
    """Of `query_width` None means the width, so the first trial is the configuration itself."""
    (contestant,) = plan(LIME, {"model.query_width": {"choices": [16, 32, 64]}}, SearchConfig(), "file").contestants
    assert Sampled(contestant, SearchConfig(), []).parameters == {"model.query_width": 32}
    (contestant,) = plan(LIME, {"model.query_width": {"choices": [16, 64]}}, SearchConfig(), "file").contestants
    assert contestant.not_at_the_start() == ["model.query_width"]


def test_files(tmp_path: Path) -> None:
    """A tuning file is a run configuration with more keys; numbers are numbers however YAML writes them."""
    values = {
        "dataset": "data",
        "rankers": ["ttsn", "lime-mha"],
        "model": {"width": 16, "links": 8},
        "train": {"epochs": 2},
        "space": {"train.weight_decay": {"choices": [0, "1e-5"]}, "train.learning_rate": {"low": "1e-4", "high": 1e-2}},
        "search": {"trials": 3},
    }
    path = tmp_path / "tune.yaml"
    path.write_text(yaml.safe_dump(values))
    tuning = load_tuning(path, ["train.epochs=4", "search.seed=7", "model.links=4"], trials=5)
    ttsn, lime = tuning.contestants
    assert (tuning.search.trials, tuning.search.seed) == (5, 7)
    assert ttsn.config.model == {"name": "ttsn", "width": 16}
    assert lime.config.model == {"name": "lime-mha", "width": 16, "links": 4}
    assert ttsn.config.train.epochs == lime.config.train.epochs == 4
    assert lime.config.dataset == tmp_path / "data"
    assert lime.space["train.weight_decay"].probes() == (0, 1e-5)
    assert lime.space["train.learning_rate"].probes() == (1e-4, 1e-2)

    def said(**changed: object) -> str:
        path.write_text(yaml.safe_dump({**values, **changed}))
        return refusal(2, "tune", path, "--out", tmp_path / "out")

    assert "unknown key 'spaces'; did you mean 'space'" in said(spaces={})
    assert "unknown key 'search.trial'; did you mean 'trials'" in said(search={"trial": 3})
    assert "no ranker 'mhaa'; did you mean 'mha'" in said(rankers=["mhaa"])
    assert "one stands twice" in said(rankers=["mha", "mha"])
    assert "leave one of the two out" in said(model={"name": "mha"})
    assert "did you mean 'model.links'" in said(model={"linkz": 3})
    assert "key 'train.epoch'" in said(train={"epoch": 3})
    for override, wanted in (("search.trials=0", "search.trials"), ("space.seed=1", "in a file"), ("a.b=1", "'a.b'")):
        assert wanted in refusal(2, "tune", path, "--out", tmp_path / "out", "--set", override)
    assert "did you mean 'lime-mha'" in refusal(2, "tune", "lime-mhaa", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_how_to_is_true(tmp_path: Path) -> None:
    """Its tuning file is valid, and its table has every key of `search` with the default."""
    text = (Path(__file__).parents[2] / "docs/how-to/tune-a-ranker.md").read_text()
    (block,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    path = tmp_path / "tune.yaml"
    path.write_text(block)
    assert [one.ranker for one in load_tuning(path).contestants] == ["ttsn", "mha", "lime-mha"]
    listed = re.findall(r"^\| `search\.(\w+)` \| (\S+) \|", text, re.MULTILINE)
    assert {key: yaml.safe_load(value) for key, value in listed} == SearchConfig().model_dump()


numbers = st.integers(1, 30)


@settings(max_examples=40)
@given(low=numbers, more=numbers, step=numbers, seed=st.integers(0, 2**32 - 1), number=st.integers(0, 3))
def test_what_is_sampled_is_in_the_space_and_depends_on_seed_and_number_only(
    low: int, more: int, step: int, seed: int, number: int
) -> None:
    space = {
        "train.epochs": {"low": low, "high": low + more * step, "step": step},
        "train.learning_rate": {"low": low * 1e-4, "high": (low + more) * 1e-4, "log": True},
        "train.warmup_fraction": {"low": 0.0, "high": more / 100, "step": 0.01},
        "model.head": {"choices": [[low], [low, more]]},
    }
    search = SearchConfig(seed=seed, random_trials=2)
    (contestant,) = plan(LIME, space, search, "space").contestants
    before: list[Trial] = []
    for earlier in range(1, number + 1):
        parameters = Sampled(contestant, search, before).parameters
        before.append(
            Trial(ranker="lime-mha", number=earlier, state="finished", parameters=parameters, run="", value=earlier)
        )
    first, again = (Sampled(contestant, search, before).parameters for _ in range(2))
    assert first == again
    assert all(contestant.space[key].holds(value) for key, value in first.items())
    contestant.applied(first, "trial")
