"""Upserts and deletes: a bundle with its overlay answers like a bundle exported anew with those items."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from exporting import exported, with_items
from hypothesis import given, settings
from hypothesis import strategies as st
from rich_log import ITEMS, rich_log

from limerank.data.build.prepare import prepare
from limerank.data.store.dataset import StoredDataset
from limerank.errors import ConflictError, UsageError
from limerank.serve.bundles.offline import RowType
from limerank.serve.bundles.store import BundleStore
from limerank.serve.engine import Engine
from limerank.serve.explanation.explain import explain
from limerank.serve.overlay.fold import fold
from limerank.serve.overlay.items import Item
from limerank.serve.overlay.live import LiveCatalog
from limerank.serve.requests import Event

NEW = [f"new{number}" for number in range(5)]
USERS = ["3", "7", "nobody"]
EVENTS = [Event(item, {"clicked": 1}) for item in (NEW[0], "4", NEW[1], "8")]
KINDS = pl.Schema(
    {"item_id": pl.String(), "title": pl.String(), "tags": pl.List(pl.String), "image": pl.List(pl.Float32)}
)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> StoredDataset:
    return prepare(rich_log(), tmp_path_factory.mktemp("rich") / "d")


@pytest.fixture(scope="module")
def original(dataset: StoredDataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store without changes."""
    store = tmp_path_factory.mktemp("original") / "store"
    exported("lime-mha", dataset, store)
    return store


@pytest.fixture
def store(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "store"))


class World:
    """What should be true: raw features by id, in row order, and what was deleted."""

    def __init__(self, dataset: StoredDataset) -> None:
        raw = rich_log().items
        assert raw is not None
        by_id = {str(row.pop("item_id")): row for row in raw.to_dicts()}
        self.dataset = dataset
        self.items: dict[str, dict[str, Any]] = {item: by_id[item] for item in dataset.item_ids.to_list()[1:]}
        self.deleted: set[str] = set()

    def upsert(self, item: str, features: dict[str, Any]) -> None:
        self.items[item] = features
        self.deleted.discard(item)

    @property
    def catalog(self) -> list[str]:
        return [item for item in self.items if item not in self.deleted]

    def frame(self) -> pl.DataFrame:
        rows = [{"item_id": item, **features} for item, features in self.items.items()]
        return pl.DataFrame(rows, schema=KINDS)

    def exported_anew(self, store: Path, name: str = "lime-mha", row_type: RowType = "fp32") -> Engine:
        return Engine(exported(name, with_items(self.dataset, self.frame()), store, row_type))


def features(number: int, *, image: bool = True) -> dict[str, Any]:
    """Features of every kind, drawn by a number: known and unknown words, empty and missing values among them."""
    generator = np.random.default_rng(number)
    return {
        "title": [f"title {number}", None][number % 5 == 4],
        "tags": [f"t{one}" for one in generator.integers(0, 7, number % 4)] if number % 7 else None,
        "image": [float(x) for x in generator.normal(size=4).astype(np.float32)] if image else None,
    }


def assert_answers_alike(
    ours: Engine, anew: Engine, world: World, mentioned: Sequence[str], atol: float = 2e-6
) -> None:
    """Every item's probability, whole catalog and by name, with events of today on changed and deleted items."""
    for user in USERS:
        events = [*EVENTS, *(Event(item, {"clicked": 1, "searched": "q3"}) for item in mentioned)]
        expected = anew.answer(user, events=events)
        known = {i: p for i, p in zip(expected.item_ids, expected.probabilities, strict=True) if i in world.catalog}
        found = ours.answer(user, events=events)
        assert sorted(found.item_ids) == sorted(known)
        assert found.candidates == len(known)
        np.testing.assert_allclose(found.probabilities, [known[item] for item in found.item_ids], atol=atol)
        assert (np.diff(found.probabilities[:, 0]) <= 0).all()
        cut = ours.answer(user, events=events, limit=7)
        assert cut.item_ids == found.item_ids[:7]
        np.testing.assert_allclose(cut.probabilities, found.probabilities[:7], atol=atol)
        asked = [*mentioned, "0", "ghost", *NEW]
        named = ours.answer(user, asked, events=events)
        theirs = anew.score(anew.encode_user(user, events=events), [i if i in known else "ghost" for i in asked])
        wanted = dict(zip(asked, theirs, strict=True))
        np.testing.assert_allclose(named.probabilities, [wanted[item] for item in named.item_ids], atol=atol)
        assert named.unknown_items == [item for item in asked if item not in known]
        unseen = ours.answer(user, events=events, exclude_seen=True)
        seen = set(known) - set(anew.answer(user, events=events, exclude_seen=True).item_ids)
        assert unseen.item_ids == [item for item in found.item_ids if item not in seen]
        assert (unseen.candidates, unseen.seen_items) == (len(known) - len(seen), len(seen))
        scores = ours.score(ours.encode_user(user, events=events))
        np.testing.assert_allclose(scores, [known[item] for item in world.catalog], atol=atol)


