"""What to train: a YAML file, or the name of a ranker or of a preset, and what `--set` and `--dataset` change of it."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from limerank.config import DistributedConfig, RunConfig, TrainConfig, apply_overrides, parse_override, read_yaml
from limerank.data.sources.table.read import DESCRIPTION, describes_a_log
from limerank.data.store.manifest import MANIFEST
from limerank.errors import UsageError, did_you_mean
from limerank.files import joined
from limerank.models import RANKERS, check_model
from limerank.models.presets import PRESETS, complete
from limerank.training.run import CONFIG, RECORD
from limerank.typed import problem_of_value, validate

PRESET_RANKER = "lime-mha"
"""What a preset trains unless `model.name` says otherwise."""
EXAMPLES = {"model": "model.width", "train": "train.epochs", "distributed": "distributed.embeddings"}
"""The sections, each with one of its keys."""


def load_configuration(asked: str | Path, overrides: Sequence[str] = (), dataset: Path | None = None) -> RunConfig:
    """A run configuration by its file or its name, a preset filled in; a mistake in an override names the override.

    A dataset in a file is relative to the file; `dataset` and one in an override are relative to the current folder.
    """
    return configured(*_read(str(asked)), str(asked), overrides, dataset)


def configured(
    values: dict[str, Any], folder: Path, where: str, overrides: Sequence[str] = (), dataset: Path | None = None
) -> RunConfig:
    """The same from values that were read already; their paths are relative to `folder`."""
    result = apply_overrides(values, overrides)
    _check_overrides(overrides, result)
    if any(parse_override(override)[0] == "dataset" for override in overrides):
        folder = Path()
        if dataset is not None:
            raise UsageError(f"--dataset {dataset}: --set names a dataset too; keep one of them")
    if dataset is not None:
        folder, result["dataset"] = Path(), str(dataset)
    if result.get("dataset") is None:
        raise UsageError(f"{where}: key 'dataset' is missing; pass --dataset DATASET (`limerank prepare` makes one)")
    config = validate(RunConfig, complete(result, where), where)
    changed = [f"--set {override}" for override in overrides if override.startswith("model")]
    check_model(config.model, f"{where} with {' '.join(changed)}" if changed else where)
    return config.model_copy(update={"dataset": joined(folder, config.dataset)})


def overridden_training(config: RunConfig, overrides: Sequence[str]) -> RunConfig:
    """The configuration of a run that goes on from another: how it trains may change, what it is may not."""
    for override in overrides:
        key = parse_override(override)[0]
        if not (key == "seed" or key.startswith(("train.", "distributed."))):
            raise UsageError(
                f"--set {override}: a run that goes on keeps its ranker and dataset; change train.*, distributed.* or "
                "seed"
            )
    return configured(config.model_dump(mode="json", exclude={"preset"}), Path(), "the run's configuration", overrides)


def overridden_distribution(overrides: Sequence[str]) -> DistributedConfig:
    """How processes go on with a training that was stopped; nothing else of it may change."""
    for override in overrides:
        if not parse_override(override)[0].startswith("distributed"):
            raise UsageError(f"--set {override}: a training that is resumed keeps its configuration but distributed.*")
    values = apply_overrides({}, overrides)
    _check_overrides(overrides, values)
    return validate(DistributedConfig, values["distributed"], "--set")


def named_values(name: str) -> dict[str, Any] | None:
    """The configuration that the name of a ranker or preset stands for, without a dataset."""
    if name in PRESETS:
        return {"preset": name, "model": {"name": PRESET_RANKER}}
    return {"model": {"name": name}} if name in RANKERS else None


def no_such_name(name: str) -> str:
    """The end of an error: the nearest name, or all rankers and presets."""
    near = difflib.get_close_matches(name, [*RANKERS, *PRESETS], n=1)
    if near:
        return f"; did you mean '{near[0]}'?"
    return f"; rankers: {', '.join(RANKERS)}; presets: {', '.join(PRESETS)}"


def _read(asked: str) -> tuple[dict[str, Any], Path]:
    """The values as they are written, and the folder that a path in them is relative to."""
    path, named = Path(asked), named_values(asked)
    if path.exists() and not path.is_dir():
        values = read_yaml(path)
        if describes_a_log(values):
            raise UsageError(f"{asked}: describes a log, not what to train; {_prepare_first(asked)}")
        return values, path.parent
    if named is not None:
        return named, Path()
    if path.is_dir():
        raise UsageError(f"{asked}: is a folder, not what to train; {_use_of_folder(path)}")
    if path.suffix or path.name != asked:
        near = difflib.get_close_matches(path.stem, [*RANKERS, *PRESETS], n=1)
        name = near[0] if near else PRESET_RANKER
        raise UsageError(
            f"{asked}: no such file; train by name (limerank train {name} --dataset DATASET --out RUN), or write the "
            f"file: limerank models --config {name} > {asked}"
        )
    raise UsageError(f"{asked}: neither a file nor the name of a ranker or preset{no_such_name(asked)}")


def _prepare_first(description: str) -> str:
    return (
        f"prepare it first: limerank prepare table --raw {description} --out datasets/mine; "
        f"then: limerank train {PRESET_RANKER} --dataset datasets/mine --out runs/mine"
    )


def _use_of_folder(folder: Path) -> str:
    if (folder / MANIFEST).is_file():
        return f"a dataset: limerank train {PRESET_RANKER} --dataset {folder} --out RUN"
    if (folder / RECORD).is_file():
        return f"a run: its configuration is {folder / CONFIG}"
    if (folder / DESCRIPTION).is_file():
        return _prepare_first(str(folder))
    return f"name a file, a ranker or a preset: limerank train {PRESET_RANKER} --dataset DATASET --out RUN"


def _check_overrides(overrides: Sequence[str], values: Mapping[str, Any]) -> None:
    """Refuse keys that are nowhere and values that cannot be, whatever else is configured."""
    model = values.get("model")
    name = model.get("name") if isinstance(model, Mapping) else None
    for override in overrides:
        for dotted, value in _leaves(*parse_override(override)):
            if problem := problem_of_key(dotted, value, name if isinstance(name, str) else None):
                raise UsageError(f"--set {override}: {problem}")


def sections_of(ranker: str | None) -> dict[str, type[BaseModel]]:
    """The typed sections of a run configuration; that of the ranker's options only if it is known."""
    sections: dict[str, type[BaseModel]] = {"": RunConfig, "train": TrainConfig, "distributed": DistributedConfig}
    return sections | ({"model": RANKERS[ranker].options_type} if ranker is not None and ranker in RANKERS else {})


