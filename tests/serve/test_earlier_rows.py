"""Rows that are copied from an earlier bundle are those that would have been computed, byte for byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from forging import assert_same_files, bundle_folder, rehash
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from limerank.batch import Features, Jagged
from limerank.data.build.append import append
from limerank.data.build.prepare import prepare
from limerank.data.raw.log import EventFile, RawLog
from limerank.data.store.dataset import StoredDataset
from limerank.models import Ranker, build_ranker
from limerank.schema import Feature, Kind, Role, Schema, Task
from limerank.serve.bundles import item_stage
from limerank.serve.bundles.bundle import Bundle
from limerank.serve.bundles.earlier import EarlierRows, same_features
from limerank.serve.bundles.ids import IdMap, write_id_map
from limerank.serve.bundles.offline import Exported, RowType, export_bundle

DAY = 86_400_000
MODEL: dict[str, Any] = {"name": "lime-mha", "links": 4}
SCHEMA = Schema(
    features=(
        Feature(name="item_id", role=Role.ITEM),
        Feature(name="topic", role=Role.ITEM),
        Feature(name="tags", role=Role.ITEM, kind=Kind.MULTI_VALUED),
        Feature(name="clicked", role=Role.EVENT, column="click"),
    ),
    tasks=(Task(name="click"),),
)


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(item_stage, "ITEMS_PER_BLOCK", 64)
    monkeypatch.setattr(item_stage, "ITEMS_PER_SHARD", 128)


def day_of(day: int, items: range) -> RawLog:
    draw = np.random.default_rng(day)
    names = [f"i{n}" for n in items]
    frame = pl.DataFrame(
        {
            "user_id": [f"u{n}" for n in draw.integers(0, 20, len(items))],
            "item_id": names,
            "time": [day * DAY + n for n in range(len(items))],
            "click": draw.integers(0, 2, len(items)),
        }
    )
    table = pl.DataFrame(
        {
            "item_id": names,
            "topic": [f"t{n % 7}" for n in items],
            "tags": [[f"g{k}" for k in range(n % 4)] for n in items],
        }
    )
    return RawLog(SCHEMA, (EventFile.of_frame(frame, f"day {day}"),), table, None, {"source": "test"})


def ranker_of(dataset: StoredDataset) -> Ranker:
    torch.manual_seed(0)
    return build_ranker(MODEL, dataset.encoders.space(), 1, "test")


def exported(ranker: Ranker, dataset: StoredDataset, store: Path, row_type: RowType = "fp16") -> Exported:
    return export_bundle(ranker, MODEL, dataset, store, max_history=5, row_type=row_type, threads=1)


@pytest.mark.parametrize("row_type", ["fp16", "fp32", "u8"])
def test_after_an_append_only_new_items_are_computed(tmp_path: Path, row_type: RowType) -> None:
    """The bundle is the one that a store without an earlier bundle gets."""
    dataset = prepare(day_of(1, range(300)), tmp_path / "dataset")
    ranker = ranker_of(dataset)
    assert exported(ranker, dataset, tmp_path / "store", row_type).copied == 0
    grown = append(dataset.path, day_of(2, range(250, 350)))
    copied = exported(ranker, grown, tmp_path / "store", row_type)
    computed = exported(ranker, grown, tmp_path / "empty", row_type)
    assert (copied.copied, computed.copied) == (301, 0)
    assert copied.bundle.manifest.items == 351
    assert_same_files(copied.bundle, computed.bundle)


@pytest.fixture
def once(tmp_path: Path) -> tuple[StoredDataset, Ranker, Path]:
    """A dataset of 150 items, a ranker, and a store with their bundle."""
    dataset = prepare(day_of(1, range(150)), tmp_path / "dataset")
    ranker = ranker_of(dataset)
    exported(ranker, dataset, tmp_path / "store")
    return dataset, ranker, tmp_path / "store"


def test_weights_decide(once: tuple[StoredDataset, Ranker, Path]) -> None:
    """New weights of the user side leave rows as they are; new weights of the item side change all of them."""
    dataset, ranker, store = once
    assert exported(ranker, dataset, store, "u8").copied == 0
    with torch.no_grad():
        ranker.get_parameter("link_values.linear.bias").add_(1)
        assert exported(ranker, dataset, store).copied == 151
        ranker.get_parameter("links.embeddings").add_(1)
        assert exported(ranker, dataset, store).copied == 0


@pytest.mark.parametrize("damage", ["rows", "forged rows", "manifest", "weights"])
def test_a_bundle_that_is_not_what_it_should_be_is_not_copied_from(
    once: tuple[StoredDataset, Ranker, Path], tmp_path: Path, damage: str
) -> None:
    """Neither one that fails verification nor one whose rows this machine would not make."""
    dataset, ranker, store = once
    folder = bundle_folder(store)
    if damage == "forged rows":
        rows = load_file(folder / "rows.safetensors")
        rows["rows"][70, 3] += 0.25
        stamp = Bundle.open(folder).manifest.row_fingerprint
        save_file(rows, folder / "rows.safetensors", {"fingerprint": stamp})
        rehash(folder)
        Bundle.open(folder)  # nothing else tells
    else:
        names = {"rows": "rows.safetensors", "manifest": "manifest.json", "weights": "model.safetensors"}
        path = folder / names[damage]
        path.write_bytes(path.read_bytes()[:-9])
    again = exported(ranker, dataset, store)
    assert again.copied == 0
    assert_same_files(again.bundle, exported(ranker, dataset, tmp_path / "empty").bundle)


def test_items_are_known_by_their_ids_and_features(once: tuple[StoredDataset, Ranker, Path], tmp_path: Path) -> None:
    """Wherever they stand; one whose attribute or list changed is not."""
    dataset, _, store = once
    bundle = Bundle.open(bundle_folder(store))
    order = np.random.default_rng(0).permutation(np.arange(1, 151))
    rows = np.concatenate([[0], order])
    table = dataset.item_table.take(torch.from_numpy(rows))
    names = dataset.item_ids.gather(rows).to_list()
    table.indices[5, 1] += 1
    longer = int(np.flatnonzero(np.diff(table.lists[0].offsets.numpy()) > 1)[0])
    table.lists[0].values[table.lists[0].offsets[longer]] += 1
    names[9] = "new"
    write_id_map(tmp_path / "ids", names)
    earlier = EarlierRows(bundle, IdMap(load_file(tmp_path / "ids")), table)
    expected = rows.copy()
    expected[[5, longer, 9]] = -1
    np.testing.assert_array_equal(np.concatenate([earlier.rows_of(0, 64), earlier.rows_of(64, 151)]), expected)


lists = st.lists(st.lists(st.integers(0, 2), max_size=3), min_size=6, max_size=6)


@given(mine=lists, theirs=lists, columns=st.lists(st.booleans(), min_size=6, max_size=6))
def test_features_are_compared_row_by_row(mine: list[list[int]], theirs: list[list[int]], columns: list[bool]) -> None:
    def table(values: list[list[int]], marks: list[bool]) -> Features:
        offsets = torch.tensor([0, *np.cumsum([len(one) for one in values])])
        flat = torch.tensor([value for one in values for value in one], dtype=torch.long)
        vector = torch.tensor([[0.5, float(mark)] for mark in marks])
        return Features(torch.tensor([[1, 2 + mark] for mark in marks]), (Jagged(flat, offsets),), (vector,))

    same = same_features(table(mine, columns), table(theirs, [False] * 6))
    expected = [left == right and not mark for left, right, mark in zip(mine, theirs, columns, strict=True)]
    assert same.tolist() == expected
