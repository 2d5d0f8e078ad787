"""The contestant from FuxiCTR: its loader, layers, training step, prediction and metrics, through its public API.

    .venv/bin/python theirs.py DATA_FOLDER

The wheel has no DIN for its own npz loader, so the network is put together here from its layers: embeddings, its DIN
attention and its MLP. `plain` is DIN as FuxiCTR users know it; `tower` puts limerank's item tower in front.
"""

from __future__ import annotations

import sys
import tempfile
import time
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fuxictr.features import FeatureMap
from fuxictr.metrics import evaluate_metrics
from fuxictr.pytorch.dataloaders import RankDataLoader
from fuxictr.pytorch.layers import DIN_Attention, FeatureEmbeddingDict, MLP_Block
from fuxictr.pytorch.models import BaseModel
from fuxictr.pytorch.torch_utils import seed_everything
from torch.utils.data import DataLoader
from worker import (
    ATTENTION,
    EMBEDDING_WIDTH,
    EVENT,
    HEAD,
    ITEM,
    LEARNING_RATE,
    REQUEST,
    TOWER_HIDDEN,
    TOWER_WIDTH,
    endless,
    serve,
    timed,
)

FOLDER = Path(sys.argv[1]) / "simulated"
TARGET = (*ITEM, *EVENT)
SEQUENCE = tuple(f"{name}_his" for name in TARGET)


