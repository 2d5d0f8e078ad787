"""The quickstart's simulated log, as a limerank dataset and as the padded npz files that FuxiCTR reads.

Both hold the same rows in the same parts, with the same indices. FuxiCTR has no lists inside a sequence and one task,
so tags and long views are left out for both.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from worker import EVENT, ITEM, REQUEST

from limerank.bench.padded import padded_features
from limerank.data.batches import RequestLoader
from limerank.data.build.prepare import prepare
from limerank.data.sources.simulated import SimulatedConfig, simulate
from limerank.data.store.dataset import StoredDataset
from limerank.files import write_json
from limerank.splits import Part

HISTORY = 100
DATASET_ID = "simulated"


def make_data(folder: Path, users: int) -> StoredDataset:
    """Prepare and export, unless `folder` already holds what was asked for."""
    done, asked = folder / "done.json", {"users": users, "history": HISTORY}
    if not done.exists() or json.loads(done.read_text()) != asked:
        raw = simulate(SimulatedConfig(users=users))
        features = tuple(f for f in raw.schema.features if f.name != "tags")
        tasks = tuple(task for task in raw.schema.tasks if task.name == "click")
        schema = raw.schema.model_copy(update={"features": features, "tasks": tasks})
        prepare(replace(raw, schema=schema), folder / "dataset", overwrite=True)
        export(StoredDataset.open(folder / "dataset"), folder / DATASET_ID)
        write_json(done, asked)
    return StoredDataset.open(folder / "dataset")


def export(dataset: StoredDataset, folder: Path) -> None:
    """One npz file per part, the scores that gAUC is timed on, and the feature map."""
    folder.mkdir(parents=True, exist_ok=True)
    names = tuple(e.name for e in dataset.encoders.item), tuple(e.name for e in dataset.encoders.event)
    assert names == (ITEM, EVENT), names
    for part in Part:
        loader = RequestLoader(dataset, part, batch_requests=1, max_history=HISTORY)
        histories, others, labels = padded_features(loader, loader.requests)
        columns = {f"{name}_his": history for name, history in zip((*ITEM, *EVENT), histories, strict=True)}
        columns |= dict(zip((*ITEM, *REQUEST), others.T, strict=True))
        columns |= {name: np.zeros(len(labels), dtype=np.int32) for name in EVENT}  # nothing has happened yet
        counts = np.diff(dataset.column("requests/start").astype(np.int64))[loader.requests]
        user = np.repeat(dataset.column("requests/user")[loader.requests].astype(np.int64), counts)
        columns |= {"user": user, "click": labels[:, 0].astype(np.float64)}
        np.savez(folder / f"{part.value}.npz", allow_pickle=False, **columns)
        if part is Part.TEST:
            truth = dataset.column("events/truth.click")[loader.candidate_rows(loader.requests)].astype(np.float64)
            np.savez(folder / "scores.npz", allow_pickle=False, user=user, click=columns["click"], score=truth)
    write_json(folder / "feature_map.json", _feature_map(dataset))


def _feature_map(dataset: StoredDataset) -> dict[str, object]:
    """As FuxiCTR writes it: embeddings of a history are those of the candidate's feature."""
    space = dataset.encoders.space()
    sizes = {f.name: f.size for role in (space.item, space.event, space.user, space.context) for f in role}
    features: list[dict[str, object]] = [{"user": {"source": "", "type": "meta"}}]
    for name in (*ITEM, *EVENT, *REQUEST):
        features.append({name: {"source": "", "type": "categorical", "padding_idx": 0, "vocab_size": sizes[name]}})
    for name in (*ITEM, *EVENT):
        spec = {"source": "", "type": "sequence", "feature_encoder": None, "share_embedding": name, "padding_idx": 0}
        features.append({f"{name}_his": {**spec, "max_len": HISTORY, "vocab_size": sizes[name]}})
    return {
        "dataset_id": DATASET_ID,
        "num_fields": len(features) - 1,
        "total_features": sum(sizes.values()),
        "input_length": 1 + len(sizes) + HISTORY * len((*ITEM, *EVENT)),
        "labels": ["click"],
        "features": features,
    }
