"""TaobaoAd_x1: small files of exactly the published layout."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path

import polars as pl
import pytest
from decoding import decoded_rows

from limerank.data.build.prepare import prepare
from limerank.data.raw.log import RawLog
from limerank.data.sources import taobao_ad
from limerank.data.sources.taobao_ad import compare_with_published, read_taobao_ad
from limerank.data.store.dataset import StoredDataset
from limerank.errors import DataError
from limerank.schema import Kind, Role

HEADER = (
    "clk,btag_his,cate_his,brand_his,userid,cms_segid,cms_group_id,final_gender_code,age_level,pvalue_level,"
    "shopping_level,occupation,new_user_class_level,adgroup_id,cate_id,campaign_id,customer,brand,price,pid,btag"
)
PLAIN = "0,1^1^4,11^12^11,21^22^21,u1,5,2,2,3,0,3,0,2,a1,11,c1,k1,21,19.9,430548_1007,1"


def row(**changes: str) -> str:
    """One line; every value can be replaced."""
    values = dict(
        zip(
            HEADER.split(","),
            PLAIN.split(","),
            strict=True,
        )
    )
    assert set(changes) <= set(values)
    return ",".join((values | changes).values())


def write(folder: Path, train: list[str], test: list[str], header: str = HEADER) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in (("train", train), ("test", test)):
        (folder / f"{name}.csv").write_text("\n".join([header, *lines]) + "\n")
    return folder


def many_rows(count: int, seed: int) -> list[str]:
    """Rows of 12 users and 20 ads; each user has two different histories, some of them empty."""
    draw = random.Random(seed)
    rows = []
    for number in range(count):
        user, ad = draw.randrange(12), draw.randrange(20)
        length = [0, 3, 7][user % 3] + number % 2
        lists = {
            "btag_his": "^".join(str(1 + (user + k) % 4) for k in range(length)),
            "cate_his": "^".join(str(10 + (user * k) % 5) for k in range(length)),
            "brand_his": "^".join(str(20 + (user + k) % 6) for k in range(length)),
        }
        rows.append(
            row(
                clk=str(int(draw.random() < 0.3)), userid=f"u{user}", cms_segid=str(user % 4), adgroup_id=f"a{ad}",
                cate_id=str(10 + ad % 5), brand=str(20 + ad % 7), campaign_id=f"c{ad}", price=str(ad * 1.5),
                pid=draw.choice(["430548_1007", "430539_1007"]), **lists,
            )
        )  # fmt: skip
    return rows


def collected(raw: RawLog) -> pl.DataFrame:
    return pl.concat([batch for file in raw.events for batch in file.batches()])


def test_columns_become_roles(tmp_path: Path) -> None:
    raw = read_taobao_ad(write(tmp_path, [row()], [row(userid="u2")]))
    schema = raw.schema
    assert (schema.user_id, schema.item_id, schema.time, schema.max_history) == ("userid", "adgroup_id", None, 50)
    assert [f.name for f in schema.with_role(Role.ITEM)] == [
        "adgroup_id", "cate_id", "campaign_id", "customer", "brand", "price",
    ]  # fmt: skip
    assert [f.name for f in schema.with_role(Role.USER)] == HEADER.split(",")[4:13]
    assert [f.name for f in schema.with_role(Role.CONTEXT)] == ["pid"]
    assert [f.name for f in schema.with_role(Role.EVENT)] == ["btag"]
    assert {f.minimum_count for f in schema.features if f.kind is Kind.CATEGORICAL} == {10}
    assert [f.name for f in schema.features if f.kind is Kind.CONTINUOUS] == ["price"]
    assert schema.histories is not None
    assert schema.histories.items == {"cate_id": "cate_his", "brand": "brand_his"}
    assert schema.histories.events == {"btag": "btag_his"}
    assert [task.name for task in schema.tasks] == ["clk"]


def test_rows_say_which_file_they_come_from_and_stay_text(tmp_path: Path) -> None:
    empty = {"btag_his": "", "cate_his": "", "brand_his": ""}
    raw = read_taobao_ad(write(tmp_path, [row(), row(clk="1", **empty)], [row(userid="007")]))
    table = collected(raw)
    assert table["__part"].to_list() == ["train", "train", "test"]
    assert table["cate_his"].to_list() == ["11^12^11", None, "11^12^11"]
    assert table["userid"].to_list() == ["u1", "u1", "007"]
    assert "btag" not in table.columns
    assert any("'btag' is ignored: it is 1 in every row" in note for note in raw.notes)


def test_a_sample_is_said_not_to_be_official(tmp_path: Path) -> None:
    raw = read_taobao_ad(write(tmp_path, [row()], [row()]))
    assert "train.csv is not the official file: it is too small for 21,929,911 rows" in raw.notes
    assert raw.origin == {"source": "taobao-ad", "official": False, "official_rows": False}


def announce(monkeypatch: pytest.MonkeyPatch, folder: Path, rows: tuple[int, int]) -> None:
    """Pretend that the files of a folder are the published ones."""
    published = {
        part: taobao_ad.Published(count, hashlib.md5((folder / f"{part}.csv").read_bytes()).hexdigest())
        for part, count in zip(("train", "test"), rows, strict=True)
    }
    monkeypatch.setattr(taobao_ad, "PUBLISHED", published)


def test_md5_and_rows_are_compared_with_the_published_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, [row(), row()], [row()])
    announce(monkeypatch, tmp_path, (2, 1))
    notes = read_taobao_ad(tmp_path).notes
    assert "train.csv: rows 2, as published" in notes
    assert any(note.startswith("test.csv: md5 ") and note.endswith(", as published") for note in notes)
    write(tmp_path, [row(), row(clk="1"), row()], [row()])
    raw = read_taobao_ad(tmp_path)
    assert "WARNING: train.csv: rows 3, published is 2" in raw.notes
    assert any(note.startswith("WARNING: train.csv: md5 ") for note in raw.notes)
    assert raw.origin["official"] is False
    unverified = read_taobao_ad(tmp_path, verify=False)
    assert "train.csv was not compared with the published file (--no-verify)" in unverified.notes


def test_columns_are_checked(tmp_path: Path) -> None:
    misspelt = write(tmp_path / "a", [row()], [row()], HEADER.replace("cate_his", "cat_his"))
    with pytest.raises(DataError, match="train.csv: column 'cate_his' is missing; did you mean 'cat_his'"):
        read_taobao_ad(misspelt)
    twice = write(tmp_path / "b", [row()], [row()], HEADER.replace("pid", "brand"))
    with pytest.raises(DataError, match="train.csv: column 'brand' is there twice"):
        read_taobao_ad(twice)
    extra = write(tmp_path / "c", [row() + ",9"], [row() + ",9"], HEADER + ",mood")
    assert "columns that TaobaoAd_x1 does not have are ignored: mood" in read_taobao_ad(extra).notes
    (extra / "test.csv").unlink()
    with pytest.raises(DataError, match="test.csv: no such file; put train.csv and test.csv"):
        read_taobao_ad(extra)
    (extra / "test.csv").write_text("")
    with pytest.raises(DataError, match="test.csv: cannot be read as a table"):
        read_taobao_ad(extra)


def test_aligned_lists_meet_at_their_newest_end(tmp_path: Path) -> None:
    """Zeros were dropped from each list on its own, so a missing brand makes its list shorter."""
    lines = [row(brand_his="22^21"), row(btag_his="", cate_his="5", brand_his="")]
    table = collected(read_taobao_ad(write(tmp_path, lines, [row()]), align=True))
    assert table["brand_his"].to_list()[:2] == [["", "22", "21"], [""]]
    assert table["cate_his"].to_list()[:2] == [["11", "12", "11"], ["5"]]
    assert table["btag_his"].to_list()[:2] == [["1", "1", "4"], [""]]


def test_prepared_dataset_holds_what_the_files_say(tmp_path: Path) -> None:
    """Every row comes back: its user, its history element by element, its ad and its label; nothing else does."""
    lines = {"train": many_rows(600, 1), "test": many_rows(80, 2)}
    dataset = prepare(read_taobao_ad(write(tmp_path / "raw", lines["train"], lines["test"])), tmp_path / "out")
    expected = []
    for part, table in lines.items():
        for line in table:
            values = dict(zip(HEADER.split(","), line.split(","), strict=True))
            lists = [values[name].split("^") for name in ("cate_his", "brand_his", "btag_his") if values[name]]
            history = tuple(zip(*lists, strict=True))
            expected.append((part == "test", values["userid"], history, values["adgroup_id"], int(values["clk"])))
    rows = decoded_rows(dataset, ("cate_id", "brand"))
    found = [(row.part == 2, row.user, row.history, row.item, row.label) for row in rows]
    assert sorted(found) == sorted(expected)
    held_out = sum(row.part == 1 for row in rows) / 600
    assert 0.03 < held_out < 0.3
    assert dataset.manifest.counts["history_items"] < 40, "histories are pairs of category and brand, each stored once"


def test_context_stays_out_of_the_item_tower(tmp_path: Path) -> None:
    dataset = prepare(read_taobao_ad(write(tmp_path / "raw", many_rows(300, 1), many_rows(80, 2))), tmp_path / "out")
    assert [encoder.name for encoder in dataset.encoders.of(Role.CONTEXT)] == ["pid"]
    assert "pid" not in {encoder.name for encoder in dataset.encoders.of(Role.ITEM)}
    assert "btag" not in {encoder.name for encoder in dataset.encoders.of(Role.ITEM)}
    sizes = {encoder.name: encoder.size for role in Role for encoder in dataset.encoders.of(role)}
    assert (sizes["btag"], sizes["pid"]) == (6, 4)


def test_an_aligned_history_has_missing_values_at_its_old_end(tmp_path: Path) -> None:
    train = many_rows(300, 1) + [row(userid="u99", btag_his="1^2", cate_his="10^11", brand_his="20")] * 20
    raw = read_taobao_ad(write(tmp_path / "raw", train, many_rows(40, 2)), align=True)
    rows = decoded_rows(prepare(raw, tmp_path / "out"), ("cate_id", "brand"))
    assert {r.history for r in rows if r.user == "u99"} == {(("10", "unknown", "1"), ("11", "20", "2"))}


def test_the_command(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from limerank.cli import app

    folder = write(tmp_path / "raw", many_rows(300, 1), many_rows(80, 2))
    arguments = ["prepare", "taobao-ad", "--raw", str(folder), "--out", str(tmp_path / "out"), "--select-on-test"]
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert facts["events"] == 380
    assert any("test.csv is not the official file" in note for note in facts["notes"])
    dataset = StoredDataset.open(tmp_path / "out")
    assert dataset.schema.split.select_on_test
    assert set(dataset.column("requests/part").tolist()) == {0, 2}


def test_unequal_lists_are_an_error_that_names_the_row(tmp_path: Path) -> None:
    lines = [row(), row(brand_his="22^21")]
    with pytest.raises(DataError, match=r"train.csv: row 2: 'brand_his' has 2 elements, 'cate_his' has 3"):
        prepare(read_taobao_ad(write(tmp_path / "raw", lines, [row()])), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def published_sizes(train: list[str]) -> dict[str, int]:
    """FuxiCTR's rule, by hand: 10 occurrences in the column or 10 in its sequence; padding and unknown count too."""
    table = [dict(zip(HEADER.split(","), line.split(","), strict=True)) for line in train]

    def frequent(values: list[str]) -> set[str]:
        return {value for value in values if value and values.count(value) >= 10}

    def elements(column: str) -> list[str]:
        return [value for line in table for value in line[column].split("^")]

    sequences = {"cate_id": "cate_his", "brand": "brand_his", "btag": "btag_his"}
    sizes = {}
    for name in taobao_ad.PUBLISHED_SIZES:
        known = frequent([line[name] for line in table])
        if name in sequences:
            known |= frequent(elements(sequences[name]))
        sizes[name] = len(known) + 2
    return sizes