class DIN(BaseModel):
    """DIN of FuxiCTR's layers; the six target embeddings and their histories side by side."""

    def __init__(self, feature_map: FeatureMap, *, tower: bool, fused: bool = True) -> None:
        super().__init__(
            feature_map,
            model_id="DIN",
            verbose=0,
            model_root=tempfile.mkdtemp(prefix="fuxictr-"),
            metrics=["AUC", "gAUC"],
            monitor="AUC",
            reduce_lr_on_plateau=False,
        )
        Path(self.model_dir).mkdir(parents=True, exist_ok=True)
        self.embedding_layer = FeatureEmbeddingDict(feature_map, EMBEDDING_WIDTH)
        side_by_side = EMBEDDING_WIDTH * len(TARGET)
        width = TOWER_WIDTH if tower else side_by_side
        self.tower = (
            MLP_Block(side_by_side, hidden_units=[TOWER_HIDDEN], hidden_activations="ReLU", output_dim=TOWER_WIDTH)
            if tower
            else torch.nn.Identity()
        )
        self.attention = DIN_Attention(width, attention_units=list(ATTENTION), hidden_activations="ReLU")
        self.dnn = MLP_Block(
            input_dim=2 * width + EMBEDDING_WIDTH * len(REQUEST),
            hidden_units=list(HEAD),
            hidden_activations="ReLU",
            output_dim=1,
            output_activation=self.output_activation,
        )
        self.compile("adam", "binary_crossentropy", LEARNING_RATE)
        self.reset_parameters()
        if fused:  # the same optimizer, its fastest implementation
            self.optimizer = torch.optim.Adam(self.parameters(), lr=LEARNING_RATE, fused=True)
        self.model_to_device()

    def forward(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Probabilities of a batch."""
        values = self.get_inputs(inputs)
        embedded = self.embedding_layer(values)
        target = self.tower(torch.cat([embedded[name] for name in TARGET], dim=-1))
        history = self.tower(torch.cat([embedded[name] for name in SEQUENCE], dim=-1))
        pooled = self.attention(target, history, values[SEQUENCE[0]] != 0)
        others = [embedded[name] for name in REQUEST]
        return {"y_pred": self.dnn(torch.cat([pooled, target, *others], dim=-1))}


class Some:
    """The first batches of a loader: what `fit` and `predict` iterate over."""

    def __init__(self, loader: Any, batches: int) -> None:
        self.loader, self.batches = loader, batches

    def __iter__(self) -> Any:
        return islice(iter(self.loader), self.batches)

    def __len__(self) -> int:
        return min(self.batches, len(self.loader))


class Theirs:
    """The commands of this contestant."""

    def __init__(self) -> None:
        self.feature_map = FeatureMap("simulated", str(FOLDER))
        path = str(FOLDER / "feature_map.json")
        self.feature_map.load(path, {"group_id": "user", "embedding_dim": EMBEDDING_WIDTH})
        self.train, self.valid, self.test = RankDataLoader(
            self.feature_map,
            train_data=str(FOLDER / "train.npz"),
            valid_data=str(FOLDER / "validation.npz"),
            test_data=str(FOLDER / "test.npz"),
            batch_size=64,
            data_format="npz",
            num_workers=0,
        )
        self.models: dict[str, Any] = {}
        self.streams: dict[Any, Any] = {}

    def about(self) -> dict[str, Any]:
        """Versions."""
        names = ("fuxictr", "torch", "numpy", "polars", "scikit-learn")
        return {name: version(name) for name in names}

    def loader(self, part: Any, batch_rows: int, shuffle: bool, workers: int = 0) -> Any:
        """What FuxiCTR's loader is, over rows that it has in memory already, with another batch size."""
        return DataLoader(part.dataset, batch_rows, shuffle, num_workers=workers, collate_fn=part.collate_fn)

    def network(self, variant: str, fused: bool = True) -> DIN:
        """Built and warmed up by a short `fit`, which also sets what `train_step` needs."""
        key = f"{variant} {fused}"
        if key not in self.models:
            seed_everything(1)
            model = DIN(self.feature_map, tower=variant == "tower", fused=fused)
            model.fit(Some(self.loader(self.train, 64, True), 2), 1, Some(self.loader(self.valid, 512, False), 2))
            self.models[key] = model
        return self.models[key]

    def steps(self, variant: str, batch_rows: int, steps: int, workers: int = 0, fused: bool = True) -> dict[str, Any]:
        """Training as `train_epoch` does it: loader, step, loss."""
        model = self.network(variant, fused)
        key = (variant, batch_rows, workers, fused)
        if key not in self.streams:
            self.streams[key] = endless(lambda: self.loader(self.train, batch_rows, True, workers))
        stream = self.streams[key]
        model.train()

        def work() -> int:
            rows = 0
            for batch in islice(stream, steps):
                loss = model.train_step(batch)
                loss.item()
                rows += len(batch["click"])
            return rows

        return timed(work)

    def evaluating(self, variant: str, batch_rows: int, batches: int) -> dict[str, Any]:
        """`predict` over the first batches of the test part."""
        model, some = self.network(variant), Some(self.loader(self.test, batch_rows, False), batches)
        return timed(lambda: len(model.predict(some)))

    def loading(self, batch_rows: int, batches: int, workers: int = 0) -> dict[str, Any]:
        """The training loader alone, ids as integers, as the embeddings need them."""
        loader = Some(self.loader(self.train, batch_rows, True, workers), batches)

        def work() -> int:
            rows = 0
            for batch in loader:
                for name, column in batch.items():
                    if name != "click":
                        column.long()
                rows += len(batch["click"])
            return rows

        return timed(work)

    def gauc(self, times: int) -> dict[str, Any]:
        """gAUC of the test part by user, of scores that were given, so many times."""
        with np.load(FOLDER / "scores.npz") as given:
            label, score, user = given["click"], given["score"], given["user"]
        found = {}

        def work() -> int:
            for _ in range(times):
                found.update(evaluate_metrics(label, score, ["gAUC"], user))
            return times * len(label)

        return {**timed(work), "gauc": float(found["gAUC"])}

    def agree(self, variant: str, weights: str, predictions: str, rows: int) -> dict[str, Any]:
        """Largest difference of probabilities to those of the other contestant, with its weights."""
        model = DIN(self.feature_map, tower=variant == "tower")
        load_weights(model, weights)
        with np.load(predictions) as given:
            expected = given["probability"]
        found = model.predict(Some(self.loader(self.test, rows, False), 1))
        return {"rows": rows, "largest_difference": float(np.abs(found - expected[:rows]).max())}

    def fit(self, variant: str, seed: int, epochs: int, batch_rows: int, weights: str | None) -> dict[str, Any]:
        """Train for some epochs with `fit`, from given weights or its own, then measure on the test part."""
        seed_everything(seed)
        model = DIN(self.feature_map, tower=variant == "tower")
        if weights is not None:
            load_weights(model, weights)
        started = time.perf_counter()
        train, valid = self.loader(self.train, batch_rows, True), self.loader(self.valid, 4096, False)
        model.fit(train, epochs, valid)
        seconds = time.perf_counter() - started
        probability = model.predict(self.loader(self.test, 4096, False))
        with np.load(FOLDER / "scores.npz") as given:
            label = given["click"]
        found = evaluate_metrics(label, probability, ["AUC", "logloss"])
        return {"seconds": seconds, "auc": float(found["AUC"]), "logloss": float(found["logloss"])}


def load_weights(model: DIN, path: str) -> None:
    """The weights that the other contestant wrote."""
    state = model.state_dict()
    with np.load(path) as given:
        for name in state:
            feature = name.removeprefix("embedding_layer.embedding_layers.").removesuffix(".weight")
            state[name] = torch.from_numpy(
                given[feature.removesuffix("_his") if feature in (*SEQUENCE, *TARGET, *REQUEST) else name]
            )
    model.load_state_dict(state)


def main() -> None:
    """Serve."""
    torch.set_num_threads(1)
    contestant = Theirs()
    serve(contestant)


if __name__ == "__main__":
    main()
