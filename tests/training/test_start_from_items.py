"""A fresh training may start from items of its log: which it sees, what links become, and that others see none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from killing import Killed, KilledAt
from torch import Tensor
from torch.nn import functional

from limerank.batch import Features
from limerank.config import RunConfig, TrainConfig
from limerank.data.batches import RequestLoader
from limerank.data.build.prepare import prepare
from limerank.data.sources.simulated import SimulatedConfig, simulate
from limerank.data.store.dataset import StoredDataset
from limerank.models import RANKERS, Ranker, build_ranker
from limerank.models.lime import LimeRanker
from limerank.models.pma import PMARanker
from limerank.nn.links import Links
from limerank.progress import Progress
from limerank.serve.bundles.offline import export
from limerank.serve.engine import Engine
from limerank.splits import Part
from limerank.training.steps.start import start_from_items
from limerank.training.trainer import resume, train

QUIET = Progress(quiet=True)
STARTING = [name for name, ranker in RANKERS.items() if "link_start" in ranker.options_type.model_fields]


def built(dataset: StoredDataset, name: str, **options: Any) -> Ranker:
    torch.manual_seed(0)
    return build_ranker({"name": name, **options}, dataset.encoders.space(), len(dataset.schema.tasks), "test")


def links_of(ranker: Ranker) -> Links:
    assert isinstance(ranker, LimeRanker | PMARanker)
    return ranker.seeds if isinstance(ranker, PMARanker) else ranker.links


def started(dataset: StoredDataset, name: str, seed: int = 1, **options: Any) -> tuple[Ranker, Features]:
    """A ranker that was shown items, and those items."""
    ranker = built(dataset, name, **options)
    shown: list[Features] = []
    begin = ranker.start_from

    def seen_by(items: Features) -> None:
        shown.append(items)
        begin(items)

    ranker.start_from = seen_by  # type: ignore[method-assign]
    start_from_items(ranker, dataset, dataset.requests_in(Part.TRAIN), seed)
    (items,) = shown
    return ranker, items


def vectors(ranker: Ranker, items: Features) -> Tensor:
    """LN(T)."""
    with torch.no_grad():
        embedded = ranker.eval().item_tower.candidates(items)
    return functional.layer_norm(embedded, embedded.shape[1:], eps=1e-6)


def rows_of(dataset: StoredDataset, items: Features) -> list[int]:
    """Which rows of the item table these are; in this log no two have the same features."""
    table = {tuple(features): row for row, features in enumerate(dataset.item_table.indices.tolist())}
    return [table[tuple(features)] for features in items.indices.tolist()]


def test_the_family_of_lime_can_start_from_items() -> None:
    assert set(STARTING) == {"lime-mha", "lime-xor", "lime-hstu", "isab", "pma"}


def test_items_are_drawn_by_the_seed_among_candidates_of_the_train_part(dataset: StoredDataset) -> None:
    loader = RequestLoader(dataset, Part.TRAIN, batch_requests=1, max_history=1)
    trained = set(dataset.column("events/item")[loader.candidate_rows(loader.requests)].tolist())
    first, again, other = (
        rows_of(dataset, started(dataset, "lime-mha", seed, links=4, link_start="items")[1]) for seed in (1, 1, 2)
    )
    assert set(first) | set(other) <= trained
    assert first == again != other
    assert len(set(first)) == len(first) == 16 * 4
    every = rows_of(dataset, started(dataset, "lime-mha", links=32, link_start="items")[1])
    assert set(every) == trained, "as many as there are"


@pytest.mark.parametrize("name", STARTING)
def test_links_start_as_items_that_differ(dataset: StoredDataset, name: str) -> None:
    """Nothing is drawn for it, no attribute is forgotten, and all else of the ranker stays what it was."""
    plain = built(dataset, name)
    before = torch.get_rng_state()
    ranker, items = started(dataset, name, link_start="items", unknown_rate=0.5)
    assert torch.equal(torch.get_rng_state(), before)
    assert ranker.training
    assert ranker.item_tower.training
    for key, value in ranker.state_dict().items():
        assert torch.equal(value, plain.state_dict()[key]) == (not key.endswith("s.embeddings")), key
    links, rows = links_of(ranker)().detach(), vectors(ranker, items)
    nearest = torch.cdist(links, rows).min(1)
    assert float(nearest.values.max()) < 0.01
    assert len(set(nearest.indices.tolist())) == len(links) == 32
    apart = torch.pdist(links).min()
    assert apart > 1.2 * torch.pdist(rows[: len(links)]).min(), "no two of them are as near as some of the first items"


@pytest.mark.parametrize("name", ["lime-mha", "lime-xor"])
def test_all_links_of_a_selection_and_both_levels_start_as_items(dataset: StoredDataset, name: str) -> None:
    ranker, items = started(dataset, name, link_start="items", links=4, select_from=9, link_scale=0.5)
    links = links_of(ranker)().detach()
    assert len(links) == 9
    assert float(torch.cdist(links / 0.5, vectors(ranker, items)).min(1).values.max()) < 0.01
    ranker, items = started(dataset, name, link_start="items", links=6, coarse_links=3)
    links = links_of(ranker)().detach()
    nearest = torch.cdist(links, vectors(ranker, items)).min(1)
    assert float(nearest.values.max()) < 0.01
    assert len(set(nearest.indices.tolist())) == 9
    distances = torch.cdist(links[:3], links[3:])
    assert distances[0].argmin() == 0, "the first child of the first parent is the nearest of all"
    assert distances[2, 5] >= distances[2, 2], "and children come in the order of their distance"


def test_others_see_nothing(dataset: StoredDataset) -> None:
    """Rankers as they are by default ask for no items: what they start as and draw later is what it was."""
    for name in RANKERS:
        ranker, plain = built(dataset, name), built(dataset, name)
        assert ranker.start_items == 0
        before = torch.get_rng_state()
        start_from_items(ranker, dataset, np.zeros(0, dtype=np.int64), 1)
        assert torch.equal(torch.get_rng_state(), before)
        assert all(map(torch.equal, ranker.state_dict().values(), plain.state_dict().values()))


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many items LIME rankers were shown, one number each time."""
    counts: list[int] = []
    begin = LimeRanker.start_from

    def counted(ranker: LimeRanker, items: Features) -> None:
        counts.append(len(items))
        begin(ranker, items)

    monkeypatch.setattr(LimeRanker, "start_from", counted)
    return counts


