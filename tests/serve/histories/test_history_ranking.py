"""Stored events in rankings: they equal a bundle exported from a log that has them, in whatever order they came."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from numpy.typing import NDArray

from limerank.api.dataset import Dataset
from limerank.data.raw.log import RawLog
from limerank.errors import UsageError
from limerank.models import build_ranker
from limerank.serve.bundles.bundle import Bundle
from limerank.serve.bundles.offline import export
from limerank.serve.bundles.store import BundleStore
from limerank.serve.engine import Engine
from limerank.serve.explanation.explain import explain
from limerank.serve.histories.past import Event, Happened
from limerank.serve.histories.store import HistoryStore
from limerank.serve.overlay.items import Item

CLOSE = 1e-5
MINUTE = 60_000
CANDIDATES = [f"i{number}" for number in range(190)]
STATES = 2**24


@pytest.fixture
def own_store(store: Path, tmp_path: Path) -> Path:
    """The session's store, to be changed."""
    return Path(shutil.copytree(store, tmp_path / "store"))


def bundle_of(name: str, dataset: Dataset, store: Path) -> Bundle:
    """A bundle of chance weights, the same for every dataset, with exact rows."""
    torch.manual_seed(5)
    options = {"name": name, "encoding": "age"} if name == "lime-mha" else {"name": name}
    ranker = build_ranker(options, dataset.encoders.space(), len(dataset.schema.tasks), "test")
    with torch.no_grad():  # starting weights are small: probabilities must differ by more than rounding
        for parameter in ranker.parameters():
            parameter.mul_(1.4)
    return export(ranker.eval(), options, dataset, store, max_history=20, row_type="fp32")


