"""What a FuxiCTR dataset configuration says: `dataset_config.yaml`, a folder of them, or a `feature_map.json`.

Nothing of it is executed: YAML is read with a safe loader that knows one extra tag, `!!python/tuple`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, field_validator

from limerank.errors import DataError, UsageError, did_you_mean
from limerank.files import read_json
from limerank.typed import validate

FEATURE_MAP = "feature_map.json"
RENAMED_KEYS = {"na_value": "fill_na", "encoder": "feature_encoder"}
DATASET_KEYS = {
    "data_root", "data_format", "train_data", "valid_data", "test_data", "user_info", "item_info", "rebuild_dataset",
    "min_categr_count", "feature_cols", "label_col", "group_id", "max_len",
}  # fmt: skip
UNUSED_COLUMN_KEYS = {
    "dtype", "remap", "embedding_dim", "emb_output_dim", "feature_encoder", "pretrain_dim", "pretrain_usage",
    "freeze_emb", "normalizer", "category_processor", "num_buckets", "padding_idx", "oov_idx", "index",
}  # fmt: skip
"""Keys of a column that say how FuxiCTR embeds or numbers it; a dataset does not need them."""


class Column(BaseModel):
    """One entry of `feature_cols`, or one feature of a feature map."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    type: Literal["meta", "numeric", "categorical", "sequence", "embedding"]
    source: Literal["", "user", "item", "context"] = ""
    active: bool = True
    preprocess: str | None = None
    min_categr_count: int | None = Field(default=None, ge=1)
    fill_na: str | int | float | None = None
    splitter: str = Field(default="^", min_length=1)
    max_len: int = Field(default=0, ge=0)
    padding: Literal["pre", "post"] = "post"
    share_embedding: str | None = None
    pretrained_emb: str | None = None
    vocab_size: int | None = None

    @field_validator("source", mode="before")
    @classmethod
    def _empty_source(cls, value: Any) -> Any:
        return "" if value is None else value

    @property
    def copied_from(self) -> str:
        """The raw column this one is read from."""
        copied = re.fullmatch(r"copy_from\((.+)\)", self.preprocess or "")
        return copied.group(1).strip().strip("'\"") if copied else self.name


class Dataset(BaseModel):
    """One dataset block, keys spelled as FuxiCTR's code reads them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    data_root: str = ""
    data_format: str = "csv"
    train_data: str
    valid_data: str | None = None
    test_data: str | None = None
    user_info: str | None = None
    item_info: str | None = None
    rebuild_dataset: bool = True
    min_categr_count: int = Field(default=1, ge=1)
    columns: tuple[Column, ...] = Field(min_length=1)
    labels: tuple[str, ...] = Field(min_length=1)
    group_id: str | None = None
    max_len: int | None = Field(default=None, ge=1)


@dataclass(frozen=True)
class Configuration:
    """A dataset block with where it was read, and what a person should know of the reading."""

    dataset_id: str
    dataset: Dataset
    folder: Path
    """Relative paths start here."""
    where: str
    """File and dataset id, for errors."""
    processed: bool
    """The files hold FuxiCTR's indices (0: missing or padding), not raw values."""
    notes: tuple[str, ...]


def read_configuration(path: Path, dataset_id: str | None, data_root: Path | None) -> Configuration:
    """Read the block of one dataset from a YAML file, a folder of YAML files or a feature map."""
    if path.name == FEATURE_MAP or (path.is_dir() and (path / FEATURE_MAP).is_file()):
        return _from_feature_map(path if path.is_file() else path / FEATURE_MAP)
    blocks = _blocks(path)
    chosen, file, values = _choose(blocks, path, dataset_id)
    where = f"{file}, dataset '{chosen}'"
    notes: list[str] = []
    values = _spelled_as_code(values, DATASET_KEYS, where, "dataset", notes)
    described = values.pop("feature_cols", None)
    labels = values.pop("label_col", None)
    if described is None:
        found = _beside(values, chosen, file.parent, data_root, where)
        columns, mapped_labels = _read_feature_map(found, notes)
        notes.append(f"{where} has no feature_cols: read as data that FuxiCTR processed, described by {found.name}")
        labels = labels or mapped_labels
    else:
        columns = _columns(described, where, notes)
    values.update(columns=columns, labels=_labels(labels, where))
    dataset = validate(Dataset, values, where, DataError)
    if dataset.data_format not in ("csv", "parquet", "npz"):
        raise DataError(
            f"{where}: data_format '{dataset.data_format}' is not read; convert the data to csv, parquet or npz"
        )
    processed = described is None or dataset.data_format == "npz" or not dataset.rebuild_dataset
    return Configuration(chosen, dataset, file.parent, where, processed, tuple(dict.fromkeys(notes)))