ITEM_IDS = st.sampled_from([*NEW, *map(str, range(0, ITEMS, 4))])
STEPS: st.SearchStrategy[tuple[str, list[str], int]] = st.one_of(
    st.tuples(st.just("upsert"), st.lists(ITEM_IDS, min_size=1, max_size=4, unique=True), st.integers(0, 40)),
    st.tuples(st.just("delete"), st.lists(ITEM_IDS, min_size=1, max_size=3, unique=True), st.just(0)),
    st.tuples(st.just("ask"), st.just([]), st.just(0)),
)


@settings(max_examples=12)
@given(steps=st.lists(STEPS, min_size=1, max_size=8))
def test_any_order_of_changes_is_an_export_anew(
    dataset: StoredDataset, original: Path, steps: list[tuple[str, list[str], int]]
) -> None:
    """Of engines that were asked in between (and computed step by step) and of one that is opened at the end."""
    with tempfile.TemporaryDirectory() as folder:
        store = Path(shutil.copytree(original, Path(folder) / "store"))
        world, engine = World(dataset), Engine.open(store)
        for kind, items, number in steps:
            if kind == "upsert":
                drawn = {item: features(number + n) for n, item in enumerate(items)}
                change = engine.upsert([Item(item, drawn[item]) for item in items])
                assert change.added == [item for item in items if item not in world.catalog]
                for item in items:
                    world.upsert(item, drawn[item])
            elif kind == "delete":
                change = engine.delete(items)
                assert change.absent == [item for item in items if item not in world.catalog]
                world.deleted |= set(items) & set(world.items)
            else:
                for user in USERS:  # states of users are kept, and must not outlive what they were computed from
                    assert len(engine.answer(user, events=EVENTS).item_ids) == len(world.catalog)
        anew = world.exported_anew(Path(folder) / "anew")
        mentioned = list(dict.fromkeys(item for _, items, _ in steps for item in items))
        assert_answers_alike(engine, anew, world, mentioned)
        assert_answers_alike(Engine.open(store), anew, world, mentioned[:3])


def changed_world(dataset: StoredDataset, engine: Engine) -> World:
    """New, replaced and deleted items, one of them new and deleted again, one deleted and back again."""
    world = World(dataset)
    drawn = {item: features(number) for number, item in enumerate([*NEW, "4", "8", "12"])}
    engine.upsert([Item(item, one) for item, one in drawn.items()])
    engine.delete(["12", "0", NEW[3], "1"])
    engine.upsert([Item("1", features(33))])
    for item, one in drawn.items():
        world.upsert(item, one)
    world.deleted |= {"12", "0", NEW[3]}
    world.upsert("1", features(33))
    return world


CASES: list[tuple[str, RowType, float]] = [
    ("lime-mha", "fp16", 2e-3),
    ("lime-mha", "u8", 2e-2),
    ("lime-xor", "fp32", 2e-6),
    ("mha", "fp32", 2e-6),
    ("ttsn", "fp32", 2e-6),
    ("hstu", "fp32", 2e-6),
    ("inttower", "fp16", 2e-3),
]


@pytest.mark.parametrize(("name", "row_type", "atol"), CASES)
def test_every_kind_of_ranker_and_of_row(
    dataset: StoredDataset, tmp_path: Path, name: str, row_type: RowType, atol: float
) -> None:
    """Cached and uncached rankers; rows that are rounded may round otherwise by where an item stands in a block."""
    engine = Engine(exported(name, dataset, tmp_path / "store", row_type))
    world = changed_world(dataset, engine)
    anew = world.exported_anew(tmp_path / "anew", name, row_type)
    assert engine.catalog.overlay.rows is not None
    assert engine.catalog.overlay.rows.row_type == row_type
    assert_answers_alike(engine, anew, world, [*NEW, "4", "0"], atol)


