"""`limerank items`: from a shell, for engines that run elsewhere."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import polars as pl
import pytest
from calling import answer, limerank, refusal

from limerank.serve.engine import Engine

COLUMNS = {"item_id": ["n1", "i5"], "topic": ["t1", None], "creator": ["c1", "c2"], "duration_s": [30.5, None]}


@pytest.fixture
def shop(store: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(store, tmp_path / "store"))


@pytest.mark.parametrize("ending", ["csv", "parquet", "jsonl"])
def test_upsert_delete_list_and_forget(shop: Path, tmp_path: Path, ending: str) -> None:
    """Every format gives the same items; an engine that is open meanwhile sees each step."""
    engine, file = Engine.open(shop), tmp_path / f"items.{ending}"
    table = pl.DataFrame(COLUMNS).with_columns(tags=pl.Series([["a", "b"], []]))
    if ending == "csv":
        table.with_columns(pl.col("tags").list.join("|")).write_csv(file)
    else:
        (table.write_parquet if ending == "parquet" else table.write_ndjson)(file)
    change = answer("items", "upsert", shop, "--file", file)
    assert (change["added"], change["replaced"]) == (["n1"], ["i5"])
    entry = engine.catalog.overlay.entries["n1"]
    assert entry.change.features == {"topic": "t1", "creator": "c1", "duration_s": 30.5, "tags": ["a", "b"]}
    assert len(engine.answer("u1").item_ids) == 201
    ranked = answer("rank", shop, "--user", "u1", "--items", "n1,i5,i6,ghost")
    assert (ranked["overlay_items"], ranked["unknown_items"]) == (2, ["ghost"])
    assert "upserted since the bundle was exported: 2" in limerank("rank", shop, "--user", "u1").stdout
    change = answer("items", "delete", shop, "n1", "i9", "ghost")
    assert (change["deleted"], change["absent"]) == (["n1", "i9"], ["ghost"])
    listed = answer("items", "list", shop)["items"]
    assert [(one["item_id"], one["source"]) for one in listed] == [
        ("n1", "deleted"),
        ("i5", "overlay"),
        ("i9", "deleted"),
    ]
    assert [one["source"] for one in answer("items", "list", shop, "i3", "ghost")["items"]] == ["bundle", "unknown"]
    assert answer("items", "forget", shop, "i9", "i4")["forgotten"] == ["i9"]
    assert len(engine.answer("u1").item_ids) == 200
    shown = limerank("items", "list", shop).stdout
    assert shown.splitlines()[0].split()[:2] == ["item", "source"]


def test_fold_and_forget_what_is_contained(shop: Path, tmp_path: Path) -> None:
    file = tmp_path / "items.jsonl"
    file.write_text(json.dumps({"item_id": "n1", "topic": "t1", "creator": None, "duration_s": 5, "tags": None}))
    assert "nothing was changed" in limerank("items", "list", shop).stdout
    assert "nothing to fold" in refusal(5, "items", "fold", shop)
    answer("items", "upsert", shop, "--file", file)
    before = answer("rank", shop, "--user", "u1", "--limit", "300")
    folded = answer("items", "fold", shop)
    assert folded["items"] == 201
    assert folded["active"] == folded["bundle"] != before["bundle"]
    after = answer("rank", shop, "--user", "u1", "--limit", "300")
    assert [item["id"] for item in after["items"]] == [item["id"] for item in before["items"]]
    assert (before["overlay_items"], after["overlay_items"]) == (1, 0)
    assert answer("items", "forget", shop, "--contained")["forgotten"] == ["n1"]
    assert answer("items", "list", shop)["items"] == []
    assert answer("rank", shop, "--user", "u1", "--items", "n1")["unknown_items"] == []


def test_what_cannot_be_upserted_is_refused(shop: Path, tmp_path: Path) -> None:
    file = tmp_path / "items.csv"
    for text, message in (
        ("item_id,topic\nn1,t1\n", "item 'n1': feature 'creator' is missing"),
        ("id,topic\nn1,t1\n", "column 'item_id' is missing"),
        ("item_id,topic,creator,duration_s,tags\nn1,t1,c1,long,\n", "is continuous, but 'long' is not a finite number"),
        ("item_id,topic,creator,duration_s,tags,hue\nn1,t1,c1,1,,x\n", "no item feature 'hue'"),
    ):
        file.write_text(text)
        assert message in refusal(2, "items", "upsert", shop, "--file", file)
    broken = tmp_path / "items.jsonl"
    broken.write_text("{")
    assert "cannot be read as JSON lines" in refusal(3, "items", "upsert", shop, "--file", broken)
    assert "name items, or pass --contained" in refusal(2, "items", "forget", shop)
    assert not (shop / "overlay").exists()
