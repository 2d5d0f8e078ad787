"""A run configuration as a YAML file to save and edit: every key with its value and what it means."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from pydantic import BaseModel

from limerank.config import DistributedConfig, RunConfig, TrainConfig
from limerank.errors import UsageError
from limerank.models import check_model
from limerank.models.presets import complete
from limerank.training.configuration import named_values, no_such_name

PLACEHOLDER = "datasets/simulated"
KEY_WIDTH = 35
COMMENT_WIDTH = 80


def render_configuration(name: str, dataset: str = PLACEHOLDER) -> str:
    """The configuration that the name of a ranker or preset stands for, with comments; it trains as the name does."""
    values = named_values(name)
    if values is None:
        raise UsageError(f"--config {name}: no ranker or preset '{name}'{no_such_name(name)}")
    filled = complete(values, name)
    ranker, options = check_model(filled["model"], name)
    train = TrainConfig.model_validate(filled.get("train", {}))
    lines = [
        f"# limerank train {name}.yaml --out runs/{name}",
        "# dataset and model.name are needed; any other key that is left out has the value written here.",
        *([_line("preset", name, "the paper's values; a key that is written wins")] if "preset" in values else []),
        _line("dataset", dataset, _meaning(RunConfig, "dataset")),
        _line("seed", RunConfig.model_fields["seed"].default, _meaning(RunConfig, "seed")),
        "model:",
        _line("  name", ranker.name, "limerank models lists the rankers"),
        *_section(options, options.model_dump(mode="json")),
        "train:",
        *_section(train, train.model_dump(mode="json")),
        "distributed:",
        *_section(DistributedConfig(), DistributedConfig().model_dump(mode="json")),
    ]
    return "\n".join(lines) + "\n"


def _section(config: BaseModel, values: Mapping[str, Any]) -> Iterator[str]:
    for key, value in values.items():
        yield _line(f"  {key}", value, _meaning(type(config), key))


def _line(key: str, value: Any, meaning: str) -> str:
    """One key; a long comment goes on below, in its own column."""
    written = yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("\n").removesuffix("\n...")
    start = f"{key}: {written}"
    first, *more = textwrap.wrap(meaning, COMMENT_WIDTH)
    return "\n".join([f"{start:<{KEY_WIDTH}} # {first}", *(f"{'':<{KEY_WIDTH}} # {piece}" for piece in more)])


def _meaning(config: type[BaseModel], key: str) -> str:
    return config.model_fields[key].description or ""