def test_folding_is_an_export_anew(dataset: StoredDataset, store: Path, tmp_path: Path) -> None:
    """The folded bundle holds rows, ids and histories with the upserts; deletes go on hiding what they hid."""
    engine = Engine.open(store)
    world = changed_world(dataset, engine)
    before = engine.answer("3")
    bundle = fold(BundleStore(store))
    assert BundleStore(store).current_id() == engine.bundle.manifest.id
    BundleStore(store).make_active(bundle)
    folded = Engine.open(store)
    assert folded.answer("3").item_ids == before.item_ids
    assert (folded.answer("3").overlay_items, before.overlay_items) == (0, 7)
    assert bundle.manifest.items == 1 + ITEMS + len(NEW) - 1
    assert_answers_alike(folded, world.exported_anew(tmp_path / "anew"), world, [*NEW, "4", "0"])
    with pytest.raises(ConflictError, match="nothing to fold"):
        fold(BundleStore(store))
    live = LiveCatalog(bundle)
    assert set(live.forget()) == {"4", "8", "1", *NEW} - {NEW[3]}  # the bundle holds them now
    assert [status.source for status in live.changed()] == ["deleted"] * 3
    assert_answers_alike(folded, world.exported_anew(tmp_path / "again"), world, ["4"])


def test_a_new_name_is_not_forgotten_as_contained(tmp_path: Path) -> None:
    """The bundle has its features, but calls it otherwise; folded, it has both."""
    raw = rich_log()
    assert raw.items is not None
    named = raw.items.with_columns(name=pl.format("The {}", "item_id"))
    schema = raw.schema.model_copy(update={"display": "name"})
    dataset = prepare(type(raw)(**{**raw.__dict__, "items": named, "schema": schema}), tmp_path / "d")
    exported("lime-mha", dataset, tmp_path / "store")
    engine, world = Engine.open(tmp_path / "store"), World(dataset)
    engine.upsert([Item("4", world.items["4"], "A new name"), Item("5", world.items["5"], "The 5")])
    assert engine.live_catalog.forget() == ["5"]
    assert engine.rank("3", ["4", "5"]).sort("item_id")["display"].to_list() == ["A new name", "The 5"]
    engine.upsert([Item("6", features(2))])
    live = LiveCatalog(fold(BundleStore(tmp_path / "store")))
    assert set(live.forget()) == {"4", "6"}
    assert live.current().displays_of(["4", "5", "6"]) == ["A new name", "The 5", "The 6"]


def test_changes_outlive_the_bundle_they_were_made_for(dataset: StoredDataset, store: Path, tmp_path: Path) -> None:
    """A bundle of other weights encodes and computes them anew; what it holds already is served from it."""
    world = changed_world(dataset, Engine.open(store))
    exported("lime-xor", with_items(dataset, world.frame().head(ITEMS + 2)), store)
    engine = Engine.open(store)
    sources = {status.item_id: status.source for status in engine.item_status([NEW[0], NEW[2], "4", "0", "5"])}
    assert sources == {NEW[0]: "bundle", NEW[2]: "overlay", "4": "bundle", "0": "deleted", "5": "bundle"}
    assert_answers_alike(engine, world.exported_anew(tmp_path / "anew", "lime-xor"), world, [*NEW, "4"])
    BundleStore(store).roll_back()
    assert_answers_alike(Engine.open(store), world.exported_anew(tmp_path / "old"), world, [*NEW, "4"])


def test_equal_items_stand_in_the_order_of_their_first_upsert(store: Path) -> None:
    engine = Engine.open(store)
    engine.upsert([Item(item, features(1)) for item in ("b", "a", "c")])
    engine.delete(["b"])
    engine.upsert([Item("d", features(1))])
    engine.upsert([Item("b", features(1))])
    order = [item for item in engine.answer("3").item_ids if item in "abcd"]
    assert order == ["b", "a", "c", "d"]
    assert [item for item in Engine.open(store).answer("3").item_ids if item in "abcd"] == order
    assert engine.answer("3", list("dcba")).item_ids == list("dcba")


def test_the_next_request_of_every_engine_sees_it(store: Path) -> None:
    """And one that is under way keeps the catalog it began with."""
    engines = [Engine.open(store) for _ in range(2)]
    before = engines[1].catalog
    engines[0].upsert([Item("fresh", features(2), "The fresh one")])
    for engine in engines:
        ranking = engine.answer("3", limit=ITEMS + 1)
        assert "fresh" in ranking.item_ids
        assert ranking.overlay_items == 1
    assert len(before) == ITEMS
    assert before.rows_of(["fresh"]).tolist() == [0]
    engines[1].delete(["fresh"])
    assert "fresh" not in engines[0].answer("3").item_ids