def test_vocabularies_follow_the_published_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A category that is frequent in the candidates or in the histories is known; counts are never added up."""
    rare = [row(cate_id="70", cate_his="70", brand_his="21", btag_his="1", userid="u0", adgroup_id="a0")] * 9
    train, test = many_rows(600, 3) + rare, many_rows(80, 4)
    folder = write(tmp_path / "raw", train, test)
    announce(monkeypatch, folder, (609, 80))
    monkeypatch.setattr(taobao_ad, "PUBLISHED_SIZES", published_sizes(train))
    raw = read_taobao_ad(folder)
    split = raw.schema.split.model_copy(update={"select_on_test": True})
    whole = RawLog(raw.schema.model_copy(update={"split": split}), raw.events, None, None, raw.origin)
    dataset = prepare(whole, tmp_path / "whole")
    assert "70" not in next(e for e in dataset.encoders.of(Role.ITEM) if e.name == "cate_id").vocabulary
    lines = compare_with_published(dataset)
    assert len(lines) == 16
    assert all(line.endswith(", as published") for line in lines), lines
    carved = compare_with_published(prepare(raw, tmp_path / "carved"))
    assert not any(line.startswith("WARNING") for line in carved)
    monkeypatch.setitem(taobao_ad.PUBLISHED_SIZES, "pid", 3)
    assert "WARNING: vocabulary of pid: 4, published are 3" in compare_with_published(
        StoredDataset.open(tmp_path / "whole")
    )
