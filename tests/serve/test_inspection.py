"""What people look at: beginnings of ids among many, events left out, links side by side, two bundles compared."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from exporting import exported
from hostile_store import BUSY, EVENTS, LONG, WICKED, hostile_store
from numpy.typing import NDArray

from limerank.api.run import Run
from limerank.data.store.dataset import StoredDataset
from limerank.errors import UsageError
from limerank.serve.bundles.ids import Texts
from limerank.serve.bundles.store import BundleStore
from limerank.serve.deadline import Deadline
from limerank.serve.engine import Engine
from limerank.serve.histories.past import Event, Happened, LeftOut
from limerank.serve.histories.store import HistoryStore
from limerank.serve.inspection.comparing import compare, length_name, sampled_users
from limerank.serve.inspection.finding import Indexes, find_items, find_users
from limerank.serve.inspection.link_map import DEAD, DUPLICATE, effective_rank, link_map
from limerank.serve.inspection.prefixes import PrefixIndex
from limerank.serve.inspection.user_events import user_events
from limerank.serve.overlay.items import Item

CLICK = {"clicked": 1, "watched_fraction": 0.5}


def texts_of(chance: random.Random) -> list[str]:
    """Texts that share long beginnings, of lengths around a multiple of eight, with zeros, and none alike."""
    lengths = [0, 1, 7, 8, 9, 16, 17, 40]
    made = ["".join(chance.choice("ab\0é") for _ in range(chance.choice(lengths))) for _ in range(60)]
    return [*dict.fromkeys(["", *made])]


@pytest.mark.parametrize("seed", range(20))
def test_beginnings_are_found_as_by_looking_at_everything(seed: int) -> None:
    texts = texts_of(random.Random(seed))
    index = PrefixIndex(Texts.of(texts), np.arange(1, len(texts)))
    for prefix in ("", "a", "aa", "b\0", "é", "abababab", "zz", *random.Random(seed).sample(texts, 5)):
        within = index.found(prefix)
        found = [texts[row] for row in index.order[within.start : within.stop].tolist()]
        assert found == sorted((text for text in texts[1:] if text.startswith(prefix)), key=str.encode)


def test_equal_texts_keep_the_order_of_their_rows() -> None:
    """What items are called is not always their own."""
    index = PrefixIndex(Texts.of(["same", "other", "same", "same"]), np.array([3, 1, 0]))
    assert index.order.tolist() == [1, 0, 3]


@pytest.fixture(scope="module")
def looked_at(runs: dict[str, Run], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of its own, for events and items of these tests."""
    path = tmp_path_factory.mktemp("looked_at") / "store"
    runs["lime-mha"].publish(path, quiet=True)
    return path


def test_users_of_the_bundle_and_of_stored_events_are_found_together(looked_at: Path) -> None:
    """In the order of bytes, each once, and not when they were erased."""
    with Engine.open(looked_at) as engine, HistoryStore.open(looked_at) as histories:
        watermark = engine.bundle.manifest.watermark or 0
        new = [Happened(user, "i1", watermark + 1, CLICK) for user in ("u5a", "u5", "ü5", "u500")]
        histories.add([*new, Happened("u51", "i2", watermark + 1, CLICK)])
        indexes = Indexes()
        everyone = engine.bundle.user_ids.names_of(range(1, len(engine.bundle.user_ids)))
        wanted = sorted({name for name in [*everyone, "u5a", "u500"] if name.startswith("u5")}, key=str.encode)
        found, more = find_users(engine, histories, indexes, "u5", 100)
        assert ([one.id for one in found], more) == (wanted, False)
        by_id = {one.id: one for one in found}
        assert (by_id["u5a"].events_in_bundle, by_id["u5a"].events_stored) == (0, 1)
        assert by_id["u51"].events_in_bundle > 0
        assert by_id["u51"].events_stored == 1
        few, more = find_users(engine, histories, indexes, "u5", 3)
        assert ([one.id for one in few], more) == (wanted[:3], True)
        assert [one.id for one in find_users(engine, histories, indexes, "ü", 5)[0]] == ["ü5"]
        assert find_users(engine, histories, indexes, "nobody", 5) == ([], False)
        for user in ("u5a", "u52"):
            histories.erase(user)
        gone = [one.id for one in find_users(engine, histories, indexes, "u5", 100)[0]]
        assert gone == [name for name in wanted if name not in ("u5a", "u52")]