def test_kept_states_are_of_the_features_they_were_computed_from(store: Path) -> None:
    """New items may be added without computing anything anew; replacing one that a history names may not."""
    engine, other = Engine.open(store), Engine.open(store, states=0)
    engine.stages.users.least_events = 0  # of histories this short only finished states would be kept
    engine.upsert([Item("x", features(1))])
    history = [Event("x", {"clicked": 1})]

    def asked(events: list[Event]) -> str:
        ranking = engine.answer("3", events=events)
        expected = other.answer("3", events=events)
        assert ranking.item_ids == expected.item_ids
        np.testing.assert_allclose(ranking.probabilities, expected.probabilities, atol=2e-6)
        return ranking.user_state

    assert [asked(history), asked(history)] == ["computed", "cached"]
    engine.upsert([Item("y", features(2))])
    assert asked(history) == "cached"
    longer = [*history, Event("y", {"clicked": 0})]
    assert asked(longer) == "appended"
    engine.upsert([Item("x", features(3))])
    assert [asked(longer), asked(longer)] == ["computed", "cached"]
    engine.delete(["x"])  # no candidate any more, but the history is what it was
    assert asked(longer) == "cached"
    seen = engine.bundle.item_ids.names_of(engine.catalog.seen_rows("3", []))[0]
    assert [asked([]), asked([])] == ["computed", "cached"]
    engine.upsert([Item(seen, features(4))])  # of the stored history
    assert [asked([]), asked([])] == ["computed", "computed"]


def test_requests_while_items_come_and_go(store: Path) -> None:
    """Each call changes two items at once, and every answer of every thread has both or none."""
    engine, done = Engine.open(store), threading.Event()
    wrong: list[set[str]] = []
    answered = [0] * 4

    def ask(number: int) -> None:
        while not done.is_set() or not answered[number]:
            found = engine.answer("3", limit=ITEMS + 2)
            pair = {"x", "y"} & set(found.item_ids)
            if len(pair) == 1 or found.candidates != ITEMS + len(pair) or found.overlay_items != len(pair):
                wrong.append(pair)
            answered[number] += 1

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(answered))]
    for thread in threads:
        thread.start()
    for number in range(15):
        engine.upsert([Item("x", features(number)), Item("y", features(number + 1))])
        engine.delete(["x", "y"])
    done.set()
    for thread in threads:
        thread.join()
    assert not wrong


def test_many_versions_of_an_item_leave_no_waste(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("limerank.serve.overlay.live.LEAST_WASTE", 3)
    engine = Engine.open(store)
    for number in range(12):
        engine.upsert([Item("x", features(number)), Item("y", features(1))])
        table = engine.catalog.overlay.table
        assert table is not None
        assert len(table) <= 7
    expected = engine.score(engine.encode_user("3"), ["x", "y"])
    np.testing.assert_allclose(Engine.open(store).score(engine.encode_user("3"), ["x", "y"]), expected, atol=2e-6)


def test_an_item_tells_where_it_comes_from(dataset: StoredDataset, store: Path) -> None:
    engine, as_it_is = Engine.open(store), World(dataset).items["8"]
    engine.upsert([Item("fresh", features(2)), Item("4", features(3)), Item("8", as_it_is)])
    engine.delete(["5"])
    statuses = {one.item_id: one for one in engine.item_status(["fresh", "4", "8", "5", "6", "ghost"])}
    assert [one.source for one in statuses.values()] == ["overlay", "overlay", "bundle", "deleted", "bundle", "unknown"]
    made = engine.bundle.manifest.created_at
    assert statuses["6"].changed_at is None
    assert statuses["6"].computed_at == statuses["8"].computed_at == made
    assert statuses["8"].changed_at is not None  # the same as before: nothing had to be computed
    assert statuses["4"].computed_at == statuses["4"].changed_at
    assert str(statuses["4"].changed_at)[:10] >= made[:10]
    assert {one.row_fingerprint for one in statuses.values()} == {engine.bundle.manifest.row_fingerprint}


BAD: list[tuple[dict[str, Any], str]] = [
    ({"titel": "x"}, "item 'x': no item feature 'titel'; did you mean 'title'?"),
    ({"title": "x", "tags": []}, "item 'x': feature 'image' is missing; give it, or None if unknown"),
    ({**features(1), "image": [1.0, 2.0]}, "feature 'image' is vector of width 4, but has 2 numbers"),
    ({**features(1), "image": [1, 2, 3, float("nan")]}, "nan is not a finite number"),
    ({**features(1), "image": "1 2 3 4"}, "'1 2 3 4' is no list"),
    ({**features(1), "tags": "a|b"}, "feature 'tags' is multi_valued, but 'a|b' is no list"),
    ({**features(1), "tags": [1.5]}, "1.5 is neither text nor a whole number"),
    ({**features(1), "title": 2.0}, "feature 'title' is hashed, but 2.0 is neither text nor a whole number"),
    ({**features(1), "item_id": "y"}, "item 'x': feature 'item_id' is the id, but is given as 'y'"),
    ({**features(1), "image": [1e38, 1e38, 1e38, 1e38]}, "not finite|beyond|NaN|infinite"),
]


@pytest.mark.parametrize(("given_features", "message"), BAD)
def test_a_bad_item_is_refused_and_none_of_its_call_is_kept(
    store: Path, given_features: dict[str, Any], message: str
) -> None:
    engine = Engine.open(store)
    with pytest.raises(UsageError, match=message):
        engine.upsert([Item("good", features(1)), Item("x", given_features)])
    assert not (store / "overlay").exists()
    assert len(engine.catalog) == ITEMS


def test_calls_that_cannot_be_meant(store: Path) -> None:
    engine = Engine.open(store)
    for items, message in (
        ([Item("x", features(1)), Item("x", features(2))], "item 'x': is given twice"),
        ([Item("", features(1))], "item_id: is empty"),
        ([("x", features(1))], "tuple is no Item"),
        ("x", "str is no list of items"),
        (pl.DataFrame({"id": ["x"]}), "column 'item_id' is missing"),
        ([Item("half \ud800", features(1))], "has half a character"),
        ([Item("x", features(1), "half \udfff")], "has half a character"),
        ([Item("x", {**features(1), "title": "\ud800"})], "feature 'title' is hashed, but .* has half a character"),
        ([Item("x", {**features(1), "tags": ["\ud800"]})], "feature 'tags' is multi_valued, but .* has half"),
        ([Item("x", features(1), display=5)], "display 5 is not a text"),  # type: ignore[arg-type]
    ):
        with pytest.raises(UsageError, match=message):
            engine.upsert(items)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="item_ids: str is no list of ids"):
        engine.delete("x")
    assert engine.delete([]).deleted == []
    assert engine.upsert([]).added == []