def problem_of_key(dotted: str, value: Any, ranker: str | None) -> str:
    """What is wrong with a dotted key such as `train.epochs` or with its value; empty when nothing is."""
    sections = sections_of(ranker)
    known = {_dotted(section, key): key for section, kind in sections.items() for key in kind.model_fields}
    known["model.name"] = "name"
    section, _, key = dotted.rpartition(".")
    if dotted == "model.name":
        return "" if str(value) in RANKERS else f"no ranker '{value}'{did_you_mean(str(value), RANKERS)}"
    if dotted == "preset" and value is not None:
        return "" if str(value) in PRESETS else f"no preset '{value}'{did_you_mean(str(value), PRESETS)}"
    if example := EXAMPLES.get(dotted):
        return f"'{dotted}' is a section; set one of its keys, such as {example}"
    if dotted in known:
        return problem_of_value(sections[section], key, value)
    if section == "model" and "model" not in sections:  # the ranker itself is unknown, which is said elsewhere
        return ""
    return f"unknown key '{dotted}'{_nearest_key(dotted, known)}"


def _nearest_key(dotted: str, known: Mapping[str, str]) -> str:
    """The key that is meant, in full: the section is what people leave out or mistake."""
    section, _, last = dotted.rpartition(".")
    near = [last] if last in known.values() else difflib.get_close_matches(last, set(known.values()), n=1)
    if near:
        return f"; did you mean '{next(full for full, key in known.items() if key == near[0])}'?"
    siblings = [full for full in known if full.rpartition(".")[0] == section]
    return did_you_mean(dotted, siblings or [full for full in known if "." not in full])


def _leaves(dotted: str, value: Any) -> Iterator[tuple[str, Any]]:
    """`train={epochs: 3}` sets train.epochs."""
    if isinstance(value, Mapping) and dotted in EXAMPLES:
        for key, inner in value.items():
            yield f"{dotted}.{key}", inner
    else:
        yield dotted, value


def _dotted(section: str, key: str) -> str:
    return f"{section}.{key}" if section else key