def test_stored_users_are_looked_up_in_an_index(looked_at: Path) -> None:
    """Not by reading all of them; a file that was made without the index gets it from whoever writes next."""
    with HistoryStore.open(looked_at) as histories:
        histories.add([Happened("indexed", "i1", 1_700_000_000_000, CLICK)])
    plan = "EXPLAIN QUERY PLAN SELECT * FROM users WHERE user_id >= ? AND user_id < ? ORDER BY user_id LIMIT 5"
    for remove in (False, True):
        with closing(sqlite3.connect(looked_at / "histories/events.sqlite")) as connection:
            if remove:
                connection.execute("DROP INDEX by_user_id")
                assert "by_user_id" not in str(connection.execute(plan, (b"a", b"b")).fetchall())
        with HistoryStore.open(looked_at) as histories:
            histories.add([Happened("indexed", "i1", 1_700_000_000_001 + remove, CLICK)])
            assert [one.user_id for one in histories.beginning_with("indexe", 5)] == ["indexed"]
        with closing(sqlite3.connect(looked_at / "histories/events.sqlite")) as connection:
            assert "by_user_id" in str(connection.execute(plan, (b"a", b"b")).fetchall())


def test_items_are_found_by_id_and_by_what_they_are_called(looked_at: Path) -> None:
    """Upserted ones too, deleted ones not; markup and right-to-left text are texts like any others."""
    with Engine.open(looked_at) as engine:
        features = {one.name: None for one in engine.bundle.encoders.item if one.name != "item_id"}
        named = {"new-1": "<b>Matrix</b>", "new-2": "שלום עולם", "i7": "The Matrix", "new-3": "MATRIX again"}
        engine.upsert([Item(item, dict(features), display) for item, display in named.items()])
        engine.delete(["i10"])
        indexes = Indexes()
        everything = engine.bundle.item_ids.names_of(range(1, len(engine.bundle.item_ids)))
        wanted = sorted((one for one in everything if one.startswith("i1") and one != "i10"), key=str.encode)
        found, more = find_items(engine.catalog, indexes, "i1", 500)
        assert ([one.id for one in found], more) == (wanted, False)
        assert {one.matched for one in found} == {"id"}
        assert [one.id for one in find_items(engine.catalog, indexes, "new-", 9)[0]] == ["new-1", "new-2", "new-3"]
        called = find_items(engine.catalog, indexes, "matrix", 9)[0]
        assert [(one.id, one.display, one.matched) for one in called] == [("new-3", "MATRIX again", "display")]
        assert [one.id for one in find_items(engine.catalog, indexes, "<B>", 9)[0]] == ["new-1"]
        assert [one.id for one in find_items(engine.catalog, indexes, "שלום", 9)[0]] == ["new-2"]
        assert find_items(engine.catalog, indexes, "i", 2)[1]


