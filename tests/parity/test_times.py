"""Times: what a ranker reads of when things happened is the same in training and in serving."""

from __future__ import annotations

import dataclasses
import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from calling import answer, refusal
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from limerank import files
from limerank.api.run import Run
from limerank.batch import UserInputs
from limerank.config import RunConfig, TrainConfig
from limerank.data.batches import RequestLoader
from limerank.data.build.append import append
from limerank.data.build.prepare import prepare
from limerank.data.raw.log import EventFile, RawLog
from limerank.data.sources.simulated import DAY_MS, FIRST_MIDNIGHT_MS, SimulatedConfig, simulate
from limerank.data.store.dataset import StoredDataset
from limerank.errors import BundleError, DataError, UsageError
from limerank.models import Ranker, build_ranker
from limerank.nn.encodings import HistoryEncoding
from limerank.nn.relative_bias import RelativeBiasTables
from limerank.progress import Progress
from limerank.schema import Feature, Histories, Role, Schema, Task, TimeUnit
from limerank.serve.bundles.bundle import Bundle
from limerank.serve.bundles.offline import export
from limerank.serve.bundles.store import BundleStore
from limerank.serve.engine import Engine
from limerank.serve.requests import Event
from limerank.splits import ByColumn, Part
from limerank.training.trainer import train

QUIET = Progress(quiet=True)
KEPT = 20
DAYS = SimulatedConfig(users=25, items=80, topics=4, sessions=8, slots=6, seed=3)
EARLIER_DAYS = 6
MODELS: dict[str, dict[str, Any]] = {
    "calendar": {"name": "lime-mha", "encoding": "calendar"},
    "age": {"name": "lime-mha", "encoding": "age"},
    "age, skyline": {"name": "mha", "encoding": "age"},
    "position": {"name": "lime-mha", "encoding": "position"},
    "recent_position": {"name": "mha", "encoding": "recent_position"},
    "recency": {"name": "lime-mha", "recency": True},
    "age, relative": {"name": "hstu", "relative_bias": "position-time", "output_norm": "group", "positions": 7},
    "age, relative, softmax": {"name": "hstu", "relative_bias": "time", "activation": "softmax", "query_width": 8},
    "distance": {"name": "hstu", "relative_bias": "position", "scale": 1.0, "output_norm": "none"},
}


@dataclass(frozen=True)
class Asked:
    """A request of the log, as somebody would have sent it to an engine that knows only the earlier days."""

    number: int
    user_id: str
    context: dict[str, Any]
    events: list[Event]
    now: int


@dataclass(frozen=True)
class World:
    """The log, its earlier days as they were before the others were appended, and last requests made since."""

    raw: pl.DataFrame
    dataset: StoredDataset
    earlier: StoredDataset
    requests: list[Asked]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder, raw = tmp_path_factory.mktemp("times"), simulate(DAYS)
    events = raw.collect_events().sort("user_id", "time", "request_id", "item_id")
    midnight = FIRST_MIDNIGHT_MS + EARLIER_DAYS * DAY_MS
    later = pl.col("time") >= midnight
    earlier = prepare(with_events(raw, events.filter(~later)), folder / "earlier")
    shutil.copytree(earlier.path, folder / "whole")
    dataset = append(folder / "whole", with_events(raw, events.filter(later)))
    user, start = dataset.column("requests/user"), dataset.column("requests/start")
    requests = []
    for user_row in range(1, dataset.manifest.table_rows["users"]):
        number = max(np.flatnonzero(user == user_row), key=lambda one: int(dataset.column("events/time")[start[one]]))
        user_id = dataset.user_ids[user_row]
        own = events.filter(pl.col("user_id") == user_id)
        last = own.row(-1, named=True)
        if last["time"] < midnight:
            continue  # the bundle's history would hold the request itself
        since = own.filter(later & (pl.col("time") < last["time"])).to_dicts()
        requests.append(
            Asked(
                int(number),
                user_id,
                {"device": last["device"], "hour": last["hour"]},
                [
                    Event(
                        one["item_id"],
                        {"clicked": one["click"], "watched_fraction": one["watched_fraction"]},
                        one["time"],
                    )
                    for one in since
                ],
                last["time"],
            )
        )
    assert sum(bool(one.events) for one in requests) > 10
    return World(events, dataset, earlier, requests)


