"""The promise people switch for: what was trained is what is served."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from limerank.api.run import Run
from limerank.data.batches import RequestLoader
from limerank.data.raw.log import RawLog
from limerank.data.store.dataset import StoredDataset
from limerank.models import build_ranker
from limerank.schema import Role
from limerank.serve.bundles.offline import compute_rows
from limerank.serve.engine import Engine
from limerank.serve.requests import Event
from limerank.serve.scorer import choose_path, score_candidates
from limerank.splits import Part

NAMES = ["lime-mha", "mha", "ttsn"]


@pytest.mark.parametrize("name", NAMES)
def test_served_scores_equal_trained_scores(runs: dict[str, Run], dataset: StoredDataset, name: str) -> None:
    """forward on a batch of requests == item rows in fp32 and the engine's scorer, request by request, to 1e-5."""
    run = runs[name]
    ranker = run.ranker(dataset)
    rows = compute_rows(ranker, dataset.item_table, "fp32")
    loader = RequestLoader(dataset, Part.TEST, batch_requests=16, max_history=run.config.train.max_history)
    items = dataset.column("events/item")
    with torch.inference_mode():
        for requests in loader.plan():
            trained = ranker(loader.assemble(requests)).sigmoid()
            served = []
            for request in requests:
                one = np.array([request])
                index = torch.from_numpy(items[loader.candidate_rows(one)].astype(np.int64))
                served.append(score_candidates(ranker, ranker.encode_user(loader.user_inputs(one)), rows, index))
            torch.testing.assert_close(torch.cat(served).sigmoid(), trained, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_an_fp32_bundle_ranks_like_the_model(
    runs: dict[str, Run], dataset: StoredDataset, name: str, tmp_path: Path
) -> None:
    """The whole way through files: publish, open, rank the catalog; compared with the model on the same history."""
    runs[name].publish(tmp_path / "store", rows="fp32", quiet=True)
    engine = Engine.open(tmp_path / "store")
    user_row = int(dataset.column("requests/user")[-1])
    user_id = dataset.user_ids[user_row]
    ranking = engine.answer(user_id, context={"device": "phone", "hour": 20})
    ranker = runs[name].ranker(dataset)
    inputs, known = engine.user_inputs(user_id, {"device": "phone", "hour": 20})
    assert known
    with torch.inference_mode():
        user = ranker.encode_user(inputs)
        state = ranker.encode_items(dataset.item_table)
        offsets = torch.tensor([0, len(dataset.item_table)])
        expected = ranker.score(ranker.interact(user, state, offsets), state, user, offsets).sigmoid().numpy()
    rows = engine.bundle.item_ids.rows_of(ranking.item_ids)
    np.testing.assert_allclose(ranking.probabilities, expected[rows], atol=1e-5)
    assert (np.diff(ranking.probabilities[:, 0]) <= 0).all()


def test_the_engine_reads_what_training_would_read(raw_log: RawLog, dataset: StoredDataset, engine: Engine) -> None:
    """Index for index: users, context, items and event features of a request made now equal those from the log."""
    offsets = dataset.column("requests/user_offsets").astype(np.int64)
    kept = engine.bundle.manifest.max_history
    user_of_request = dataset.column("requests/user")
    start = dataset.column("requests/start")
    seen = 0
    for request in range(dataset.manifest.counts["requests"]):
        user_row = int(user_of_request[request])
        if start[request + 1] != offsets[user_row + 1]:
            continue  # only a user's last request can be compared with "now"
        seen += 1
        last = (
            raw_log.collect_events()
            .filter(pl.col("user_id") == dataset.user_ids[user_row])
            .sort("time")
            .row(-1, named=True)
        )
        context = {name: last[name] for name in ("device", "hour")}
        served, known = engine.user_inputs(dataset.user_ids[user_row], context)
        trained = RequestLoader(dataset, Part.TEST, batch_requests=1, max_history=kept).user_inputs(np.array([request]))
        assert known
        assert torch.equal(served.users.indices, trained.users.indices)
        assert torch.equal(served.context.indices, trained.context.indices)
        rows = np.arange(max(offsets[user_row], offsets[user_row + 1] - kept), offsets[user_row + 1])
        items = torch.from_numpy(dataset.column("events/item")[rows].astype(np.int64))
        history = served.history
        assert torch.equal(history.items.take(history.item_of_event).indices, dataset.item_table.indices[items])
        for place, column in enumerate(dataset.role_columns(Role.EVENT)):
            assert history.events.indices[:, place].tolist() == column[rows].tolist()
    assert seen == dataset.manifest.counts["users"]


def test_new_events_are_encoded_as_the_log_encodes_them(
    raw_log: RawLog, dataset: StoredDataset, engine: Engine
) -> None:
    """The raw events of a user, passed one by one to an unknown user, give that user's stored history."""
    user_id = dataset.user_ids[5]
    rows = (
        raw_log.collect_events().filter(pl.col("user_id") == user_id).sort("time", "request_id", "item_id").to_dicts()
    )
    events = [
        Event(row["item_id"], {"clicked": row["click"], "watched_fraction": row["watched_fraction"]}) for row in rows
    ]
    replayed, _ = engine.user_inputs("nobody", {}, events)
    stored, _ = engine.user_inputs(user_id, {})
    assert torch.equal(replayed.history.events.indices, stored.history.events.indices)
    assert torch.equal(replayed.history.item_of_event, stored.history.item_of_event)


def test_the_user_stage_can_run_apart_from_scoring(engine: Engine) -> None:
    """The recipe of docs/how-to/serve-a-ranking.md, in another thread, gives what rank gives."""
    ranking = engine.answer("u2", context={"device": "tv"})
    with ThreadPoolExecutor(1) as pool:
        request = pool.submit(engine.encode_user, "u2", context={"device": "tv"}).result()
    np.testing.assert_allclose(engine.score(request, ranking.item_ids), ranking.probabilities, atol=1e-5)
    assert engine.score(request).shape == (len(ranking.item_ids), 2)


@pytest.mark.parametrize(("head", "expected"), [(8, "folded"), (512, "plain")])
def test_the_cost_formula_chooses_the_path(dataset: StoredDataset, head: int, expected: str) -> None:
    """A narrow head folds, a wide one does not; few candidates never pay for folding; a skyline has no choice."""
    ranker = build_ranker({"name": "lime-mha", "head": [head]}, dataset.encoders.space(), 2, "test")
    assert choose_path(ranker, 10_000) == expected
    assert choose_path(ranker, 1) == "plain"
    assert choose_path(build_ranker({"name": "mha"}, dataset.encoders.space(), 2, "test"), 10_000) == "uncached"


@pytest.mark.parametrize("path", ["folded", "plain"])
def test_every_path_gives_the_same_scores(runs: dict[str, Run], dataset: StoredDataset, path: str) -> None:
    ranker = runs["lime-mha"].ranker(dataset)
    rows = compute_rows(ranker, dataset.item_table, "fp32")
    loader = RequestLoader(dataset, Part.TEST, batch_requests=1, max_history=20)
    with torch.inference_mode():
        user = ranker.encode_user(loader.user_inputs(loader.requests[:1]))
        expected = score_candidates(ranker, user, rows)
        got = score_candidates(ranker, user, rows, path=path)  # type: ignore[arg-type]
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_scores_do_not_depend_on_how_many_candidates_share_the_request(engine: Engine) -> None:
    everything = engine.answer("u1")
    scores = dict(zip(everything.item_ids, everything.probabilities[:, 0], strict=True))
    for count in (1, 2, 7, 150):
        chosen = everything.item_ids[:count]
        few = engine.answer("u1", chosen)
        np.testing.assert_allclose(few.probabilities[:, 0], [scores[item] for item in few.item_ids], atol=1e-5)
