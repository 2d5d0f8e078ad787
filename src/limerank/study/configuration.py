"""What each ranker of a study is trained with: a YAML file with what is for all, and for single rankers.

train: {epochs: 4}
rankers:
lime-xor: {model: {sharpness: 3}, train: {learning_rate: 0.003}}
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import Field

from limerank.config import RunConfig, TrainConfig, read_yaml
from limerank.models import check_model, complete_model
from limerank.typed import Typed, validate


class RankerConfig(Typed):
    """What one ranker has for itself."""

    model: dict[str, Any] = Field(default={}, description="options of the ranker")
    train: dict[str, Any] = Field(default={}, description="keys of `train`")


class StudyConfig(Typed):
    """What all rankers are trained with, and what single ones have for themselves; the rest is default."""

    train: dict[str, Any] = Field(default={}, description="keys of `train`, for all rankers")
    rankers: dict[str, RankerConfig] = Field(default={}, description="by the name of the ranker")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read and check a file; a mistake names the file, the ranker and the key."""
        config = validate(cls, read_yaml(path), str(path))
        config.training("", str(path))
        for name in config.rankers:
            config.training(name, str(path))
            check_model(config.model(name), str(path))
        return config

    def model(self, name: str) -> dict[str, Any]:
        """The model section of a ranker."""
        return {"name": name, **self._own(name).model}

    def training(self, name: str, where: str = "study configuration") -> TrainConfig:
        """How a ranker is trained."""
        section = f"{where}, rankers.{name}.train" if name else f"{where}, train"
        return validate(TrainConfig, {**self.train, **self._own(name).train}, section)

    def run(self, dataset: Path, name: str, seed: int) -> RunConfig:
        """One run."""
        return RunConfig(dataset=dataset, model=self.model(name), train=self.training(name), seed=seed)

    def with_train(self, **values: Any) -> Self:
        """The same with other keys of `train` for all rankers that do not have them for themselves."""
        return self.model_copy(update={"train": {**self.train, **values}})

    def complete(self, names: list[str]) -> Mapping[str, RankerConfig]:
        """Every option and key of some rankers, defaults filled in, to write down beside results."""
        return {
            name: RankerConfig(
                model=complete_model(self.model(name), "study"),
                train=self.training(name).model_dump(mode="json"),
            )
            for name in names
        }

    def _own(self, name: str) -> RankerConfig:
        return self.rankers.get(name, RankerConfig())