def with_events(raw: RawLog, events: pl.DataFrame) -> RawLog:
    return replace(raw, events=(EventFile.of_frame(events, "events"),))


def untrained(model: dict[str, Any], dataset: StoredDataset) -> Ranker:
    """A ranker whose encodings are as large as its embeddings, so that a wrong row shows."""
    torch.manual_seed(0)
    ranker = build_ranker(model, dataset.encoders.space(), len(dataset.schema.tasks), "test").eval()
    for module in ranker.modules():
        if isinstance(module, HistoryEncoding | RelativeBiasTables):
            for table in module.parameters():
                torch.nn.init.normal_(table)
    return ranker


def engine_of(world: World, model: dict[str, Any], folder: Path) -> Engine:
    ranker = untrained(model, world.earlier)
    return Engine(export(ranker, model, world.earlier, folder / "store", max_history=KEPT, row_type="fp32"))


def loader_of(dataset: StoredDataset, *, with_times: bool = True) -> RequestLoader:
    return RequestLoader(dataset, Part.TEST, batch_requests=8, max_history=KEPT, with_times=with_times)


def asked_of(engine: Engine, one: Asked, now: int | None) -> UserInputs:
    inputs, known = engine.user_inputs(one.user_id, one.context, one.events, now)
    assert known
    return inputs


@pytest.mark.parametrize("name", MODELS)
def test_a_request_scores_the_same_in_training_and_in_serving(world: World, name: str, tmp_path: Path) -> None:
    """Last requests of users: one padded batch of the whole log, and the engine that knows only the earlier days,
    with what happened since and the request's own time.
    """
    engine = engine_of(world, MODELS[name], tmp_path)
    loader = loader_of(world.dataset)
    numbers = np.array([one.number for one in world.requests])
    with torch.inference_mode():
        trained = engine.ranker(loader.assemble(numbers)).sigmoid().numpy()
    items = world.dataset.column("events/item")
    served: list[NDArray[np.float32]] = []
    moved: list[NDArray[np.float32]] = []
    for one in world.requests:
        ids = [world.dataset.item_ids[int(item)] for item in items[loader.candidate_rows(np.array([one.number]))]]
        for now, scores in ((one.now, served), (one.now + 100 * DAY_MS, moved)):
            request = engine.encode_user(one.user_id, context=one.context, events=one.events, now=now)
            scores.append(engine.score(request, ids))
        ranking = engine.answer(one.user_id, ids, context=one.context, events=one.events, now=one.now)
        order = [ranking.item_ids.index(item) for item in ids]
        np.testing.assert_allclose(ranking.probabilities[order], served[-1], rtol=0, atol=1e-6)
    np.testing.assert_allclose(np.concatenate(served), trained, rtol=0, atol=1e-5)
    assert np.allclose(np.concatenate(moved), trained, rtol=0, atol=1e-5) == (not name.startswith("age"))


def test_the_engine_reads_the_times_that_training_reads(world: World, tmp_path: Path) -> None:
    """Index for index, for histories that are cut and histories that are not."""
    engine = engine_of(world, MODELS["age"], tmp_path)
    loader = loader_of(world.dataset)
    lengths = set()
    for one in world.requests:
        served, trained = asked_of(engine, one, one.now), loader.user_inputs(np.array([one.number]))
        for mine, theirs in ((served.times, trained.times), (served.history.times, trained.history.times)):
            assert mine is not None
            assert theirs is not None
            assert mine.dtype == theirs.dtype == torch.int64
            assert mine.tolist() == theirs.tolist()
        assert torch.equal(served.history.events.indices, trained.history.events.indices)
        lengths.add(served.history.item_of_event.shape[0])
    assert min(lengths) < KEPT == max(lengths)


