"""Typed configuration: YAML in, pydantic out, dotted overrides, and errors that name the file, the key and the fix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from limerank.errors import LimerankError, UsageError, did_you_mean
from limerank.files import joined

Config = TypeVar("Config", bound=BaseModel)


MOST_PROBLEMS = 3  # in one line


class TrainConfig(BaseModel):
    """How a ranker is trained: Adam on the mean binary cross-entropy of all tasks (paper, appendix C)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    epochs: int = Field(default=3, ge=1, le=1000, description="passes over the training part at most")
    batch_requests: int = Field(default=64, ge=1, description="requests per step; all their candidates come along")
    learning_rate: float = Field(default=3e-3, gt=0, le=1, description="of Adam, at its largest")
    final_learning_rate_fraction: float = Field(default=0.1, ge=0, le=1, description="linear decay ends here")
    warmup_fraction: float = Field(default=0.05, ge=0, lt=1, description="share of steps with rising learning rate")
    weight_decay: float = Field(default=0.0, ge=0, description="L2")
    max_history: int = Field(default=100, ge=1, description="most recent events kept per request")
    prefetch: int = Field(default=0, ge=0, description="batches assembled in the background; 0 assembles when asked")
    patience: int = Field(default=2, ge=1, description="epochs without a better validation NE before stopping")


class RunConfig(BaseModel):
    """One training run: which dataset, which ranker with which options, how trained, from which seed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dataset: Path = Field(description="a prepared dataset; the path is relative to this file")
    model: dict[str, Any] = Field(description="'name' of the ranker, and its options")
    train: TrainConfig = TrainConfig()
    seed: int = Field(default=1, ge=0, lt=2**32, description="initial weights, shuffling, unknown-dropping")
    preset: str | None = Field(
        default=None, exclude=True, description="where values came from; they are filled in, so it is not written down"
    )


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
        for place, (key, _) in enumerate(node.value):
            if keys[place] in keys[:place]:
                raise yaml.constructor.ConstructorError(None, None, f"key '{keys[place]}' stands twice", key.start_mark)
        return super().construct_mapping(node, deep)


def apply_overrides(values: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Set dotted keys, such as `train.epochs=5`, on a copy."""
    result: dict[str, Any] = _copy(values)
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
        return dotted, yaml.safe_load(text)
    except yaml.YAMLError:
        raise UsageError(f"--set {override}: '{text}' is not valid YAML") from None


def validate(
    config: type[Config], values: Mapping[str, Any], where: str, error: type[LimerankError] = UsageError
) -> Config:
    """Build a typed configuration; every problem becomes part of one line naming `where` and the key."""
    try:
        return config.model_validate(values)
    except ValidationError as invalid:
        raise error(f"{where}: {_explain(config, invalid)}") from None


def problem_of_value(config: type[BaseModel], key: str, value: Any) -> str:
    """What is wrong with the value of one key, whatever the other keys are; empty when nothing is."""
    try:
        config.model_validate({key: value})
    except ValidationError as invalid:
        own = [dict(item) for item in invalid.errors(include_url=False) if item["loc"][:1] == (key,)]
        return "; ".join(_problem(config, item).removeprefix(f"key '{key}': ") for item in own[:MOST_PROBLEMS])
    return ""


def load_run_config(path: Path) -> RunConfig:
    """The configuration of a finished run; a relative dataset path is relative to the file."""
    values = read_yaml(path)
    if values.get("preset") is not None:
        raise UsageError(f"{path}: key 'preset': a finished run has none, its values are filled in")
    config = validate(RunConfig, values, str(path))
    return config.model_copy(update={"dataset": joined(path.parent, config.dataset)})


def _copy(values: Any) -> Any:
    return {key: _copy(value) for key, value in values.items()} if isinstance(values, dict) else values


def _explain(config: type[BaseModel], invalid: ValidationError) -> str:
    problems = list(dict.fromkeys(_problem(config, dict(item)) for item in invalid.errors(include_url=False)))
    more = len(problems) - MOST_PROBLEMS
    return "; ".join(problems[:MOST_PROBLEMS]) + (f"; and {more} more" if more > 0 else "")


def _problem(config: type[BaseModel], item: dict[str, Any]) -> str:
    models, place = _walk(config, item["loc"])
    location, given, context = ".".join(place), item.get("input"), item.get("ctx", {})
    if item["type"] == "extra_forbidden":
        inside = _walk(config, item["loc"][:-1])[0]
        known = sorted({key for model in inside for key in model.model_fields})
        return f"unknown key '{location}'{did_you_mean(str(item['loc'][-1]), known)}"
    if item["type"] == "missing":
        return f"key '{location}' is missing"
    if item["type"] == "union_tag_invalid":
        known = [tag.strip("' ") for tag in context["expected_tags"].split(",")]
        key = context["discriminator"].strip("'")
        return f"key '{location}.{key}': unknown value '{context['tag']}'{did_you_mean(context['tag'], known)}"
    if item["type"] in ("enum", "literal_error") and isinstance(given, str):
        known = [value.strip("' ") for value in context["expected"].replace(" or ", ",").split(",")]
        return f"key '{location}': unknown value '{given}'{did_you_mean(given, known)}"
    if item["type"] == "too_short":
        return f"key '{location}': needs at least one entry"
    if item["type"] in ("model_type", "model_attributes_type", "dict_type"):
        keys = sorted({key for model in models for key in model.model_fields})
        return f"key '{location}': must be a mapping with keys such as {', '.join(keys[:4])} (got {given!r})"
    shown = f" (got {given!r})" if isinstance(given, (str, int, float, bool)) else ""
    prefix = f"key '{location}': " if location else ""
    return f"{prefix}{item['msg'].removeprefix('Value error, ')}{shown}"


def _walk(config: type[BaseModel], location: tuple[int | str, ...]) -> tuple[list[type[BaseModel]], list[str]]:
    """The models a place inside a nested configuration may be, and the place without the tags of unions."""
    current, shown = [config], []
    for part in location:
        tagged = [model for model in current if len(current) > 1 and _is_tag(model, part)]
        if tagged:
            current = tagged
            continue
        shown.append(str(part))
        if not isinstance(part, int):
            fields = current[0].model_fields if current else {}
            current = _models_inside(fields[part].annotation) if part in fields else []
    return current, shown


def _is_tag(model: type[BaseModel], part: int | str) -> bool:
    return any(field.default == part for field in model.model_fields.values())


def _models_inside(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in getattr(annotation, "__args__", ()) for model in _models_inside(argument)]
