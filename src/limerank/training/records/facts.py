"""What is written in a run's folder, flat and ready to be shown: configuration, metrics, dataset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from limerank.config import read_yaml
from limerank.data.store.manifest import read_manifest
from limerank.errors import DataError
from limerank.files import joined
from limerank.training.run import CONFIG

FINGERPRINT_SHOWN = 12
METRIC_NAMES = {
    "auc": "AUC",
    "gauc": "gAUC",
    "session_auc": "session AUC",
    "ne": "NE",
    "ndcg": "NDCG",
    "positive_rate": "positive rate",
    "ece": "calibration error",
}
HIGHER_IS_BETTER = {"auc", "gauc", "session_auc", "ndcg", "recall"}
CALIBRATION = ("calibration", "ece")


def metric_name(key: str) -> str:
    """What people call a metric; one that this version does not know is called by its key."""
    return METRIC_NAMES.get(key, key.replace("_", " "))


def configuration_of(folder: Path) -> dict[str, Any]:
    """`config.yaml` as it is written, each key with its section: `train.epochs`. A damaged one is a `DataError`."""
    return dict(_flat(read_yaml(folder / CONFIG, DataError)))


def configuration_text(value: object) -> str:
    """A value as a configuration would write it, on one line."""
    if isinstance(value, str):
        return value
    return str(yaml.safe_dump(value, default_flow_style=True, width=10**6)).removesuffix("\n").removesuffix("\n...")


def dataset_facts(folder: Path, fingerprint: str | None) -> dict[str, str]:
    """What can be said of a run's dataset: its fingerprint, and what it holds if it is still there."""
    facts = {"fingerprint": fingerprint[:FINGERPRINT_SHOWN]} if fingerprint else {}
    try:
        named = configuration_of(folder)["dataset"]
        facts["folder, from the run's"] = str(named)
        manifest = read_manifest(joined(folder, Path(str(named))))
    except (DataError, KeyError, OSError):
        return {**facts, "now": "not there any more"}
    if fingerprint and fingerprint != manifest.fingerprint:
        grown = fingerprint in manifest.grown_from
        return {**facts, "now": "has grown since the training" if grown else "another dataset has this name now"}
    return {**facts, **{name: f"{count:,}" for name, count in manifest.counts.items() if count}}


def _flat(values: Mapping[str, Any], section: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        dotted = f"{section}.{key}" if section else str(key)
        if isinstance(value, Mapping) and value:
            yield from _flat(value, dotted)
        else:
            yield dotted, value