def test_the_loader_reads_the_times_of_the_log(world: World) -> None:
    """Request by request against the raw rows: the last events strictly before it, and its own moment."""
    loader = loader_of(world.dataset)
    numbers = np.arange(world.dataset.manifest.counts["requests"])
    inputs = loader.user_inputs(numbers)
    assert inputs.times is not None
    assert inputs.history.times is not None
    by_user = {str(key[0]): group["time"] for key, group in world.raw.group_by("user_id")}
    bounds = inputs.history.offsets.tolist()
    users = world.dataset.column("requests/user")
    for place, moment in enumerate(inputs.times.tolist()):
        all_times = by_user[world.dataset.user_ids[int(users[place])]]
        assert moment in all_times
        before = all_times.filter(all_times < moment).sort().to_list()[-KEPT:]
        assert inputs.history.times[bounds[place] : bounds[place + 1]].tolist() == before


def test_a_loader_reads_no_times_unless_asked(world: World) -> None:
    inputs = loader_of(world.dataset, with_times=False).user_inputs(np.arange(5))
    assert inputs.times is None
    assert inputs.history.times is None


@pytest.mark.parametrize("unit", TimeUnit)
def test_times_are_milliseconds_whatever_the_unit_of_the_log(unit: TimeUnit, tmp_path: Path) -> None:
    moments = [1_769_860_800_123 + 86_400_001 * place for place in range(30)]
    times: dict[TimeUnit, list[Any]] = {
        TimeUnit.SECONDS: [moment / 1000 for moment in moments],
        TimeUnit.MILLISECONDS: moments,
        TimeUnit.MICROSECONDS: [1_000 * moment + 7 for moment in moments],
        TimeUnit.NANOSECONDS: [1_000_000 * moment + 7 for moment in moments],
        TimeUnit.ISO: [str(np.datetime64(moment, "ms")) + "Z" for moment in moments],
    }
    events = pl.DataFrame({"user_id": "u", "item_id": ["a", "b", "c"] * 10, "time": times[unit], "click": [0, 1] * 15})
    schema = Schema(time_unit=unit, features=(Feature(name="item_id", role=Role.ITEM),), tasks=(Task(name="click"),))
    raw = RawLog(schema, (EventFile.of_frame(events, "events"),), items=None, users=None, origin={})
    inputs = loader_of(prepare(raw, tmp_path / "d")).user_inputs(np.array([3, 29]))
    assert inputs.times is not None
    assert inputs.history.times is not None
    assert inputs.times.tolist() == [moments[3], moments[29]]
    assert inputs.history.times.tolist() == moments[:3] + moments[29 - KEPT : 29]


def test_now_is_the_end_of_the_log_or_the_newest_event_unless_given(world: World, tmp_path: Path) -> None:
    engine = engine_of(world, MODELS["age"], tmp_path)
    end = engine.bundle.manifest.watermark
    assert end is not None
    assert end == world.earlier.manifest.last_time
    stored = asked_of(engine, replace(world.requests[0], events=[]), None)
    assert stored.times is not None
    assert stored.times.tolist() == [end]
    for events, now, moment, newest in (
        (
            [Event("i1", time=end + 9), Event("i2", time=end + 5), Event("i3")],
            None,
            end + 9,
            [end + 9, end + 5, end + 9],
        ),
        ([Event("i1", time=end - 9), Event("i2")], None, end, [end - 9, end]),
        ([Event("i1", time=end + 9), Event("i2")], end + 3, end + 3, [end + 9, end + 3]),
    ):
        for user in (world.requests[0].user_id, "nobody"):
            inputs, _ = engine.user_inputs(user, {}, events, now)
            assert inputs.times is not None
            assert inputs.history.times is not None
            assert inputs.times.tolist() == [moment]
            assert inputs.history.times[-len(newest) :].tolist() == newest  # in the order given, whatever they say
    nobody, _ = engine.user_inputs("nobody", {})
    assert nobody.history.times is not None
    assert nobody.history.times.shape == (0,)


