"""What to search: a run configuration with a `space`, one or several rankers, and how the search goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from limerank.config import RunConfig, apply_overrides, current_names, parse_override, read_yaml
from limerank.errors import UsageError, did_you_mean
from limerank.models import RANKERS, check_model
from limerank.training.configuration import configured, named_values, no_such_name
from limerank.tuning.plan import SearchConfig, Tuning, plan, problem_of_unknown
from limerank.typed import Typed, validate


class TuningFile(Typed):
    """What a tuning file has beside the keys of a run configuration."""

    rankers: tuple[str, ...] = Field(default=(), description="searched with the same budget; default: `model.name`")
    space: dict[str, Any] | None = Field(default=None, description="dotted keys to ranges or choices")
    search: SearchConfig = SearchConfig()


def load_tuning(
    asked: str | Path, overrides: Sequence[str] = (), dataset: Path | None = None, trials: int | None = None
) -> Tuning:
    """A tuning file, or the name of a ranker or preset, with the default space; all of it checked.

    Overrides may change keys of the run configuration and of `search`, and `rankers`.
    """
    where = str(asked)
    values, folder = _read(where)
    own = [override for override in overrides if _of_the_search(override)]
    values = apply_overrides(values, own)
    known = [*RunConfig.model_fields, *TuningFile.model_fields]
    for key in values:
        if key not in known:
            raise UsageError(f"{where}: unknown key '{key}'{did_you_mean(str(key), known)}")
    mine = {key: value for key, value in values.items() if key in TuningFile.model_fields}
    named = f"{where} with {' '.join(f'--set {override}' for override in own)}" if own else where
    file = validate(TuningFile, mine, named)
    search = file.search if trials is None else file.search.model_copy(update={"trials": trials})
    base = {key: value for key, value in values.items() if key not in mine}
    if file.rankers and not Path(where).is_file():
        base.pop("model", None)  # a preset by its name brings one along
    others = [override for override in overrides if override not in own]
    configs = _one_for_each(base, _rankers(file, base, others, named), where, folder, others, dataset)
    return plan(configs, file.space, search, where)


def _read(asked: str) -> tuple[dict[str, Any], Path]:
    path, named = Path(asked), named_values(asked)
    if path.is_file():
        return read_yaml(path), path.parent
    if named is None:
        raise UsageError(f"{asked}: neither a tuning file nor the name of a ranker or preset{no_such_name(asked)}")
    return named, Path()


def _of_the_search(override: str) -> bool:
    section = parse_override(override)[0].split(".")[0]
    if section == "space":
        raise UsageError(f"--set {override}: a space is written in a file; see docs/how-to/tune-a-ranker.md")
    return section in ("search", "rankers")


def _rankers(file: TuningFile, base: Mapping[str, Any], overrides: Sequence[str], where: str) -> tuple[str, ...]:
    """The names of the rankers: one key or the other says them."""
    model = apply_overrides(dict(base), overrides).get("model", {})
    name = model.get("name") if isinstance(model, Mapping) else None
    if not file.rankers:
        check_model({"name": name} if name is not None else {}, where)
        return (str(name),)
    if name is not None:
        raise UsageError(f"{where}: key 'model.name': 'rankers' names them; leave one of the two out")
    for ranker in file.rankers:
        if ranker not in RANKERS:
            raise UsageError(f"{where}: key 'rankers': no ranker '{ranker}'{did_you_mean(ranker, RANKERS)}")
    if len(set(file.rankers)) < len(file.rankers):
        raise UsageError(f"{where}: key 'rankers': one stands twice")
    return file.rankers


def _one_for_each(
    base: Mapping[str, Any],
    rankers: Sequence[str],
    where: str,
    folder: Path,
    overrides: Sequence[str],
    dataset: Path | None,
) -> dict[str, RunConfig]:
    """The run configuration of each ranker: options of `model` that only others have are left out."""
    section = base.get("model") or {}
    if not isinstance(section, Mapping):
        raise UsageError(f"{where}: key 'model': must be a mapping of options")
    options = {key: value for key, value in current_names(section).items() if key != "name"}
    for key, value in options.items():
        if not any(_has(ranker, f"model.{key}") for ranker in rankers):
            raise UsageError(f"{where}: {problem_of_unknown(f'model.{key}', value, rankers)}")
    for override in overrides:
        dotted, value = parse_override(override)
        if not any(_has(ranker, dotted) for ranker in rankers):
            raise UsageError(f"--set {override}: {problem_of_unknown(dotted, value, rankers)}")
    return {
        ranker: configured(
            {**base, "model": {"name": ranker, **{k: v for k, v in options.items() if _has(ranker, f"model.{k}")}}},
            folder,
            where,
            [override for override in overrides if _has(ranker, parse_override(override)[0])],
            dataset,
        )
        for ranker in rankers
    }


def _has(ranker: str, dotted: str) -> bool:
    """Whether a ranker has an option; what is no option of a ranker is checked elsewhere."""
    section, _, key = dotted.rpartition(".")
    return section != "model" or key == "name" or key in RANKERS[ranker].options_type.model_fields
