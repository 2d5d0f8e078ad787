"""Every kind of feature and both kinds of history, from raw rows to a ranking: served scores are trained scores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from rich_log import ITEMS, USERS, rich_log

from limerank.api.run import Run
from limerank.config import RunConfig, TrainConfig
from limerank.data.batches import RequestLoader
from limerank.data.build.prepare import prepare
from limerank.data.raw.log import EventFile, RawLog
from limerank.data.store.dataset import StoredDataset
from limerank.models import RANKERS
from limerank.progress import Progress
from limerank.schema import Feature, Histories, Kind, Role, Schema, Task
from limerank.serve.engine import Engine
from limerank.splits import ByColumn, Part
from limerank.training.trainer import train


def ready_log() -> RawLog:
    """Ready-made histories of which only two item features are known, as in TaobaoAd; no times."""
    generator = np.random.default_rng(2)
    rows = 400
    item = generator.integers(0, ITEMS, rows)
    lengths = generator.integers(0, 9, rows)
    events = pl.DataFrame(
        {
            "user_id": generator.integers(0, USERS, rows),
            "item_id": item,
            "cate": item % 4,
            "brand": item % 7,
            "price": item * 1.5,
            "click": generator.integers(0, 2, rows),
            "pid": generator.choice(["top", "side"], rows),
            "part": ["train"] * 300 + ["test"] * 100,
            "cates": ["^".join(map(str, generator.integers(0, 5, n))) for n in lengths],
            "brands": ["^".join(map(str, generator.integers(0, 8, n))) for n in lengths],
            "did": ["^".join(generator.choice(["see", "buy"], n)) for n in lengths],
        }
    )
    return RawLog(
        schema=Schema(
            time=None,
            features=(
                Feature(name="item_id", role=Role.ITEM),
                Feature(name="cate", role=Role.ITEM),
                Feature(name="brand", role=Role.ITEM),
                Feature(name="price", role=Role.ITEM, kind=Kind.CONTINUOUS, buckets=4),
                Feature(name="act", role=Role.EVENT),
                Feature(name="pid", role=Role.CONTEXT),
            ),
            tasks=(Task(name="click"),),
            split=ByColumn(column="part"),
            max_history=5,
            histories=Histories(items={"cate": "cates", "brand": "brands"}, events={"act": "did"}),
        ),
        events=(EventFile.of_frame(events, "rows"),),
        items=None,
        users=None,
        origin={"source": "test"},
    )


LOGS = {"rich": rich_log, "ready-made": ready_log}


@pytest.fixture(params=sorted(LOGS), scope="module")
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> StoredDataset:
    return prepare(LOGS[request.param](), tmp_path_factory.mktemp("kinds") / "d")


@pytest.mark.parametrize("name", sorted(RANKERS))
def test_served_scores_are_trained_scores(dataset: StoredDataset, name: str, tmp_path: Path) -> None:
    """For the users whose stored history is the one the bundle carries: forward equals the engine, item by item."""
    config = RunConfig(dataset=dataset.path, model={"name": name}, train=TrainConfig(epochs=1, max_history=50), seed=1)
    run = Run.of(train(config, tmp_path / "run", Progress(quiet=True)))
    engine = Engine(run.publish(tmp_path / "store", rows="fp32", quiet=True))
    ranker = run.ranker(dataset)
    loader = RequestLoader(dataset, Part.TEST, batch_requests=1, max_history=50)
    context = dataset.encoders.of(Role.CONTEXT)[0].name
    value = {"query": "q5", "pid": "side"}[context]
    users = [user for user in dataset.user_ids.to_list() if user][:4]
    rows, offsets = loader.history.rows_of_users(50)
    for user in users:
        served, known = engine.user_inputs(user, {context: value})
        assert known
        row = dataset.user_ids.to_list().index(user)
        stored = rows.take(loader.history.item)[offsets[row] : offsets[row + 1]]
        table = loader.history.table.take(torch.from_numpy(stored.astype(np.int64)))
        history = served.history.items.take(served.history.item_of_event)
        assert torch.equal(history.indices, table.indices)
        assert len(history) <= 50
        with torch.inference_mode():
            state = ranker.encode_user(served)
            items = ranker.encode_items(dataset.item_table)
            all_of_them = torch.tensor([0, len(dataset.item_table)])
            logits = ranker.score(ranker.interact(state, items, all_of_them), items, state, all_of_them)
        ranking = engine.answer(user, context={context: value})
        places = engine.bundle.item_ids.rows_of(ranking.item_ids)
        np.testing.assert_allclose(ranking.probabilities, logits.sigmoid().numpy()[places], atol=1e-5)
        assert len(ranking.item_ids) == ITEMS


def test_requests_in_the_log_score_like_requests_now(tmp_path: Path) -> None:
    """A request whose ready-made history the bundle holds: what evaluation computes is what the engine answers."""
    dataset = prepare(ready_log(), tmp_path / "d")
    config = RunConfig(dataset=dataset.path, model={"name": "lime-mha"}, train=TrainConfig(epochs=1), seed=1)
    run = Run.of(train(config, tmp_path / "run", Progress(quiet=True)))
    ranker = run.ranker(dataset)
    engine = Engine(run.publish(tmp_path / "store", rows="fp32", quiet=True))
    loader = RequestLoader(dataset, Part.TEST, batch_requests=1, max_history=100)
    rows, offsets = loader.history.rows_of_users(100)
    (context,) = dataset.encoders.of(Role.CONTEXT)
    compared = 0
    for request in loader.requests:
        number = np.array([request])
        user = int(dataset.column("requests/user")[request])
        mine, _ = loader.history.rows(number, 100)
        if mine.rows.tolist() != rows.rows[offsets[user] : offsets[user + 1]].tolist():
            continue
        batch = loader.assemble(number)
        with torch.inference_mode():
            expected = ranker(batch).sigmoid().numpy()
        ids = [dataset.item_ids[int(i)] for i in dataset.column("events/item")[loader.candidate_rows(number)]]
        place = context.decode(int(batch.inputs.context.indices[0, 0]))
        state = engine.encode_user(dataset.user_ids[user], context={context.name: place})
        np.testing.assert_allclose(engine.score(state, ids), expected, atol=1e-5)
        compared += 1
    assert compared > 3


def test_vectors_and_hashes_reach_the_ranker(tmp_path: Path) -> None:
    dataset = prepare(rich_log(), tmp_path / "d")
    kinds = {feature.name: feature for feature in dataset.encoders.space().item}
    assert kinds["image"].size == 4
    assert kinds["title"].size == 18
    image = dataset.item_table.vectors[0]
    assert image.shape == (ITEMS + 1, 4)
    assert (image[0] == 0).all()
    raw = rich_log()
    assert raw.items is not None
    expected = raw.items.with_columns(pl.col("item_id").cast(pl.String)).sort("item_id")["image"].to_numpy()
    np.testing.assert_array_equal(image[1:].numpy(), expected)
    taste = dataset.user_table.vectors[0][dataset.user_ids.to_list().index("3")]
    assert taste.tolist() == [1, 0, -1]
    assert (dataset.user_table.vectors[0][dataset.user_ids.to_list().index(str(USERS - 1))] == 0).all()
