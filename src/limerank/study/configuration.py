"""What each row of a study is trained with: a YAML file with what is for all, for single rankers, and for variants.

preset: kuairand
train: {epochs: 4}
rankers:
  lime-xor: {model: {sharpness: 3}, train: {learning_rate: 0.003}}
variants:
  lime-xor-xavier: {ranker: lime-xor, model: {sharpness: null}}
space:
  train.learning_rate: {choices: [0.001, 0.003]}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import Field, PrivateAttr

from limerank.config import RunConfig, TrainConfig, read_yaml
from limerank.errors import UsageError, did_you_mean
from limerank.models import RANKERS, check_model, complete_model
from limerank.models.presets import PRESETS
from limerank.typed import Typed, validate

UNNAMED = "study configuration"
"""What errors name where there is no file."""
FIT_FOR_A_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class RankerConfig(Typed):
    """What one ranker has for itself."""

    model: dict[str, Any] = Field(default={}, description="options of the ranker")
    train: dict[str, Any] = Field(default={}, description="keys of `train`")


class VariantConfig(RankerConfig):
    """A row of its own: a ranker with what differs from the row that has the ranker's name."""

    ranker: str = Field(description="the name of the ranker")


class StudyConfig(Typed):
    """What all rows are trained with, and what single ones have for themselves; the rest is default.

    What is nearer to a row wins: its variant, its ranker, `train` for all, the preset, the defaults.
    """

    preset: str | None = Field(default=None, description="the paper's sizes and training for a dataset, for all rows")
    train: dict[str, Any] = Field(default={}, description="keys of `train`, for all rankers")
    rankers: dict[str, RankerConfig] = Field(default={}, description="by the name of the ranker")
    variants: dict[str, VariantConfig] = Field(default={}, description="further rows, by a name of your own")
    space: dict[str, Any] | None = Field(default=None, description="what --search tries: choices by dotted key")

    _where: str = PrivateAttr(default=UNNAMED)

    @property
    def where(self) -> str:
        """The file it was read from, for errors that are found later."""
        return self._where

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read and check a file; a mistake names the file, the ranker and the key."""
        config = validate(cls, read_yaml(path), str(path)).checked(str(path))
        config._where = str(path)
        return config

    def checked(self, where: str = UNNAMED) -> Self:
        """The same, if nothing is wrong with it."""
        if self.preset is not None and self.preset not in PRESETS:
            raise UsageError(
                f"{where}: key 'preset': unknown value '{self.preset}'{did_you_mean(self.preset, PRESETS)}"
            )
        for name, variant in self.variants.items():
            if name in RANKERS:
                raise UsageError(f"{where}: variants.{name}: is the name of a ranker; choose another, or use 'rankers'")
            if not FIT_FOR_A_FOLDER.fullmatch(name):
                raise UsageError(f"{where}: variants.{name}: names folders: use letters, digits, '-', '_' and '.'")
            if variant.ranker not in RANKERS:
                said = did_you_mean(variant.ranker, RANKERS)
                raise UsageError(f"{where}: variants.{name}.ranker: no ranker '{variant.ranker}'{said}")
        self.training("", where)
        for name in (*self.rankers, *self.variants):
            self.training(name, where)
            check_model(self.model(name), f"{where}, {self._section(name)}")
        return self

    def ranker_of(self, name: str) -> str:
        """The ranker of a row."""
        return self.variants[name].ranker if name in self.variants else name

    def model(self, name: str) -> dict[str, Any]:
        """The model section of a row."""
        ranker = self.ranker_of(name)
        preset = {}
        if self.preset is not None and ranker in RANKERS:
            preset = PRESETS[self.preset].model(RANKERS[ranker].options_type)
        return {"name": ranker, **preset, **self._own(ranker).model, **self._varied(name).model}

    def training(self, name: str, where: str = UNNAMED) -> TrainConfig:
        """How a row is trained."""
        section = f"{where}, {self._section(name)}.train" if name else f"{where}, train"
        preset = {} if self.preset is None else PRESETS[self.preset].train()
        own = {**self._own(self.ranker_of(name)).train, **self._varied(name).train}
        return validate(TrainConfig, {**preset, **self.train, **own}, section)

    def fixed_keys(self, name: str) -> frozenset[str]:
        """The dotted keys that make a row a variant."""
        own = self._varied(name)
        return frozenset([*(f"model.{key}" for key in own.model), *(f"train.{key}" for key in own.train)])

    def run(self, dataset: Path, name: str, seed: int) -> RunConfig:
        """One run."""
        return RunConfig(dataset=dataset, model=self.model(name), train=self.training(name), seed=seed)

    def with_train(self, **values: Any) -> Self:
        """The same with other keys of `train` for all rankers that do not have them for themselves."""
        return self.model_copy(update={"train": {**self.train, **values}})

    def says(self, key: str) -> bool:
        """Whether a key of `train` is written for all rows, or in the preset."""
        return key in self.train or (self.preset is not None and key in PRESETS[self.preset].train())

    def complete(self, names: list[str]) -> Mapping[str, RankerConfig]:
        """Every option and key of some rows, defaults filled in, to write down beside results."""
        return {
            name: RankerConfig(
                model=complete_model(self.model(name), "study"),
                train=self.training(name).model_dump(mode="json"),
            )
            for name in names
        }

    def _own(self, ranker: str) -> RankerConfig:
        return self.rankers.get(ranker, RankerConfig())

    def _varied(self, name: str) -> RankerConfig:
        return self.variants.get(name, RankerConfig())

    def _section(self, name: str) -> str:
        return f"variants.{name}" if name in self.variants else f"rankers.{name}"
