"""The contestant from limerank: its loader, layers, training step, prediction and metrics.

    python ours.py DATA_FOLDER

`tower` is `limerank train din` with one task and without the tower's shortcut; `plain` is the same ranker without the
item tower, as FuxiCTR's DIN has none: E_j and T_c are embeddings side by side.
"""

from __future__ import annotations

import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from data import HISTORY
from torch import Tensor, nn
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

import limerank
from limerank.batch import Features, History
from limerank.bench.machine import copy_gbytes, gemm_gflops
from limerank.config import TrainConfig
from limerank.data.batches import RequestLoader
from limerank.data.store.dataset import StoredDataset
from limerank.evaluation.evaluate import EVALUATION_BATCH, predict
from limerank.metrics import auc, grouped_auc, logloss
from limerank.models import Ranker
from limerank.models.din import DIN, DINRanker
from limerank.nn.features import FeatureEmbedding
from limerank.ops.gathered import Gathered
from limerank.schema import EncodedFeature, FeatureSpace
from limerank.splits import Part
from limerank.training.steps.step import TrainingStep

FOLDER = Path(sys.argv[1])
TRAINING = TrainConfig(learning_rate=LEARNING_RATE, final_learning_rate_fraction=1, warmup_fraction=0)


class SideBySide(nn.Module):
    """No tower: embeddings side by side, zero where a candidate has no event yet."""

    def __init__(self, item: tuple[EncodedFeature, ...], event: tuple[EncodedFeature, ...]) -> None:
        super().__init__()
        self.item_embedding = FeatureEmbedding(item, EMBEDDING_WIDTH, 0.0)
        self.event_embedding = FeatureEmbedding(event, EMBEDDING_WIDTH, 0.0)

    def candidates(self, items: Features) -> Tensor:
        """T [n, d]."""
        rows = self.item_embedding(items)
        return torch.cat([rows, rows.new_zeros(len(rows), self.event_embedding.output_width)], 1)

    def history(self, history: History) -> Tensor:
        """E [sum_n, d]."""
        items = self.item_embedding(history.items).index_select(0, history.item_of_event)
        return torch.cat([items, self.event_embedding(history.events)], 1)

    def distinct_history(self, history: History) -> Gathered:
        """The same; nothing is worth holding once."""
        return Gathered(self.history(history))

    def item_parameters(self) -> list[nn.Parameter]:
        """The parameters T depends on."""
        return list(self.item_embedding.parameters())


def make_ranker(variant: str, space: FeatureSpace, seed: int) -> DINRanker:
    """DIN of the agreed sizes."""
    torch.manual_seed(seed)
    width = TOWER_WIDTH if variant == "tower" else EMBEDDING_WIDTH * len((*ITEM, *EVENT))
    options = DIN(
        width=width,
        embedding_width=EMBEDDING_WIDTH,
        tower_hidden=TOWER_HIDDEN,
        tower_shortcut=False,
        hidden=ATTENTION,
        head=HEAD,
        unknown_rate=0,
    )
    ranker = DINRanker(space, 1, options)
    if variant == "plain":
        ranker.item_tower = SideBySide(space.item, space.event)  # type: ignore[assignment]
    return ranker


def new_training(variant: str, dataset: StoredDataset, seed: int = 1) -> TrainingStep:
    """The step that `limerank train` repeats."""
    ranker = make_ranker(variant, dataset.encoders.space(), seed).train()
    return TrainingStep(ranker, TRAINING, ("click",), torch.device("cpu"))