@pytest.fixture(scope="module")
def full(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Bundles by ranker, of a log that has all events."""
    folder = tmp_path_factory.mktemp("full")
    return cache(lambda name: bundle_of(name, dataset, folder / name))


def raw_history(bundle: Bundle, raw_log: RawLog, user: str) -> list[Happened]:
    """The events that a bundle holds of a user, as they were in the log; oldest first."""
    row = bundle.user_ids.row_of(user)
    columns = bundle.histories
    begin, end = columns["offsets"][row : row + 2].tolist()
    items = bundle.item_ids.names_of(columns["item"][begin:end].tolist())
    times = columns["times"][begin:end].tolist()
    frame = raw_log.collect_events().filter(pl.col("user_id") == user)
    found: list[Happened] = []
    for item, time in zip(items, times, strict=True):
        line = frame.filter((pl.col("item_id") == item) & (pl.col("time") == time)).row(0, named=True)
        features = {"clicked": line["click"], "watched_fraction": line["watched_fraction"]}
        found.append(Happened(user, item, time, features))
    return found


def without(bundle: Bundle, user: str, positions: list[int]) -> Bundle:
    """The bundle as it would be had the log lacked some events of a user, by their position in the history."""
    row = bundle.user_ids.row_of(user)
    offsets = bundle.histories["offsets"].clone()
    gone = [int(offsets[row]) + position for position in positions]
    kept = [number for number in range(int(offsets[-1])) if number not in gone]
    offsets[row + 1 :] -= len(gone)
    others = {name: column[kept] for name, column in bundle.histories.items() if name != "offsets"}
    return replace(bundle, histories={**others, "offsets": offsets})


def probabilities(engine: Engine, user: str, **request: Any) -> NDArray[np.float32]:
    ranking = engine.answer(user, CANDIDATES, **request)
    return ranking.probabilities[np.argsort(ranking.item_ids)]


@pytest.mark.parametrize("states", [0, STATES], ids=["computed", "kept"])
@pytest.mark.parametrize("name", ["lime-mha", "lime-xor"])
def test_stored_events_equal_a_log_that_has_them(
    name: str, states: int, full: Any, raw_log: RawLog, tmp_path: Path
) -> None:
    """The newest, late ones, or all of them: stored one by one in any order, each ranking is that of the whole log."""
    bundle = full(name)
    chance = np.random.default_rng(7)
    with Engine(bundle, states=states, histories=None) as whole:
        for user, positions in (("u1", [18, 19]), ("u2", [3, 9, 10]), ("u3", list(range(20))), ("u4", [0, 19])):
            history = raw_history(bundle, raw_log, user)
            positions = [position for position in positions if position < len(history)]
            histories = HistoryStore.open(tmp_path / f"{user}")
            with Engine(without(bundle, user, positions), states=states, histories=histories) as engine:
                expected = probabilities(whole, user)
                assert np.abs(probabilities(engine, user) - expected).max() > CLOSE
                missing = list(chance.permutation(positions))
                while missing:
                    engine.add_events([history[missing.pop()]])
                    lacking = without(bundle, user, sorted(missing))
                    with Engine(lacking, states=0, histories=None, threads=1) as rebuilt:
                        wanted = probabilities(rebuilt, user)
                    for _ in range(2):  # computed or grown, then kept
                        np.testing.assert_allclose(probabilities(engine, user), wanted, atol=CLOSE)
                np.testing.assert_allclose(probabilities(engine, user), expected, atol=CLOSE)
                # and on the bundle that has them by now they are the same events, not second ones
                with Engine(bundle, states=states, histories=histories) as newer:
                    np.testing.assert_allclose(probabilities(newer, user), expected, atol=CLOSE)


def test_a_new_bundle_of_a_longer_log_answers_as_the_old_one_with_stored_events(
    raw_log: RawLog, tmp_path: Path
) -> None:
    """The real way round: prepare, export, events come in, they are appended to the dataset, and it is exported."""
    events = raw_log.collect_events().sort("time", maintain_order=True)
    bound = int(events["time"].quantile(0.95) or 0)
    early, late = events.filter(pl.col("time") <= bound), events.filter(pl.col("time") > bound)
    out = tmp_path / "dataset"
    shorter = Dataset.build(early, items=raw_log.items, users=raw_log.users, schema=raw_log.schema, out=out, quiet=True)
    store = tmp_path / "store"
    old = bundle_of("lime-mha", shorter, store)
    longer = shorter.append(late, items=raw_log.items, users=raw_log.users, quiet=True)
    new = bundle_of("lime-mha", longer, store)
    stored = [
        Happened(
            line["user_id"],
            line["item_id"],
            line["time"],
            {"clicked": line["click"], "watched_fraction": line["watched_fraction"]},
        )
        for line in late.iter_rows(named=True)
    ]
    users = sorted({one.user_id for one in stored})[:12]
    with Engine(old) as before, Engine(new) as after, Engine(new, histories=None) as alone:
        assert before.add_events(stored).accepted == len(stored)
        for user in users:
            expected = probabilities(alone, user)
            np.testing.assert_allclose(probabilities(before, user, now=new.manifest.watermark), expected, atol=CLOSE)
            np.testing.assert_array_equal(probabilities(after, user), expected)


def later(bundle: Bundle, count: int, user: str = "u1", *, first: int = 0) -> list[Happened]:
    """Events after the bundle's watermark, a minute apart."""
    watermark = bundle.manifest.watermark or 0
    return [
        Happened(user, f"i{7 * n % 190}", watermark + (n + 1) * MINUTE, {"clicked": n % 2, "watched_fraction": 0.3})
        for n in range(first, first + count)
    ]


def as_given(events: list[Happened]) -> list[Event]:
    return [Event(one.item_id, one.features, one.time) for one in events]


def newest_time(engine: Engine, user: str) -> int:
    row = engine.bundle.user_ids.row_of(user)
    return int(engine.bundle.histories["times"][int(engine.bundle.histories["offsets"][row + 1]) - 1])


def test_an_event_is_part_of_the_next_ranking(own_store: Path) -> None:
    """What was stored counts as if it had been given with the request; what is given follows it."""
    with Engine.open(own_store) as engine:
        events = later(engine.bundle, 4)
        before = engine.answer("u1")
        assert not (own_store / "histories").exists()
        given = engine.answer("u1", events=as_given(events))
        added = engine.add_events(events[:3])
        stored = engine.answer("u1")
        assert (added.accepted, added.duplicates) == (3, 0)
        assert before.item_ids != stored.item_ids
        assert engine.answer("u1", events=as_given(events[3:])).item_ids == given.item_ids
        assert (before.history_as_of, stored.history_as_of) == (newest_time(engine, "u1"), events[2].time)
        assert given.history_as_of == events[3].time
        assert {"queue", "history", "user"} <= {span.stage for span in stored.timeline}
        engine.answer("u1")
        assert engine.add_events(events[:3]).duplicates == 3
        assert engine.answer("u1").user_state == "cached"
        with Engine.open(own_store) as other:
            assert other.answer("u1").item_ids == engine.answer("u1").item_ids


def test_a_history_that_is_given_is_all_that_is_read(own_store: Path) -> None:
    """Neither the bundle's events nor stored ones count, and no state is kept of it."""
    with Engine.open(own_store) as engine:
        events = later(engine.bundle, 3)
        engine.add_events(later(engine.bundle, 2, first=9))
        assert engine.states is not None
        kept = engine.states.counts().users
        for history in ([], as_given(events)):
            told = engine.answer("nobody", events=history)
            stateless = engine.answer("nobody-else", history=history)
            assert stateless.item_ids == told.item_ids
            assert stateless.history_used == len(history)
            assert engine.answer("u1", history=history).history_used == len(history)
        seen = engine.answer("u1", history=as_given(events), exclude_seen=True)
        assert seen.seen_items == len({one.item_id for one in events})
        assert engine.encode_user("u1", history=as_given(events)).history_used == 3
        assert engine.recommend("u1", 3, history=as_given(events)).history_used == 3
        assert engine.states.counts().users == kept + 1  # of the one whose events are not a history of its own
        explained = explain(engine, "u1", ["i3"], history=as_given(events))
        assert explained.history_used == 3


def test_stored_events_count_as_seen_and_make_a_user_known(own_store: Path) -> None:
    with Engine.open(own_store) as engine:
        assert not engine.answer("someone new").known_user
        engine.add_events(later(engine.bundle, 2, "someone new"))
        ranking = engine.answer("someone new", exclude_seen=True)
        assert ranking.known_user
        assert ranking.seen_items == 2
        assert not {"i0", "i7"} & set(ranking.item_ids)
        assert not {"i0", "i7"} & set(engine.recommend("someone new", 50, retriever="popular").item_ids)
        engine.add_events([replace(one, in_history=False) for one in later(engine.bundle, 1, "only watched")])
        assert not engine.answer("only watched").known_user


def test_erasure_hides_what_bundles_know(own_store: Path) -> None:
    """The user is as unknown as somebody who never came, in this engine and in others; then events count again."""
    with Engine.open(own_store) as engine, Engine.open(own_store) as other:
        engine.add_events(later(engine.bundle, 3))
        stranger, known = probabilities(engine, "a stranger"), probabilities(other, "u1")
        assert np.abs(known - stranger).max() > CLOSE
        erased = engine.erase_user("u1")
        assert erased.events == 3
        for one in (engine, other):
            np.testing.assert_array_equal(probabilities(one, "u1"), stranger)
            ranking = one.answer("u1", exclude_seen=True)
            assert (ranking.known_user, ranking.history_used, ranking.seen_items) == (False, 0, 0)
            assert one.answer("u1", history=[]).known_user is False
        assert engine.states is not None
        old, new = later(engine.bundle, 1)[0], replace(later(engine.bundle, 1)[0], time=erased.erased_at + 1)
        assert engine.add_events([old]).forgotten == 1
        assert engine.add_events([new]).accepted == 1
        ranking = other.answer("u1", exclude_seen=True)
        assert (ranking.known_user, ranking.history_used, ranking.seen_items) == (True, 1, 1)
        # a bundle that was made later, of a log that goes on after the erasure, may speak again of what came after it
        cut = newest_time(engine, "u2")
        engine.histories.erase("u2", cut - 1)  # type: ignore[union-attr]
        manifest = engine.bundle.manifest.model_copy(update={"created_at": "2999-01-01T00:00:00+00:00"})
        with Engine(replace(engine.bundle, manifest=manifest)) as newer:
            ranking = newer.answer("u2", exclude_seen=True)
            times = raw_times(engine.bundle, "u2")
            assert ranking.known_user
            assert ranking.history_used == sum(time > cut - 1 for time in times)
            assert 0 < ranking.seen_items <= ranking.history_used


def raw_times(bundle: Bundle, user: str) -> list[int]:
    row = bundle.user_ids.row_of(user)
    begin, end = bundle.histories["offsets"][row : row + 2].tolist()
    times: list[int] = bundle.histories["times"][begin:end].tolist()
    return times


def test_names_and_values_are_checked_on_the_way_in_and_forgiven_on_the_way_out(own_store: Path) -> None:
    """Another bundle may have stored what this one cannot read: unknown there, and no ranking fails."""
    with Engine.open(own_store) as engine:
        (good,) = later(engine.bundle, 1)
        for features, said in (
            ({"clickd": 1}, r"events\[1\].features: no event feature 'clickd'; did you mean 'clicked'\?"),
            ({"watched_fraction": "much"}, r"events\[1\].features.watched_fraction: .*not a number"),
        ):
            with pytest.raises(UsageError, match=said):
                engine.add_events([good, replace(good, features=features)])
        with pytest.raises(UsageError, match=r"events\[0\].time: .* is not in milliseconds since 1970"):
            engine.add_events([replace(good, time=good.time // 1000)])
        assert engine.histories is not None
        assert not engine.histories.of("u1").events
        unfit = replace(good, features={"of another bundle": [1, {"x": None}], "watched_fraction": "much"})
        engine.histories.add([unfit, replace(unfit, features={"watched_fraction": 10**400}, event_id="huge")])
        plain = engine.answer("u2", events=[Event(good.item_id, {}, good.time)] * 2)
        engine.histories.add([replace(unfit, user_id="u2"), replace(unfit, user_id="u2", event_id="again")])
        assert engine.answer("u2").item_ids == plain.item_ids
        assert engine.answer("u1").history_used > 0


def test_items_that_were_upserted_since_are_read_in_stored_events(own_store: Path) -> None:
    """An item that the bundle does not know counts as soon as the overlay does, in histories and as seen."""
    with Engine.open(own_store) as engine:
        features = {"topic": "t1", "creator": "c1", "duration_s": 30.0, "tags": []}
        (event,) = later(engine.bundle, 1)
        engine.add_events([replace(event, item_id="brand new")])
        unknown = probabilities(engine, "u1")
        engine.upsert([Item("brand new", features)])
        assert np.abs(probabilities(engine, "u1") - unknown).max() > 0
        given = probabilities(engine, "u1", history=None, events=[])
        with Engine(engine.bundle, histories=None) as alone:
            told = probabilities(alone, "u1", events=[Event("brand new", event.features, event.time)])
        np.testing.assert_allclose(given, told, atol=CLOSE)
        assert "brand new" in engine.answer("u1").item_ids
        assert "brand new" not in engine.answer("u1", exclude_seen=True).item_ids


def test_explanations_read_the_same_history(own_store: Path) -> None:
    """Stored and late events are named where they stand, and the logit is that of the ranking."""
    with Engine.open(own_store) as engine:
        times = raw_times(engine.bundle, "u1")
        (event,) = later(engine.bundle, 1)
        engine.add_events([replace(event, item_id="not in the catalog"), replace(event, time=times[-1] - 1)])
        told = explain(engine, "u1", ["i3", "i9"], top_events=100)
        ranking = engine.answer("u1", ["i3", "i9"])
        logits = {one.item: one.logit for one in told.candidates}
        for item, row in zip(ranking.item_ids, ranking.probabilities, strict=True):
            assert 1 / (1 + np.exp(-logits[item])) == pytest.approx(float(row[0]), abs=1e-3)  # rows in fp16
        reads = {read.position: read for read in told.events[0]}
        assert reads[1].item == "not in the catalog"
        behind = 1 + times.count(times[-1])  # a session's events have one time
        assert {reads[position].time for position in range(2, behind + 1)} == {times[-1]}
        assert (reads[behind + 1].item, reads[behind + 1].time) == (event.item_id, times[-1] - 1)


def test_a_log_without_times_has_one_order(own_store: Path) -> None:
    """The bundle's events, then the stored ones in their own order of time."""
    bundle = BundleStore.open(own_store).open_bundle()
    manifest = bundle.manifest.model_copy(update={"watermark": None})
    histories = {name: column for name, column in bundle.histories.items() if name != "times"}
    untimed = replace(bundle, manifest=manifest, histories=histories)
    events = later(bundle, 3)
    with Engine(untimed) as engine, Engine(untimed, histories=None) as alone:
        engine.add_events([events[2], events[0], replace(events[1], time=5)])
        told = alone.answer("u1", events=as_given([events[1], events[0], events[2]]))
        assert engine.answer("u1").item_ids == told.item_ids
        assert engine.answer("u1").history_as_of == events[2].time


def test_one_event_more_is_appended_to_a_long_kept_state(own_store: Path) -> None:
    """A thousand stored events are encoded once, and the next one does not make the state be computed again."""
    manifest = BundleStore.open(own_store).open_bundle().manifest
    bundle = BundleStore.open(own_store).open_bundle()
    long = replace(bundle, manifest=manifest.model_copy(update={"max_history": 4000}))
    with Engine(long) as engine:
        engine.add_events(later(long, 1000))
        first = engine.answer("u1")
        encoded = engine.stages.requests.merged("u1", engine.histories.of("u1")).encoded  # type: ignore[union-attr]
        engine.add_events(later(long, 1, first=1000))
        second = engine.answer("u1")
        assert (first.user_state, second.user_state) == ("computed", "appended")
        assert second.history_used == first.history_used + 1
        now_encoded = engine.stages.requests.merged("u1", engine.histories.of("u1")).encoded  # type: ignore[union-attr]
        assert now_encoded.given[:1000] == encoded.given
        with Engine(long, states=0) as anew:
            np.testing.assert_allclose(probabilities(engine, "u1"), probabilities(anew, "u1"), atol=CLOSE)