class _Loader(yaml.SafeLoader):
    """The safe loader, and tuples of plain values."""


def _tuple(loader: yaml.SafeLoader, node: yaml.Node) -> tuple[Any, ...]:
    if not isinstance(node, yaml.SequenceNode):
        raise yaml.constructor.ConstructorError(None, None, "a python/tuple must be a list", node.start_mark)
    return tuple(loader.construct_sequence(node, deep=True))


_Loader.add_constructor("tag:yaml.org,2002:python/tuple", _tuple)


def _load(path: Path) -> dict[str, Any]:
    try:
        loader = _Loader(path.read_text(encoding="utf-8"))
        try:
            value = loader.get_single_data()
        finally:
            loader.dispose()
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; name a dataset_config.yaml, its folder or a {FEATURE_MAP}") from None
    except (OSError, UnicodeDecodeError) as refused:
        raise DataError(f"{path}: cannot be read ({refused})") from None
    except yaml.YAMLError as broken:
        mark = getattr(broken, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        problem = str(getattr(broken, "problem", broken)).replace("\n", " ")
        fix = "; of Python's tags only !!python/tuple is read, nothing is ever executed" if "python/" in problem else ""
        raise DataError(f"{path}{line}: not valid YAML ({problem}){fix}") from None
    if not isinstance(value, dict):
        raise DataError(f"{path}: must be a mapping of dataset ids to their blocks, not {type(value).__name__}")
    return value


def _blocks(path: Path) -> dict[str, tuple[Path, dict[str, Any]]]:
    """Every dataset block of a file, or of the files of a folder; a tuner file has them under `dataset_config`."""
    if path.is_dir():
        inside = path / "dataset_config" if (path / "dataset_config").is_dir() else path
        files = sorted(inside.glob("dataset_config.yaml")) or sorted(inside.glob("*.yaml"))
        if not files:
            raise DataError(f"{path}: no dataset_config.yaml and no {FEATURE_MAP} in this folder")
    else:
        files = [path]
    blocks: dict[str, tuple[Path, dict[str, Any]]] = {}
    for file in files:
        content = _load(file)
        inner = content.get("dataset_config")
        tuner = content.get("tuner_space") or {}
        shared = {key: tuner[key] for key in ("group_id", "max_len") if isinstance(tuner.get(key), str | int)}
        for name, block in (inner if isinstance(inner, dict) else content).items():
            if isinstance(block, dict) and ("train_data" in block or "feature_cols" in block):
                blocks[str(name)] = (file, {**shared, **block})
    return blocks


def _choose(
    blocks: Mapping[str, tuple[Path, dict[str, Any]]], path: Path, dataset_id: str | None
) -> tuple[str, Path, dict[str, Any]]:
    if not blocks:
        raise DataError(f"{path}: no dataset block in it (a mapping with train_data and feature_cols)")
    if dataset_id is None:
        if len(blocks) > 1:
            raise UsageError(f"{path}: has several datasets; choose one with --dataset-id: {', '.join(blocks)}")
        dataset_id = next(iter(blocks))
    if dataset_id not in blocks:
        raise UsageError(f"{path}: no dataset '{dataset_id}'{did_you_mean(dataset_id, blocks)}")
    return dataset_id, *blocks[dataset_id]


def _spelled_as_code(
    values: Mapping[str, Any], known: set[str], where: str, what: str, notes: list[str]
) -> dict[str, Any]:
    """Old spellings to the ones the code reads; a near miss of a known key is an error, any other key is ignored."""
    result: dict[str, Any] = {}
    for key, value in values.items():
        name = RENAMED_KEYS.get(key, key)
        if name != key and name in known:
            notes.append(f"'{key}' is read as '{name}', which is what FuxiCTR's code calls it")
        if name in known:
            if name in result:
                raise DataError(f"{where}: {what} has both '{key}' and '{name}'; they mean the same, keep one")
            result[name] = value
            continue
        suggestion = did_you_mean(str(key), known)
        if suggestion.startswith("; did you mean"):
            raise DataError(f"{where}: {what} has an unknown key '{key}'{suggestion}")
        notes.append(f"{what}: key '{key}' is ignored: it is not part of FuxiCTR's dataset format")
    return result


def _columns(described: Any, where: str, notes: list[str]) -> tuple[Column, ...]:
    if not isinstance(described, list) or not all(isinstance(entry, dict) for entry in described):
        raise DataError(f"{where}: feature_cols must be a list of mappings")
    columns: list[Column] = []
    for entry in described:
        names = entry.get("name")
        if names is None or names == []:
            raise DataError(f"{where}: an entry of feature_cols has no 'name': {entry}")
        for name in names if isinstance(names, list | tuple) else [names]:
            columns.append(_column({**entry, "name": str(name)}, where, notes))
    twice = [column.name for number, column in enumerate(columns) if column.name in {c.name for c in columns[:number]}]
    if twice:
        raise DataError(f"{where}: feature_cols names '{twice[0]}' twice; keep one")
    return tuple(columns)


def _column(entry: Mapping[str, Any], where: str, notes: list[str]) -> Column:
    what = f"feature_cols, column '{entry['name']}'"
    values = _spelled_as_code(entry, set(Column.model_fields) | UNUSED_COLUMN_KEYS, where, what, notes)
    kept = {key: value for key, value in values.items() if key not in UNUSED_COLUMN_KEYS}
    column = validate(Column, kept, f"{where}, {what}", DataError)
    if column.preprocess and column.copied_from == column.name and not column.preprocess.startswith("copy_from("):
        raise DataError(
            f"{where}, {what}: preprocess '{column.preprocess}' is Python code of a FuxiCTR project and cannot be run; "
            "apply it to the files and remove the key, or set active: False"
        )
    return column


def _labels(described: Any, where: str) -> tuple[str, ...]:
    entries = described if isinstance(described, list | tuple) else [described]
    names = [entry.get("name") if isinstance(entry, dict) else entry for entry in entries]
    if not names or not all(isinstance(name, str) for name in names):
        raise DataError(f"{where}: label_col must name the label, for example {{name: clk, dtype: float}}")
    return tuple(str(name) for name in names)


def _beside(values: Mapping[str, Any], dataset_id: str, folder: Path, data_root: Path | None, where: str) -> Path:
    root = str(values.get("data_root") or "")
    train = Path(str(values.get("train_data") or "")).parent
    candidates = [folder / root / dataset_id, folder / train, folder]
    if data_root is not None:
        candidates[:0] = [data_root / dataset_id, data_root, data_root / train.name]
    for candidate in candidates:
        if (candidate / FEATURE_MAP).is_file():
            return candidate / FEATURE_MAP
    raise DataError(f"{where}: no feature_cols, and no {FEATURE_MAP} beside the data; give one, or --data-root")


def _from_feature_map(path: Path) -> Configuration:
    """Processed data with nothing but its feature map: train, valid and test lie beside it."""
    notes: list[str] = []
    columns, labels = _read_feature_map(path, notes)
    folder = path.parent
    for data_format in ("parquet", "npz"):
        parts = {
            part: name
            for part, names in {"train": ("train",), "valid": ("valid", "validation"), "test": ("test",)}.items()
            for name in names
            if (folder / f"{name}.{data_format}").exists() or any((folder / name).glob(f"*.{data_format}"))
        }
        if "train" in parts:
            break
    else:
        raise DataError(f"{folder}: has a {FEATURE_MAP}, but no train.parquet or train.npz beside it")
    values = {"data_format": data_format, "columns": columns, "labels": _labels(labels, str(path))}
    values.update({f"{part}_data": name for part, name in parts.items()})
    dataset = validate(Dataset, values, str(path), DataError)
    dataset_id = str(read_json(path, DataError, "write it again with FuxiCTR").get("dataset_id", folder.name))
    return Configuration(dataset_id, dataset, folder, str(path), True, tuple(dict.fromkeys(notes)))


def _read_feature_map(path: Path, notes: list[str]) -> tuple[tuple[Column, ...], list[str]]:
    content = read_json(path, DataError, "write it again with FuxiCTR")
    features = content.get("features", content.get("feature_specs")) if isinstance(content, dict) else None
    if isinstance(features, list) and all(isinstance(entry, dict) for entry in features):
        features = {name: spec for entry in features for name, spec in entry.items()}
    if not isinstance(features, dict) or not all(isinstance(spec, dict) for spec in features.values()):
        raise DataError(f"{path}: not a FuxiCTR feature map: 'features' must list a mapping per feature")
    columns = tuple(_column({**spec, "name": name}, str(path), notes) for name, spec in features.items())
    labels = content.get("labels") or []
    if not isinstance(labels, list):
        raise DataError(f"{path}: 'labels' must be a list of names")
    return columns, labels