@pytest.fixture(scope="module")
def wicked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose items have names, which mean harm."""
    return hostile_store(tmp_path_factory.mktemp("wicked"), 500)


def test_names_of_a_bundle_are_found_in_any_case(wicked: Path) -> None:
    """Also those of 100,000 characters; ids come first, and whoever has both is found once."""
    with Engine.open(wicked) as engine:
        indexes = Indexes()
        for name in WICKED:
            found, more = find_items(engine.catalog, indexes, name, 5)
            assert (found[0].id, found[0].matched) == (name, "id")
            assert [one.matched for one in found[1:]] == ["display"] * 4
            assert all((one.display or "").startswith(name) for one in found[1:])
            assert len({one.id for one in found}) == 5
            assert more
        folded = find_items(engine.catalog, indexes, WICKED[0].upper(), 100)[0]
        named = [
            one for one in range(500) if one % len(WICKED) == 0 and one != len(WICKED)
        ]  # that one has the long name
        assert len(folded) == len(named)
        (long,) = find_items(engine.catalog, indexes, LONG[:200].upper(), 5)[0]
        assert long.display is not None
        assert long.display.startswith(LONG)
        engine.delete([long.id])
        assert find_items(engine.catalog, indexes, "long l", 5) == ([], False)


def test_a_long_history_is_shown_to_its_oldest_event(wicked: Path) -> None:
    with Engine.open(wicked) as engine, HistoryStore.open(wicked) as histories:
        page = user_events(engine, histories, BUSY, EVENTS - 5, 10)
        assert (page.total, page.read, len(page.events)) == (EVENTS, EVENTS, 5)
        assert [one.item_id for one in page.events] == list(WICKED[4::-1])
        assert all(one.display for one in page.events)


def scored(engine: Engine, user: str, **asked: object) -> NDArray[np.float32]:
    return engine.score(engine.encode_user(user, **asked))  # type: ignore[arg-type]


def test_a_ranking_without_some_events_is_that_of_who_never_had_them(looked_at: Path) -> None:
    """The same as a history given in the request with all others, whether they were exported or stored since."""
    with Engine.open(looked_at) as engine, HistoryStore.open(looked_at) as histories:
        watermark = engine.bundle.manifest.watermark or 0
        histories.add([Happened("u9", item, watermark + 1000 + n, CLICK) for n, item in enumerate(["i1", "i2", "i1"])])
        merged = engine.requests.whole_history("u9", histories.of("u9"))
        items = engine.requests.item_names(
            engine.requests.ask("u9", {}, past=histories.of("u9")),
            histories.of("u9"),
            [],
            lambda row: engine.bundle.item_ids.names_of([row])[0],
        )
        assert items[-3:] == ["i1", "i2", "i1"]
        assert merged.times is not None
        times: list[int] = merged.times.tolist()[-len(items) :]
        everything = scored(engine, "u9")
        # without all that was stored it is what the bundle alone says
        with Engine.open(looked_at, histories=None) as alone:
            left = LeftOut([("i1", watermark + 1000), ("i2", watermark + 1001), ("i1", watermark + 1002)])
            np.testing.assert_allclose(scored(engine, "u9", left_out=left), scored(alone, "u9"), atol=1e-6)
            until = LeftOut(until=watermark + 1000)
            np.testing.assert_allclose(scored(engine, "u9", left_out=until), scored(alone, "u9"), atol=1e-6)
        # an event of the bundle: as if somebody had given all the others
        oldest = items[0]
        dropped = scored(engine, "u9", left_out=LeftOut([(oldest, times[0])]))
        assert not np.allclose(dropped, everything, atol=1e-6)
        answer = engine.answer("u9", limit=5, left_out=LeftOut([(oldest, times[0]), ("not there", None)]))
        assert (answer.left_out, answer.user_state) == (1, "computed")
        assert engine.answer("u9", limit=5).left_out == 0
        nothing = engine.answer("u9", limit=5, left_out=LeftOut(until=1))
        assert (nothing.history_used, nothing.left_out) == (0, len(merged.items))
        np.testing.assert_allclose(
            scored(engine, "u9", left_out=LeftOut(until=1)), scored(engine, "u9", history=[]), atol=1e-6
        )
        # nothing was written, and nothing of it is kept
        np.testing.assert_array_equal(scored(engine, "u9"), everything)


def test_what_is_left_out_was_not_seen(looked_at: Path) -> None:
    """Its item may be recommended again, unless another event has it."""
    with Engine.open(looked_at) as engine, HistoryStore.open(looked_at) as histories:
        watermark = engine.bundle.manifest.watermark or 0
        histories.add([Happened("fresh", item, watermark + 5 + n, CLICK) for n, item in enumerate(["i3", "i4", "i3"])])
        catalog = len(engine.catalog)
        left = {
            "nothing": None,
            "one of two": LeftOut([("i3", watermark + 5)]),
            "both": LeftOut([("i3", None)]),
            "all": LeftOut(until=watermark),
        }
        counts = {
            name: engine.answer("fresh", limit=catalog, exclude_seen=True, left_out=one).seen_items
            for name, one in left.items()
        }
        assert counts == {"nothing": 2, "one of two": 2, "both": 1, "all": 0}
        given = [Event("i3", CLICK)]
        seen = engine.answer("fresh", limit=1, exclude_seen=True, left_out=LeftOut([("i3", None)]), events=given)
        assert seen.seen_items == 2


def test_a_users_events_are_shown_by_pages(looked_at: Path) -> None:
    """Newest first; what is not read says why; pages together are everything, once."""
    with Engine.open(looked_at) as engine, HistoryStore.open(looked_at) as histories:
        watermark, longest = engine.bundle.manifest.watermark or 0, engine.bundle.manifest.max_history
        shown = Happened("u11", "i8", watermark + 50, CLICK, type="impression", in_history=False)
        histories.add([shown, Happened("u11", "i9", watermark + 60, CLICK, event_id="mine")])
        before = user_events(engine, histories, "u11", 0, 10_000)
        bundled = before.events[-1]
        histories.add([Happened("u11", bundled.item_id, bundled.time or 0, CLICK)])  # the bundle has it
        whole = user_events(engine, histories, "u11", 0, 10_000)
        assert whole.total == before.total + 1 == len(whole.events)
        assert [one.why for one in whole.events if one.stored and one.position is None].count("not in the history") == 1
        assert sum(one.position is not None for one in whole.events) == whole.read == min(longest, whole.total - 2)
        assert (whole.events[0].item_id, whole.events[0].position) == ("i9", 1)
        paged = [
            one for first in range(0, whole.total, 4) for one in user_events(engine, histories, "u11", first, 4).events
        ]
        assert paged == whole.events
        positions = [one.position for one in whole.events if one.position is not None]
        assert positions == list(range(1, whole.read + 1))
        used = engine.answer("u11", limit=1).history_used
        assert used == whole.read
        assert user_events(engine, histories, "nobody", 0, 5).known is False


def test_links_that_are_alike_or_do_nothing_are_named(dataset: StoredDataset, tmp_path: Path) -> None:
    """A ranker whose fourth link is its second, to the bit, and whose weights are known."""
    bundle = exported("lime-mha", dataset, tmp_path / "store")
    found = link_map(bundle)
    rows, _ = bundle.rows.behind(1).widened()
    heads, links = found.heads, len(found.links)
    weights = rows.double().unflatten(1, (heads, links))
    centered = (weights - weights.mean(0)).flatten(0, 1)
    for one in found.links:
        assert one.spread == pytest.approx(float(centered[:, one.profile.link].square().mean().sqrt()), rel=1e-6)
    values = torch.linalg.svdvals(centered)
    np.testing.assert_allclose(found.weights_spectrum, (values / values[0]).numpy(), atol=1e-5)
    assert found.items == found.items_compared == bundle.manifest.items - 1
    assert not any(one.dead or one.duplicate_of is not None for one in found.links)
    with torch.no_grad():
        ranker = bundle.ranker
        ranker.links.embeddings[3] = ranker.links.embeddings[1]  # type: ignore[union-attr, operator, index]
        for start, stop, block, _ in list(bundle.rows.blocks(None, 4096)):
            assert start == 0
            state = ranker.encode_items(bundle.item_table.first(bundle.manifest.items))
            bundle.rows.rows.copy_(state.rows[:stop])
            assert block.shape[0] >= stop
    again = link_map(bundle)
    assert [one.duplicate_of for one in again.links].count(None) == links - 1
    assert (again.links[3].duplicate_of, again.links[3].similar_to) == (1, 1)
    assert again.links[3].similarity == pytest.approx(1.0)
    shaped = bundle.rows.rows.view(len(bundle.rows), heads, links)
    shaped[:, :, 5] = 0.25
    dead = [one.profile.link for one in link_map(bundle).links if one.dead]
    assert dead == [5]
    assert DEAD < 1 < 1 + DUPLICATE
    assert effective_rank([1.0, 1.0, 1.0]) == pytest.approx(3.0)
    assert effective_rank([0.0, 0.0]) == 1.0


def test_two_bundles_are_compared_user_by_user(runs: dict[str, Run], tmp_path: Path) -> None:
    """A bundle with itself does not differ; with another, the answer is what both rank."""
    store = tmp_path / "store"
    first = runs["lime-mha"].publish(store, quiet=True).manifest.id
    second = runs["lime-xor"].publish(store, quiet=True).manifest.id
    opened = BundleStore.open(store)
    ample = {"sample": 12, "seed": 3, "limit": 100, "request": lambda engine: {}, "deadline": Deadline(600_000)}
    with Engine.open(opened, first) as old, Engine.open(opened, second) as new:
        same = compare(old, old, None, by=None, **ample)  # type: ignore[arg-type]
        assert (len(same.compared), same.asked) == (12, 12)
        overall = same.overall()
        assert (overall.overlap_10, overall.tau, overall.moved, overall.same_first) == (1.0, 1.0, 0.0, 1.0)
        assert overall.score_shift == 0.0
        found = compare(old, new, None, by=None, **ample)  # type: ignore[arg-type]
        assert [one.user_id for one in found.compared] == sampled_users(old, new, 12, 3)
        assert sampled_users(old, new, 12, 3) != sampled_users(old, new, 12, 4)
        gone = found.compared[0].user_id
        with HistoryStore.open(store) as histories:
            histories.erase(gone)
        assert gone not in sampled_users(old, new, 12, 3)
        assert sum(one.users for one in found.segments if one.feature == "history") == 12
        changed = found.most_changed()
        assert [one.change.overlap_10 for one in changed] == sorted(one.change.overlap_10 or 0 for one in changed)
        user = changed[0].user_id
        alone = compare(old, new, [user], by=None, **ample)  # type: ignore[arg-type]
        ranked = [engine.answer(user, limit=100) for engine in (old, new)]
        listed = alone.items or []
        for position, ranking in enumerate(ranked):
            by_position = {
                (one.old_position, one.new_position)[position]: (one.id, (one.old_score, one.new_score)[position])
                for one in listed
            }
            for number, item in enumerate(ranking.item_ids, 1):
                assert by_position[number][0] == item
                assert by_position[number][1] == pytest.approx(float(ranking.probabilities[number - 1, 0]), abs=1e-5)
        hurried = compare(old, new, None, by=None, **{**ample, "deadline": Deadline(1e-6)})  # type: ignore[arg-type]
        assert (hurried.asked, len(hurried.compared)) == (12, 1)
        with pytest.raises(UsageError, match="by: no user feature 'shoe'"):
            compare(old, new, None, by="shoe", **ample)  # type: ignore[arg-type]
        names = [one.name for one in new.bundle.encoders.user]
        if names:
            by_feature = compare(old, new, None, by=names[0], **ample)  # type: ignore[arg-type]
            assert sum(one.users for one in by_feature.segments if one.feature == names[0]) == 12


def test_lengths_of_histories_have_names() -> None:
    assert [length_name(count) for count in (0, 1, 10, 11, 100, 101, 1000, 1001)] == [
        *("0", "1-10", "1-10", "11-100", "11-100", "101-1000", "101-1000", "more than 1000")
    ]
