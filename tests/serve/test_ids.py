"""Ids find their own rows: in any order, of any length, whatever their hashes, and a map that loses one is refused."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import polars as pl
import pytest
import torch
from forging import bundle_folder, rehash
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from limerank.data.build.append import append
from limerank.data.build.prepare import prepare
from limerank.data.raw.log import EventFile, RawLog
from limerank.data.store.dataset import StoredDataset
from limerank.errors import BundleError, DataError
from limerank.models import build_ranker
from limerank.schema import Feature, Role, Schema, Task
from limerank.serve.bundles import ids as id_maps
from limerank.serve.bundles import texts as many_texts
from limerank.serve.bundles.bundle import Bundle
from limerank.serve.bundles.ids import IdMap, Texts, write_id_map
from limerank.serve.bundles.offline import export
from limerank.serve.bundles.texts import MULTIPLIER
from limerank.serve.engine import Engine

texts = st.text(st.characters(codec="utf-8"))
DAY = 86_400_000


def map_of(folder: Path, ids: list[str], displays: list[str | None] | None = None) -> IdMap:
    write_id_map(folder / "ids.safetensors", ["", *ids], None if displays is None else [None, *displays])
    opened = IdMap(load_file(folder / "ids.safetensors"))
    opened.check()
    return opened


@given(known=st.lists(texts.filter(bool), unique=True), others=st.lists(texts))
def test_ids_find_their_rows(tmp_path_factory: pytest.TempPathFactory, known: list[str], others: list[str]) -> None:
    """In whatever order they stand; and nothing else finds one."""
    table = map_of(tmp_path_factory.mktemp("ids"), known)
    assert table.names_of(range(1, len(known) + 1)) == known
    row_of = {text: row for row, text in enumerate(known, 1)}
    asked = [*others, *reversed(known)]
    wanted = [row_of.get(text, 0) for text in asked]
    assert table.rows_of(asked).tolist() == wanted
    assert [table.row_of(text) for text in asked] == wanted


@given(st.lists(texts))
def test_hashes_are_those_of_the_definition(listed: list[str]) -> None:
    def by_definition(text: str) -> int:
        powers = [(byte + 1) * MULTIPLIER**place for place, byte in enumerate(text.encode())]
        return int(sum(powers) % 2**64)

    assert Texts.of(listed).hashes().view(np.uint64).tolist() == [by_definition(text) for text in listed]


def test_hashes_do_not_depend_on_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a text that is longer than a block."""
    listed = [f"item {n}" * (n % 5) for n in range(200)]
    whole = Texts.of(listed).hashes()
    monkeypatch.setattr(many_texts, "BYTES_PER_BLOCK", 16)
    np.testing.assert_array_equal(Texts.of(listed).hashes(), whole)


def test_ids_of_one_hash_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Texts, "hashes", lambda self: np.arange(len(self)) // len(self))
    table = map_of(tmp_path, [f"i{n}" for n in range(20)])
    assert table.rows_of(["i7", "ghost", "i0", "i19"]).tolist() == [8, 0, 1, 20]
    with pytest.raises(DataError, match=r"id 'b' \(row 2\) has two rows"):
        map_of(tmp_path, ["a", "b", "c", "b"])


def test_one_very_long_id_costs_its_own_length(tmp_path: Path) -> None:
    ids = [f"i{n}" for n in range(10_000)]
    map_of(tmp_path, ids)
    before = (tmp_path / "ids.safetensors").stat().st_size
    long = "x" * 1_000_000
    table = map_of(tmp_path, [*ids, long])
    assert (tmp_path / "ids.safetensors").stat().st_size < before + 1_000_100
    assert table.rows_of([long, long[1:], "i3"]).tolist() == [10_001, 0, 4]
    assert [table.row_of(name) for name in (long, long[1:], "i3")] == [10_001, 0, 4]


def test_texts_that_are_no_utf8_are_unknown(tmp_path: Path) -> None:
    """A terminal hands over bytes as half surrogates, and JSON may hold any."""
    table, asked = map_of(tmp_path, ["a"]), ["\udcff", "\ud800", "a\ud800", "a"]
    assert table.rows_of(asked).tolist() == [table.row_of(name) for name in asked] == [0, 0, 0, 1]


