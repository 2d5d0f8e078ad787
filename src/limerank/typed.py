"""Typed values: what people write in Python or in YAML, checked; a mistake is one line that names key and fix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from limerank.errors import ArgumentError, LimerankError, UsageError, did_you_mean

Config = TypeVar("Config", bound=BaseModel)

MOST_PROBLEMS = 3  # in one line

if TYPE_CHECKING:
    _OneLine = type
else:

    class _OneLine(type(BaseModel)):
        """`LimeMHA(linkz=16)` ends in one line, as the same mistake in a file does; pydantic's own text has many."""

        def __call__(cls, *args: Any, **values: Any) -> Any:
            try:
                return super().__call__(*args, **values)
            except ValidationError as invalid:
                raise ArgumentError(f"{cls.__name__}: {_explain(cls, invalid)}") from None


class Typed(BaseModel, metaclass=_OneLine):
    """A value of named, typed fields: unknown ones are refused, and it never changes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


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


def _explain(config: type[BaseModel], invalid: ValidationError) -> str:
    problems = list(dict.fromkeys(_problem(config, dict(item)) for item in invalid.errors(include_url=False)))
    more = len(problems) - MOST_PROBLEMS
    return "; ".join(problems[:MOST_PROBLEMS]) + (f"; and {more} more" if more > 0 else "")


def _problem(config: type[BaseModel], item: dict[str, Any]) -> str:
    models, keys = _walk(config, item["loc"])
    location, given, context = ".".join(keys), item.get("input"), item.get("ctx", {})
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
    """The models that a key inside a nested configuration may be in, and the keys to it without the tags of unions."""
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
