"""What is trained and how, and the YAML files that say so, with dotted overrides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, field_validator

from limerank.errors import LimerankError, UsageError
from limerank.files import joined
from limerank.typed import Typed, validate

RENAMED_OPTIONS = {"pool": "select_from"}
"""Options of rankers by the names they had in files of version 0.2.0 and before."""
_LIME_BEFORE = {"link_start": "normal", "value_norm": True}
OPTIONS_BEFORE: Mapping[str, Mapping[str, Any]] = {
    "": {"tower_shortcut": False, "id_start": 0.5},
    "lime-mha": _LIME_BEFORE,
    "lime-xor": {"sharpness": 1.0, **_LIME_BEFORE},
    "lime-hstu": {"gate_start": 0.0, **_LIME_BEFORE},
    "isab": {"sharpness": 1.0, **_LIME_BEFORE},
    "pma": {"link_start": "normal"},
    "hstu": {"sharpness": None, "gate_start": 0.0},
    "sasrec": {"readout": "last", "final_norm": False, "sharpness": None},
}
"""What was so, for all rankers and for single ones, before there was an option for it or its default changed. Finished
runs and bundles name every option since then."""


class TrainConfig(Typed):
    """How a ranker is trained: Adam on the mean binary cross-entropy of all tasks (paper, appendix C)."""

    epochs: int = Field(default=3, ge=1, le=1000, description="passes over the training part at most")
    batch_requests: int = Field(default=64, ge=1, description="requests per step; all their candidates come along")
    learning_rate: float = Field(default=3e-3, gt=0, le=1, description="of Adam, at its largest")
    final_learning_rate_fraction: float = Field(default=0.1, ge=0, le=1, description="linear decay ends here")
    warmup_fraction: float = Field(default=0.05, ge=0, lt=1, description="fraction of steps with rising learning rate")
    weight_decay: float = Field(default=0.0, ge=0, description="L2")
    embedding_learning_rate: float | None = Field(
        default=None, gt=0, le=1, description="of embedding tables; default: learning_rate"
    )
    embedding_weight_decay: float | None = Field(
        default=None, ge=0, description="L2 of embedding tables; default: weight_decay"
    )
    embedding_updates: Literal["sparse", "dense"] = Field(
        default="sparse", description="sparse: a step updates the rows it used; dense: all rows, by their momentum"
    )
    clip_norm: float | None = Field(default=None, gt=0, description="largest norm of all gradients together")
    task_weights: dict[str, float] = Field(
        default_factory=dict, description="weight of a task's loss, by its name; tasks that are not named have 1"
    )
    max_history: int = Field(default=100, ge=1, description="most recent events kept per request")
    order: Literal["shuffled", "time"] = Field(
        default="shuffled", description="time: one pass in the order of time, each batch predicted before it is learned"
    )
    prefetch: int = Field(default=0, ge=0, description="batches assembled in the background; 0 assembles when asked")
    patience: int = Field(default=2, ge=1, description="epochs without a better validation NE before stopping")
    device: str = Field(default="auto", min_length=1, description="auto (a GPU if there is one), cpu, cuda or cuda:1")
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        default="fp32", description="of matrix products; weights stay fp32. fp16 needs a GPU"
    )
    compile: bool = Field(default=False, description="torch.compile: slow first steps, then faster ones")
    log_steps: int = Field(default=50, ge=1, description="steps between two lines of metrics.jsonl")
    checkpoint_steps: int | None = Field(default=None, ge=1, description="a checkpoint every so many steps, besides:")
    checkpoint_minutes: float = Field(
        default=10.0, ge=0, description="a checkpoint when so long has passed since the last; every epoch ends with one"
    )
    tensorboard: bool = Field(default=False, description="curves for TensorBoard, in the run's folder tensorboard")

    @field_validator("task_weights")
    @classmethod
    def _weights_say_something(cls, weights: dict[str, float]) -> dict[str, float]:
        for task, weight in weights.items():
            if not 0 <= weight < float("inf"):
                raise ValueError(f"the weight of '{task}' must be 0 or more, not {weight}")
        return weights

    @property
    def passes(self) -> int:
        """Passes over the training part at most; in the order of time there is one."""
        return 1 if self.order == "time" else self.epochs

    @property
    def rate_of_embeddings(self) -> float:
        """The learning rate of embedding tables."""
        return self.learning_rate if self.embedding_learning_rate is None else self.embedding_learning_rate

    @property
    def weight_decay_of_embeddings(self) -> float:
        """The L2 of embedding tables."""
        return self.weight_decay if self.embedding_weight_decay is None else self.embedding_weight_decay


class DistributedConfig(Typed):
    """How several processes that `torchrun` starts train one ranker; a single process has no use for it."""

    embeddings: Literal["replicated", "torchrec"] = Field(
        default="replicated", description="under torchrun: every process has all tables, or TorchRec cuts them up"
    )
    sharding: Literal["auto", "row_wise", "table_wise"] = Field(
        default="auto",
        description="how TorchRec cuts: each feature's rows over all processes, each feature on one of them, or (auto) "
        "as its planner finds best",
    )


class RunConfig(Typed):
    """One training run: which dataset, which ranker with which options, how trained, from which seed."""

    dataset: Path = Field(description="a prepared dataset; the path is relative to this file")
    model: dict[str, Any] = Field(description="'name' of the ranker, and its options")
    train: TrainConfig = TrainConfig()
    distributed: DistributedConfig = DistributedConfig()
    seed: int = Field(default=1, ge=0, lt=2**32, description="initial weights, shuffling, unknown-dropping")
    preset: str | None = Field(
        default=None, exclude=True, description="where values came from; they are filled in, so it is not written down"
    )

    @field_validator("model")
    @classmethod
    def _names_of_today(cls, model: dict[str, Any]) -> dict[str, Any]:
        return current_names(model)


def current_names(model: Mapping[str, Any]) -> dict[str, Any]:
    """A model section in which every option has the name it has now; beside the new name an old one stays, unknown."""
    old = {key: new for key, new in RENAMED_OPTIONS.items() if new not in model}
    return {old.get(key, key): value for key, value in model.items()}


def finished_model(model: Mapping[str, Any]) -> dict[str, Any]:
    """The model section of a finished run or a bundle; what it does not name is as it was before options were named."""
    before = {**OPTIONS_BEFORE[""], **OPTIONS_BEFORE.get(str(model.get("name")), {})}
    return {**current_names(model), **{key: value for key, value in before.items() if key not in model}}


def read_yaml(path: Path, error: type[LimerankError] = UsageError) -> dict[str, Any]:
    """Read a YAML mapping, or fail naming the file and the line."""
    try:
        value = yaml.load(path.read_text(encoding="utf-8"), _OnceLoader)  # noqa: S506 (a safe loader)
    except FileNotFoundError:
        raise error(f"{path}: no such file") from None
    except yaml.YAMLError as broken:
        mark = getattr(broken, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        raise error(f"{path}{line}: not valid YAML ({getattr(broken, 'problem', broken)})") from None
    except (OSError, UnicodeDecodeError) as refused:
        raise error(f"{path}: cannot be read ({refused})") from None
    if value is None:
        raise error(f"{path}: is empty; it must hold keys and values")
    if not isinstance(value, dict):
        raise error(f"{path}: must be a mapping of keys to values, not {type(value).__name__}")
    return value


class _OnceLoader(yaml.SafeLoader):
    """Refuses a key that stands twice; plain YAML silently takes the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for position, (key, _) in enumerate(node.value):
            if keys[position] in keys[:position]:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key '{keys[position]}' stands twice", key.start_mark
                )
        return super().construct_mapping(node, deep)


