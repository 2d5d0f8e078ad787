"""The paper's hyperparameters by dataset (table `tab:model_params`), as the `preset` of a run configuration.

The table leaves open: whether its batch counts requests or samples (here: requests), a learning-rate schedule (it has
one constant; ours warms up to it and decays), widths of attribute embeddings (ours stay) and of the towers (ours, or d
where that is more: fewer hidden units than d would confine E and T to as many dimensions), and what rankers without
links do with the number of links (here: it is their own budget, so that rankers stay comparable).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from limerank.config import RunConfig
from limerank.errors import UsageError, did_you_mean
from limerank.models import RANKERS, RankerOptions

BUDGET_OPTIONS = ("links", "rank", "recent", "top")
"""What plays the role of l: how much of a history a candidate may see, by the name each ranker has for it."""


class Preset(BaseModel):
    """One column of the table."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    learning_rate: float
    batch_requests: int
    epochs: int
    max_history: int
    width: int
    heads: int
    links: int
    head: tuple[int, ...]

    def train(self) -> dict[str, Any]:
        """The `train` section."""
        return self.model_dump(include={"learning_rate", "batch_requests", "epochs", "max_history"})

    def model(self, options: type[RankerOptions]) -> dict[str, Any]:
        """The options of one ranker: those of the table that it has."""
        budget = dict.fromkeys(budget_options(options), self.links)
        values = {"width": self.width, "heads": self.heads, "head": list(self.head), **budget}
        if self.width > options.model_fields["tower_hidden"].default:
            values["tower_hidden"] = self.width
        return {name: value for name, value in values.items() if name in options.model_fields}


PRESETS: Mapping[str, Preset] = {
    "kuairand": Preset(
        learning_rate=1e-4,
        batch_requests=1024,
        heads=4,
        epochs=2,
        width=32,
        links=16,
        max_history=256,
        head=(512, 128, 64),
    ),
    "taobao-ad": Preset(
        learning_rate=1e-3,
        batch_requests=8192,
        heads=4,
        epochs=10,
        width=32,
        links=8,
        max_history=50,
        head=(512, 256, 128),
    ),
    "industrial": Preset(
        learning_rate=4e-4,
        batch_requests=1024,
        heads=4,
        epochs=1,
        width=256,
        links=32,
        max_history=1024,
        head=(96,),
    ),
}


def budget_options(options: type[RankerOptions]) -> tuple[str, ...]:
    """The options of a ranker that play the role of l."""
    return tuple(name for name in BUDGET_OPTIONS if name in options.model_fields)


def complete(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A run configuration, as read, with what its preset says; keys that are written win."""
    name = values.get("preset")
    if name is None:
        return dict(values)
    if not isinstance(name, str) or name not in PRESETS:
        raise UsageError(f"{where}: key 'preset': unknown value '{name}'{did_you_mean(str(name), PRESETS)}")
    result = dict(values)
    model, train = values.get("model"), values.get("train", {})
    # a section that is no mapping or names no ranker is refused where every configuration is checked
    if isinstance(train, Mapping):
        result["train"] = {**PRESETS[name].train(), **train}
    if isinstance(model, Mapping) and isinstance(model.get("name"), str) and model["name"] in RANKERS:
        result["model"] = {**PRESETS[name].model(RANKERS[model["name"]].options_type), **model}
    return result


def overridden(config: RunConfig) -> list[str]:
    """Where a configuration with a preset differs from it: `key value (its value)`, for a line to read."""
    if config.preset is None or config.model.get("name") not in RANKERS:
        return []
    preset, options = PRESETS[config.preset], RANKERS[config.model["name"]].options_type
    given = {f"train.{key}": (getattr(config.train, key), value) for key, value in preset.train().items()}
    given |= {f"model.{key}": (config.model[key], value) for key, value in preset.model(options).items()}
    return [
        f"{key} {mine} ({'preset' if key == 'model.tower_hidden' else 'paper'}: {value})"
        for key, (mine, value) in given.items()
        if mine != value
    ]