class Ours:
    """The commands of this contestant."""

    def __init__(self) -> None:
        self.dataset = StoredDataset.open(FOLDER / "dataset")
        counts = self.dataset.manifest.counts
        self.per_request = counts["events"] / counts["requests"]
        self.trainings: dict[str, TrainingStep] = {}
        self.streams: dict[Any, Any] = {}

    def about(self) -> dict[str, Any]:
        """Versions, and the machine's own speed in this process."""
        return {
            "limerank": limerank.__version__,
            "torch": torch.__version__,
            "gemm_gflops": gemm_gflops(),
            "copy_gbytes_per_second": copy_gbytes(),
        }

    def loader(self, part: Part, batch_rows: int, seed: int | None = 1) -> RequestLoader:
        """Batches of as many requests as have about so many candidates."""
        requests = max(1, round(batch_rows / self.per_request))
        return RequestLoader(self.dataset, part, batch_requests=requests, max_history=HISTORY, seed=seed)

    def training(self, variant: str) -> TrainingStep:
        """Built once."""
        if variant not in self.trainings:
            self.trainings[variant] = new_training(variant, self.dataset)
        return self.trainings[variant]

    def steps(self, variant: str, batch_rows: int, steps: int) -> dict[str, Any]:
        """Training: loader, step, loss."""
        training, key = self.training(variant), (variant, batch_rows)
        if key not in self.streams:
            loader = self.loader(Part.TRAIN, batch_rows)
            self.streams[key] = endless(lambda: loader)
        stream = self.streams[key]
        training.ranker.train()

        def work() -> int:
            rows = 0
            for batch in islice(stream, steps):
                training(batch, 1.0)
                rows += len(batch.labels)
            return rows

        return timed(work)

    def evaluating(self, variant: str, batch_rows: int, batches: int) -> dict[str, Any]:
        """`predict` over the first requests of the test part."""
        ranker, loader = self.training(variant).ranker, self.loader(Part.TEST, batch_rows, None)
        loader.requests = loader.requests[: loader.batch_requests * batches]
        return timed(lambda: len(predict(ranker, loader).probability))

    def loading(self, batch_rows: int, batches: int) -> dict[str, Any]:
        """The training loader alone."""
        loader = self.loader(Part.TRAIN, batch_rows)
        loader.requests = loader.requests[: loader.batch_requests * batches]
        return timed(lambda: sum(len(batch.labels) for batch in loader))

    def gauc(self, times: int) -> dict[str, Any]:
        """gAUC of the test part by user, of scores that were given, so many times."""
        with np.load(FOLDER / "simulated" / "scores.npz") as given:
            label, score, user = given["click"], given["score"], given["user"]
        found: list[float | None] = []

        def work() -> int:
            found.extend(grouped_auc(label, score, user) for _ in range(times))
            return times * len(label)

        return {**timed(work), "gauc": found[-1]}

    def agree(self, variant: str, weights: str, predictions: str, rows: int) -> dict[str, Any]:
        """Write random weights under the other contestant's names, and probabilities of the first test rows."""
        ranker = make_ranker(variant, self.dataset.encoders.space(), 5).eval()
        save_weights(ranker, weights)
        loader = self.loader(Part.TEST, 4096, None)
        found = predict(ranker, loader)
        order = np.argsort(np.concatenate([found.rows]), kind="stable")
        stored = loader.candidate_rows(loader.requests)
        position = np.searchsorted(found.rows[order], stored)
        probability = found.probability[order[position], 0]
        np.savez(predictions, allow_pickle=False, probability=probability)
        return {"rows": len(probability)}

    def fit(self, variant: str, seed: int, epochs: int, batch_rows: int, weights: str) -> dict[str, Any]:
        """Train for some epochs, keep the best of them by validation AUC as FuxiCTR does, measure on the test part.

        The initial weights are left in a file for the other contestant.
        """
        training, started = new_training(variant, self.dataset, seed), time.perf_counter()
        save_weights(training.ranker, weights)
        loader, best, best_weights = self.loader(Part.TRAIN, batch_rows, seed), -1.0, {}
        for _ in range(epochs):
            training.ranker.train()
            for batch in loader:
                training(batch, 1.0)
            found = self.measured(training.ranker, Part.VALIDATION)["auc"]
            if found > best:
                best, best_weights = found, {k: v.clone() for k, v in training.ranker.state_dict().items()}
        seconds = time.perf_counter() - started
        training.ranker.load_state_dict(best_weights)
        return {"seconds": seconds, **self.measured(training.ranker, Part.TEST)}

    def measured(self, ranker: Ranker, part: Part) -> dict[str, float]:
        """AUC and logloss of one part."""
        found = predict(ranker, self.loader(part, round(EVALUATION_BATCH * self.per_request), None))
        label = self.dataset.column("events/label.click")[found.rows].astype(np.float64)
        score = found.probability[:, 0].astype(np.float64)
        return {"auc": float(auc(label, score) or 0), "logloss": logloss(label, score)}


def save_weights(ranker: Ranker, path: str) -> None:
    """Under the names of the other contestant."""
    assert isinstance(ranker, DINRanker)
    np.savez(path, allow_pickle=False, **{name: one.numpy() for name, one in named_weights(ranker).items()})


def named_weights(ranker: DINRanker) -> dict[str, Tensor]:
    """All weights under the names that the network of FuxiCTR's layers has for them; see theirs.py."""
    tower, context, head, unit = ranker.item_tower, ranker.context_tower, ranker.head, ranker.unit
    result: dict[str, Tensor] = {}
    assert tower.event_embedding is not None
    assert context.user_embedding is not None
    assert context.context_embedding is not None
    tables = [tower.item_embedding, tower.event_embedding, context.user_embedding, context.context_embedding]
    for embedding in tables:
        for feature, rows in zip(
            embedding.single, embedding.table.split([f.size for f in embedding.single]), strict=True
        ):
            result[feature.name] = rows.clone()
            result[feature.name][0] = 0.0  # padding, which limerank never looks up
    if hasattr(tower, "to_output"):
        assert tower.from_event is not None
        result["tower.mlp.0.weight"] = torch.cat([tower.from_item.weight, tower.from_event.weight], 1)
        result["tower.mlp.0.bias"] = tower.from_item.bias
        result["tower.mlp.2.weight"] = tower.to_output.weight
        result["tower.mlp.2.bias"] = tower.to_output.bias
    for number, layer in enumerate([unit.first, *unit.later, unit.last]):
        result[f"attention.attention_layer.mlp.{2 * number}.weight"] = layer.weight
        result[f"attention.attention_layer.mlp.{2 * number}.bias"] = layer.bias
    first = [head.from_interaction.weight, head.from_item.weight, head.from_user.weight]
    result["dnn.mlp.0.weight"], result["dnn.mlp.0.bias"] = torch.cat(first, 1), head.from_item.bias
    result["dnn.mlp.2.weight"], result["dnn.mlp.2.bias"] = head.later[0].weight, head.later[0].bias
    return {name: tensor.detach().contiguous() for name, tensor in result.items()}


def main() -> None:
    """Serve."""
    torch.set_num_threads(1)
    contestant = Ours()
    assert tuple(e.name for e in contestant.dataset.encoders.user + contestant.dataset.encoders.context) == REQUEST
    serve(contestant)


if __name__ == "__main__":
    main()