def test_where_a_search_begins_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However few bits of a hash it begins by, and however soon it gives up looking at one place after the other."""
    write_id_map(tmp_path / "ids", ["", *(f"i{number}" for number in range(500))])
    asked = [f"i{number}" for number in range(0, 700, 3)]
    wanted = [row + 1 if row < 500 else 0 for row in range(0, 700, 3)]
    for bits, steps in ((22, 8), (1, 8), (1, 1), (3, 1000), (22, 0)):
        monkeypatch.setattr(id_maps, "MOST_BITS", bits)
        monkeypatch.setattr(id_maps, "STEPS", steps)
        assert IdMap(load_file(tmp_path / "ids")).rows_of(asked).tolist() == wanted


def test_an_empty_map_knows_nobody(tmp_path: Path) -> None:
    assert map_of(tmp_path, []).rows_of(["a", "", "b"]).tolist() == [0, 0, 0]
    assert map_of(tmp_path, ["a"]).rows_of([]).tolist() == []


@given(st.lists(texts), st.lists(texts), st.randoms(use_true_random=False))
def test_texts_are_compared_whole(listed: list[str], others: list[str], random: Random) -> None:
    """Also those that differ in length, or behind the first eight or seventy bytes only, or end where all texts end."""
    grown = [
        *listed,
        *(text + "x" for text in listed),
        *(2 * text for text in listed),
        *(70 * "y" + text for text in listed),
    ]
    pairs = [(random.choice(grown), random.choice([*grown, *others])) for _ in grown]
    numbers = np.arange(len(pairs))
    mine, theirs = Texts.of([one for one, _ in pairs]), Texts.of([other for _, other in pairs])
    wanted = [one == other for one, other in pairs]
    assert mine.same(numbers, theirs).tolist() == wanted
    assert mine.same(numbers[::-1], theirs, numbers[::-1]).tolist() == wanted[::-1]
    assert mine.at(numbers) == [one for one, _ in pairs]


def test_displays(tmp_path: Path) -> None:
    assert map_of(tmp_path, ["a", "b"], ["Ä title", None]).displays_of([2, 1, 0]) == [None, "Ä title", None]
    assert map_of(tmp_path, ["a"]).displays_of([1]) == [None]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ({"rows": lambda rows: rows.flip(0)}, "has another hash than it is looked for by"),
        ({"rows": lambda rows: rows.clamp(max=5)}, r"id 'i5' \(row 6\) is found by no hash"),
        ({"rows": lambda rows: rows - 1}, "is found by no hash"),
        ({"hashes": lambda hashes: hashes.flip(0)}, "hashes do not ascend"),
        ({"hashes": lambda hashes: hashes[:-1]}, "ids can be looked up, should be 8"),
        ({"offsets": lambda offsets: offsets.flip(0)}, "offsets do not fit the texts"),
        ({"text": lambda text: torch.zeros_like(text) + ord("i")}, "has another hash"),
    ],
)
def test_a_map_that_loses_ids_is_refused(tmp_path: Path, damage: dict[str, object], reason: str) -> None:
    map_of(tmp_path, [f"i{n}" for n in range(8)])
    tensors = load_file(tmp_path / "ids.safetensors")
    changed = {name: change(tensors[name]) for name, change in damage.items()}  # type: ignore[operator]
    with pytest.raises(DataError, match=reason):
        IdMap({**tensors, **changed}).check()


SCHEMA = Schema(
    features=(Feature(name="item_id", role=Role.ITEM), Feature(name="clicked", role=Role.EVENT, column="click")),
    tasks=(Task(name="click"),),
    display="title",
)


def day_of(day: int, users: list[str], items: list[str]) -> RawLog:
    rows = [
        (user, item, f"The {item}", day * DAY + 1000 * n + m, (n + m) % 2)
        for n, user in enumerate(users)
        for m, item in enumerate(items)
    ]
    frame = pl.DataFrame(rows, schema=["user_id", "item_id", "title", "time", "click"], orient="row")
    return RawLog(SCHEMA, (EventFile.of_frame(frame, f"day {day}"),), None, None, {"source": "test"})


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> tuple[StoredDataset, Path]:
    """Two days whose new ids sort before, between and behind the old ones, and the store of a ranker."""
    folder = tmp_path_factory.mktemp("grown")
    dataset = prepare(day_of(1, ["2", "50", "99"], ["20", "500", "7"]), folder / "dataset")
    dataset = append(dataset.path, day_of(2, ["9001", "10", "2"], ["1000", "30", "7"]))
    dataset = append(dataset.path, day_of(3, ["9002", "1", "99"], ["999", "0", "20"]))
    torch.manual_seed(0)
    model = {"name": "lime-mha", "links": 4}
    ranker = build_ranker(model, dataset.encoders.space(), 1, "test")
    export(ranker, model, dataset, folder / "store", max_history=5)
    return dataset, folder / "store"


def test_appended_ids_are_served(grown: tuple[StoredDataset, Path]) -> None:
    """Every user and item, old or new, is known, with its own history and its own name."""
    dataset, store = grown
    folder = bundle_folder(store)
    bundle = Bundle.open(folder)
    engine = Engine(bundle)
    for ids, known in ((dataset.user_ids, bundle.user_ids), (dataset.item_ids, bundle.item_ids)):
        listed = ids.to_list()[1:]
        assert listed != sorted(listed)  # else this proves nothing
        assert known.rows_of(listed).tolist() == list(range(1, len(listed) + 1))
    for user in dataset.user_ids.to_list()[1:]:
        ranking = engine.answer(user)
        assert ranking.known_user
        assert ranking.history_used > 0
        assert not engine.answer(user, ranking.item_ids).unknown_items
    items = dataset.item_ids.to_list()[1:]
    assert bundle.item_ids.displays_of(bundle.item_ids.rows_of(items)) == [f"The {item}" for item in items]


def test_a_bundle_that_loses_ids_is_not_opened(grown: tuple[StoredDataset, Path]) -> None:
    """Even one whose hashes of files are right: opening, verifying and activating all look."""
    _, store = grown
    folder = bundle_folder(store)
    path = folder / "user_ids.safetensors"
    before = path.read_bytes()
    tensors = load_file(path)
    save_file({**tensors, "rows": tensors["rows"].flip(0)}, path)
    rehash(folder)
    with pytest.raises(BundleError, match=r"user_ids.safetensors: id '\d+' .row \d+. has another hash"):
        Bundle.open(folder)
    path.write_bytes(before)
    rehash(folder)
    Bundle.open(folder)