def test_an_upsert_that_the_next_bundle_cannot_serve_is_set_aside(
    store: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Vectors of another width: the item is unknown again, or as the bundle has it; all others are served."""
    engine = Engine.open(store)
    engine.upsert([Item("x", features(1)), Item("4", features(2)), Item("y", features(3, image=False))])
    raw = rich_log()
    assert raw.items is not None
    wider = raw.items.with_columns(image=pl.Series(np.ones((ITEMS, 6), dtype=np.float32)))
    exported("lime-mha", prepare(type(raw)(**{**raw.__dict__, "items": wider}), tmp_path / "wide"), store)
    other = Engine.open(store)
    statuses = other.item_status(["x", "4", "y"])
    assert [one.source for one in statuses] == ["unfit", "unfit", "overlay"]
    assert "needs vectors of width 6" in statuses[0].note
    assert "item 'x': its upsert does not fit bundle" in caplog.text
    ranking = other.answer("3", ["x", "4", "y"])
    assert ranking.unknown_items == ["x"]
    assert len(other.answer("3").item_ids) == len(other.catalog) == ITEMS + 1
    BundleStore(store).roll_back()
    assert Engine.open(store).answer("3", ["x", "4", "y"]).unknown_items == []


def test_explanations_read_the_overlay(store: Path) -> None:
    """What is explained is what was ranked: new and replaced items, as candidates and in the history."""
    engine = Engine.open(store)
    engine.upsert([Item("x", features(1)), Item("4", features(2))])
    events = [Event("x", {"clicked": 1}), Event("4", {"clicked": 1})]
    asked = ["5", "x", "4", "ghost"]
    explanation = explain(engine, "3", asked, events=events)
    logits = np.array([candidate.logit for candidate in explanation.candidates])
    scores = engine.score(engine.encode_user("3", events=events), asked)[:, 0]
    np.testing.assert_allclose(1 / (1 + np.exp(-logits)), scores, atol=1e-5)


def test_a_catalog_without_items_is_still_the_catalog_of_a_history(store: Path) -> None:
    """Everything is deleted, the new item, too; its event is read with its features, as that of any deleted item."""
    engine = Engine.open(store)
    engine.upsert([Item("new", {"title": "title 3", "tags": ["t1"], "image": [1.0, 2.0, 3.0, 4.0]})])
    before = engine.user_inputs("3", {}, [Event("new", {"clicked": 1})])[0].history
    engine.delete(["new", *(str(number) for number in range(ITEMS))])
    assert len(engine.catalog) == 0
    after = engine.user_inputs("3", {}, [Event("new", {"clicked": 1})])[0].history
    np.testing.assert_array_equal(after.items.indices[after.item_of_event], before.items.indices[before.item_of_event])