def test_a_log_with_fewer_items_than_links_trains_resumes_and_serves(tmp_path: Path, seen: list[int]) -> None:
    """Five items, eight links, values without their norm: shown once, and served as trained."""
    log = simulate(SimulatedConfig(users=40, items=5, topics=2, sessions=6, slots=3, seed=4))
    dataset = prepare(log, tmp_path / "dataset")
    model = {"name": "lime-mha", "links": 8, "link_start": "items", "value_norm": False}
    training = TrainConfig(epochs=1, batch_requests=32, max_history=10, checkpoint_steps=2)
    config = RunConfig(dataset=dataset.path, model=model, train=training)
    with pytest.raises(Killed):
        train(config, tmp_path / "run", KilledAt(3))
    assert seen == [5]
    run = resume(tmp_path / "run", QUIET, test=False)
    assert seen == [5], "a training that goes on is shown nothing"
    ranker = run.ranker(dataset)
    assert isinstance(ranker, LimeRanker)
    assert len(ranker.links.embeddings.detach().unique(dim=0)) == 8

    bundle = export(ranker, run.config.model, dataset, tmp_path / "store", max_history=10, row_type="fp32")
    assert bundle.manifest.model["value_norm"] is False
    engine = Engine.open(tmp_path / "store", bundle.manifest.id)
    for row in range(1, 9):
        user_id = str(dataset.user_ids[row])
        ranking = engine.answer(user_id)
        inputs, _ = engine.user_inputs(user_id, {})
        with torch.inference_mode():
            user, state = ranker.encode_user(inputs), ranker.encode_items(dataset.item_table)
            offsets = torch.tensor([0, len(dataset.item_table)])
            expected = ranker.score(ranker.interact(user, state, offsets), state, user, offsets).sigmoid().numpy()
        rows = engine.bundle.item_ids.rows_of(ranking.item_ids)
        np.testing.assert_allclose(ranking.probabilities, expected[rows], atol=1e-5)