def apply_overrides(values: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Set dotted keys, such as `train.epochs=5`, on a copy."""
    result: dict[str, Any] = _copy(values)
    if isinstance(result.get("model"), dict):
        result["model"] = current_names(result["model"])
    for override in overrides:
        dotted, value = parse_override(override)
        target = result
        *parents, last = dotted.split(".")
        for parent in parents:
            target = target.setdefault(parent, {})
            if not isinstance(target, dict):
                raise UsageError(f"--set {override}: '{parent}' is not a section")
        target[last] = value
    return result


def parse_override(override: str) -> tuple[str, Any]:
    """The dotted key and the value of `train.epochs=5`; the value is read as YAML."""
    dotted, equals, text = override.partition("=")
    if not equals or not dotted:
        raise UsageError(f"--set {override}: must look like key=value, for example train.epochs=5")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise UsageError(f"--set {override}: '{text}' is not valid YAML") from None
    section, _, key = dotted.rpartition(".")
    if section == "model":
        return f"model.{RENAMED_OPTIONS.get(key, key)}", value
    return dotted, current_names(value) if dotted == "model" and isinstance(value, dict) else value


def load_run_config(path: Path) -> RunConfig:
    """The configuration of a finished run; a relative dataset path is relative to the file."""
    values = read_yaml(path)
    if values.get("preset") is not None:
        raise UsageError(f"{path}: key 'preset': a finished run has none, its values are filled in")
    config = validate(RunConfig, values, str(path))
    return config.model_copy(
        update={"dataset": joined(path.parent, config.dataset), "model": finished_model(config.model)}
    )


def _copy(values: Any) -> Any:
    return {key: _copy(value) for key, value in values.items()} if isinstance(values, dict) else values