def test_times_in_another_unit_are_refused(world: World, tmp_path: Path) -> None:
    """Seconds, microseconds and negative times, of the request and of an event."""
    engine = engine_of(world, MODELS["age"], tmp_path)
    now = world.requests[0].now
    for wrong in (now // 1000, now * 1000, now * 1_000_000, -1):
        with pytest.raises(UsageError, match=f"time {wrong}: is not in milliseconds since 1970"):
            engine.answer("u1", now=wrong)
        with pytest.raises(UsageError, match=f"time {wrong}: is not in milliseconds since 1970"):
            engine.answer("u1", events=[Event("i1", time=wrong)], now=now)


def test_a_bundle_whose_times_do_not_fit_is_refused(world: World, tmp_path: Path) -> None:
    path = engine_of(world, MODELS["age"], tmp_path).bundle.path
    histories = path / "histories.safetensors"
    tensors = load_file(histories)
    assert tensors["times"].dtype == torch.int64
    for damaged, reason in (
        ({**tensors, "times": tensors["times"][:-1].clone()}, "'times' has"),
        (
            {name: value for name, value in tensors.items() if name != "item"},
            "should hold .'events', 'item'",
        ),
    ):
        save_file(damaged, histories)
        manifest = json.loads((path / "manifest.json").read_text())
        for record in manifest["files"]:
            if record["path"] == histories.name:
                record["bytes"], record["sha256"] = histories.stat().st_size, files.sha256_of_file(histories)
        (path / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(BundleError, match=f"histories.safetensors: .*{reason}"):
            Bundle.open(path)


def test_the_command_takes_times_as_text_or_milliseconds(world: World, tmp_path: Path) -> None:
    """ISO 8601 with and without a zone, and milliseconds, mean the same; what is no time is refused in one line."""
    engine = engine_of(world, MODELS["age"], tmp_path)
    store = tmp_path / "store"
    BundleStore(store).activate(engine.bundle.manifest.id)
    moment, earlier = 1_769_860_800_000, 1_769_857_200_000
    expected = engine.answer("u1", ["i1", "i2"], events=[Event("i3", {"clicked": 1}, earlier)], now=moment)
    shown = dict(zip(expected.item_ids, expected.probabilities[:, 0], strict=True))
    for now, time in (
        ("2026-01-31T12:00:00Z", "2026-01-31T11:00:00Z"),
        ("2026-01-31T12:00:00", "2026-01-31 11:00"),
        ("2026-01-31T13:30:00+01:30", str(earlier)),
        (str(moment), "2026-01-31T11:00:00.000Z"),
    ):
        asked = ("rank", store, "--user", "u1", "--items", "i1,i2", "--now", now)
        ranked = answer(*asked, "--event", f"item=i3,clicked=1,time={time}")
        assert {one["id"]: one["click"] for one in ranked["items"]} == pytest.approx(shown, abs=1e-6)
    later = answer(
        "rank", store, "--user", "u1", "--items", "i1,i2", "--now", "2027-01-31", "--event", "item=i3,clicked=1"
    )
    assert {one["id"]: one["click"] for one in later["items"]} != pytest.approx(shown, abs=1e-6)
    for wrong in ("yesterday", "12:00", "-5", "1e12", "", "9" * 5000):
        message = refusal(2, "rank", store, "--user", "u1", "--now", wrong)
        assert f"--now {wrong}: '{wrong}' is not a time; write 2026-01-31T12:00:00Z" in message
        message = refusal(2, "rank", store, "--user", "u1", "--event", f"item=i3,time={wrong}")
        assert f"'{wrong}' is not a time" in message
    assert "is not in milliseconds" in refusal(2, "rank", store, "--user", "u1", "--now", "20260131")


@pytest.fixture(scope="module", params=["time", None])
def ready_made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> StoredDataset:
    """Ready-made histories, in a log with times of its requests and in one without."""
    generator, rows = np.random.default_rng(0), 90
    lengths = generator.integers(0, 6, rows)
    events = pl.DataFrame(
        {
            "user_id": generator.integers(0, 6, rows),
            "item_id": generator.integers(0, 9, rows),
            "time": 1_769_860_800_000 + 1000 * np.arange(rows),
            "click": generator.integers(0, 2, rows),
            "part": ["train"] * 60 + ["validation"] * 15 + ["test"] * 15,
            "seen": ["^".join(map(str, generator.integers(0, 9, length))) for length in lengths],
        }
    )
    schema = Schema(
        time=request.param,
        features=(Feature(name="item_id", role=Role.ITEM),),
        tasks=(Task(name="click"),),
        split=ByColumn(column="part"),
        histories=Histories(item_ids="seen"),
    )
    raw = RawLog(schema, (EventFile.of_frame(events, "events"),), items=None, users=None, origin={})
    return prepare(raw, tmp_path_factory.mktemp("ready") / "d")


def config_of(dataset: StoredDataset, **model: object) -> RunConfig:
    return RunConfig(dataset=dataset.path, model=model, train=TrainConfig(epochs=1, max_history=KEPT), seed=1)


def test_ready_made_histories_have_no_times(ready_made: StoredDataset) -> None:
    """Only their requests have, if the log says when they were."""
    inputs = loader_of(ready_made).user_inputs(np.array([0, 7, 8]))
    assert inputs.history.times is None
    if ready_made.schema.time is None:
        assert inputs.times is None
        return
    assert inputs.times is not None
    starts = ready_made.column("requests/start")[[0, 7, 8]]
    assert inputs.times.tolist() == ready_made.column("events/time")[starts].tolist()


@pytest.mark.parametrize("encoding", ["calendar", "age"])
def test_ready_made_histories_refuse_times_before_the_first_step(
    ready_made: StoredDataset, encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an error of one line, from Python and from the command, and no run is left behind."""
    steps: list[None] = []
    monkeypatch.setattr(torch.optim.Adam, "step", lambda self: steps.append(None))
    reason = f"key 'model.encoding': '{encoding}' needs the time of every event"
    with pytest.raises(DataError, match=reason):
        train(config_of(ready_made, name="lime-mha", encoding=encoding), tmp_path / "run", QUIET)
    config = tmp_path / "c.yaml"
    config.write_text(f"dataset: {ready_made.path}\nmodel: {{name: lime-mha, encoding: {encoding}}}\n")
    begun, message = refusal(3, "train", config, "--out", tmp_path / "run").splitlines()
    assert begun.startswith("training lime-mha")
    assert reason in message
    assert [path.name for path in tmp_path.iterdir()] == ["c.yaml"]
    assert not steps


@pytest.mark.parametrize("encoding", ["position", "recent_position"])
def test_ready_made_histories_have_positions(ready_made: StoredDataset, encoding: str, tmp_path: Path) -> None:
    """Trained and served; the moment of a request and of its events makes no difference."""
    run = Run.of(train(config_of(ready_made, name="lime-mha", encoding=encoding), tmp_path / "run", QUIET))
    engine = Engine(run.publish(tmp_path / "store", rows="fp32", quiet=True))
    assert set(engine.bundle.histories) == {"offsets", "item", "events"}
    now = 1_800_000_000_000
    inputs, _ = engine.user_inputs("1", {}, [Event("2", time=now)], now)
    assert inputs.history.times is None
    assert (inputs.times is None) == (ready_made.schema.time is None)
    plain = engine.answer("1", events=[Event("2")])
    timed = engine.answer("1", events=[Event("2", time=now)], now=now)
    assert plain.item_ids == timed.item_ids
    np.testing.assert_array_equal(plain.probabilities, timed.probabilities)
    ranker = run.ranker(ready_made)
    with torch.inference_mode():
        again = ranker.encode_user(dataclasses.replace(inputs, times=None))
        assert torch.equal(again.memory[0], ranker.encode_user(inputs).memory[0])
