"""Bundles of other logs, with other vocabularies, are compared by what values mean and not by their indices."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from hosts import featureless

from limerank.api.dataset import Dataset
from limerank.batch import Features, Jagged
from limerank.data.sources.simulated import SimulatedConfig, simulate
from limerank.data.store.dataset import StoredDataset
from limerank.data.store.encoders import Encoder
from limerank.models import build_ranker
from limerank.schema import Kind
from limerank.serve.bundles.offline import export
from limerank.serve.engine import Engine
from limerank.serve.hosting import differences


def encoders(letters: str, tags: str, buckets: int) -> list[Encoder]:
    return [
        Encoder(name="letter", kind=Kind.CATEGORICAL, vocabulary=tuple(letters)),
        Encoder(name="tags", kind=Kind.MULTI_VALUED, vocabulary=tuple(tags)),
        Encoder(name="hashed", kind=Kind.HASHED, buckets=buckets),
        Encoder(name="vector", kind=Kind.VECTOR, width=1),
    ]


def features(letters: list[int], tags: list[list[int]], vectors: list[float]) -> Features:
    offsets = np.concatenate([[0], np.cumsum([len(one) for one in tags])])
    lists = Jagged(torch.tensor([tag for one in tags for tag in one]), torch.from_numpy(offsets))
    indices = torch.tensor([[letter, 2 + number] for number, letter in enumerate(letters)])
    return Features(indices, (lists,), (torch.tensor(vectors)[:, None],))


def test_values_are_compared_not_indices() -> None:
    """Of five items one has another letter, one other tags, one another vector; unknown is not another value.

    Hashes into other buckets cannot be compared, so the feature is left out.
    """
    compare = differences._Comparison(encoders("ab", "xy", 8), encoders("cba", "yx", 16))
    old = features([2, 3, 2, 2, 1], [[2], [3], [2, 3], [2], []], [0, 0, 0, 1, 0])
    new = features([4, 4, 4, 4, 2], [[3], [2], [3], [3], []], [0, 0, 0, 2, 0])
    assert compare.same(old, new).tolist() == [True, False, False, False, True]
    alike = differences._Comparison(encoders("ab", "xy", 8), encoders("ab", "xy", 8))
    assert alike.same(old, old).all()
    assert not alike.same(old, new).any()


def test_bundles_of_other_logs_are_compared(dataset: StoredDataset, tmp_path: Path) -> None:
    """Fewer items and users, other options: counts are those of the ids, in small blocks as in one."""
    other = Dataset.build(
        simulate(SimulatedConfig(users=40, items=150, topics=6, sessions=8, slots=6, seed=4)),
        out=tmp_path / "dataset",
        quiet=True,
    )
    engines = []
    for number, (one, name) in enumerate(((dataset, "lime-mha"), (other, "ttsn"))):
        torch.manual_seed(number)
        ranker = build_ranker({"name": name}, one.encoders.space(), len(one.schema.tasks), "test").eval()
        bundle = export(ranker, {"name": name}, one, tmp_path / "store", max_history=20, threads=1)
        engines.append(Engine(bundle, threads=1))
    old, new = engines
    known = {*old.bundle.item_ids.names_of(range(1, 201))} & {*new.bundle.item_ids.names_of(range(1, 151))}
    found = differences.diff(old, new, users=5)
    assert (found.items_added, found.items_removed) == (150 - len(known), 200 - len(known))
    assert {"model", "items", "users", "data_fingerprint", "bytes"} <= set(found.facts)
    assert found.facts["items"] == (201, 151)
    assert found.rankings["users"] == 5
    assert 0 <= found.rankings["overlap_10"] <= 1
    assert found.users_added == 0
    assert found.users_removed == old.bundle.manifest.users - new.bundle.manifest.users
    back = differences.diff(new, old, users=5)
    assert (back.items_added, back.items_removed) == (found.items_removed, found.items_added)
    old.upsert([featureless(old, "only in the overlay")])
    assert differences.diff(old, new, users=1).items_removed == found.items_removed
    for engine in engines:
        engine.close()
