"""FuxiCTR and LongCTR datasets: configurations as BARS publishes them, files of exactly those layouts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from decoding import decoded_rows

from limerank.data.build.prepare import prepare
from limerank.data.raw.log import RawLog
from limerank.data.sources.fuxictr import files as fuxictr_files
from limerank.data.sources.fuxictr.read import Choices, read_fuxictr
from limerank.data.store.dataset import StoredDataset
from limerank.errors import DataError, LimerankError, UsageError
from limerank.schema import Kind, Role
from limerank.splits import ByColumn

TAOBAO = """
taobaoad_x1:
    data_root: ../data/Taobao/
    data_format: csv
    train_data: ../data/Taobao/TaobaoAd_x1/train.csv
    valid_data: ../data/Taobao/TaobaoAd_x1/test.csv
    test_data: ../data/Taobao/TaobaoAd_x1/test.csv
    min_categr_count: 10
    feature_cols:
        - {name: "group_id", active: True, dtype: int, type: meta, preprocess: "copy_from(userid)", remap: False}
        - {name: ["userid","cms_segid","adgroup_id","cate_id","campaign_id","brand","pid","btag"],
           active: True, dtype: str, type: categorical}
        - {name: price, active: True, dtype: float, type: numeric}
        - {name: cate_his, active: True, dtype: str, splitter: ^, type: sequence, max_len: 50, padding: pre,
           share_embedding: cate_id}
        - {name: brand_his, active: True, dtype: str, splitter: ^, type: sequence, max_len: 50, padding: pre,
           share_embedding: brand}
        - {name: btag_his, active: True, dtype: str, splitter: ^, type: sequence, max_len: 50, padding: pre,
           share_embedding: btag}
    label_col: {name: clk, dtype: float}
"""
TUNER = """
base_config: ../config/
base_expid: DIN_default
dataset_id: taobaoad_x1
dataset_config:
{block}
tuner_space:
    din_target_field: [!!python/tuple [cate_id, brand, btag]]
    din_sequence_field: [!!python/tuple [cate_his, brand_his, btag_his]]
    group_id: group_id
    max_len: 7
    embedding_regularizer: [1.e-6, 5.e-6]
"""
TAOBAO_HEADER = "clk,btag_his,cate_his,brand_his,userid,cms_segid,adgroup_id,cate_id,campaign_id,brand,price,pid,btag\n"
TAOBAO_TRAIN = """\
0,1^4,11^12,21^22,u1,5,a1,11,c1,21,3.5,p1,1
1,1^4,11^12,21^22,u1,5,a2,12,c2,22,,p2,1
0,,,,u2,6,a1,11,c1,21,3.5,p2,1
"""
TAOBAO_TEST = "1,1,11,21,u2,6,a2,12,c2,22,9,p1,1\n"

KUAIVIDEO = """
kuaivideo_x1:
    data_root: ../data/KuaiShou/
    data_format: csv
    train_data: ../data/KuaiShou/KuaiVideo_x1/train.csv
    valid_data: ../data/KuaiShou/KuaiVideo_x1/test.csv # no validation data split in original paper
    test_data: ../data/KuaiShou/KuaiVideo_x1/test.csv
    min_categr_count: 10
    feature_cols:
        - {name: group_id, active: True, dtype: int, type: meta, preprocess: "copy_from(user_id)", remap: False}
        - {name: user_id, active: True, dtype: str, type: categorical}
        - {name: item_id, active: True, dtype: str, type: categorical}
        - {name: item_emb, active: True, dtype: str, type: categorical, embedding_dim: 64,
           preprocess: "copy_from(item_id)", min_categr_count: 1,
           pretrained_emb: "../data/KuaiShou/KuaiVideo_x1/item_visual_emb_dim64.h5"}
        - {name: pos_items, active: True, dtype: str, type: sequence, splitter: ^, max_len: 3, padding: pre,
           share_embedding: item_id}
        - {name: neg_items, active: True, dtype: str, type: sequence, splitter: ^, max_len: 3, padding: pre,
           share_embedding: item_id}
        - {name: pos_items_emb, active: True, dtype: str, type: sequence, splitter: ^, max_len: 3, padding: pre,
           embedding_dim: 64, share_embedding: item_emb, preprocess: "copy_from(pos_items)"}
    label_col: {name: is_click, dtype: float}
"""
KUAIVIDEO_HEADER = "timestamp,user_id,item_id,is_click,is_like,is_follow,pos_items,neg_items\n"

LONGCTR = """
KuaiVideo_x2:
    data_root: ./data/
    data_format: parquet
    train_data: ./data/KuaiVideo_x2/train.parquet
    valid_data: ./data/KuaiVideo_x2/valid.parquet
    test_data: ./data/KuaiVideo_x2/test.parquet
    user_info: ./data/KuaiVideo_x2/user_info.parquet
    item_info: ./data/KuaiVideo_x2/item_info.parquet
    rebuild_dataset: False
    feature_cols:
        - {name: user_index, active: True, dtype: int, type: meta}
        - {name: item_index, active: True, dtype: int, type: meta}
        - {name: seq_len, active: True, dtype: int, type: meta}
        - {name: item_id, active: True, dtype: int, type: categorical, vocab_size: 101790, source: item}
        - {name: tag, active: True, dtype: str, type: sequence, max_len: 3, vocab_size: 59, source: item}
        - {name: image_emb_dim64, active: True, dtype: float, type: embedding, source: item,
           embedding_dim: 64, feature_encoder: "nn.Identity()"}
        - {name: [tab, degree], active: True, dtype: str, type: categorical, vocab_size: 9}
    label_col: {name: is_click, dtype: float}
"""


def write_taobao(folder: Path, config: str = TAOBAO, train: str = TAOBAO_TRAIN) -> Path:
    data = folder / "data/Taobao/TaobaoAd_x1"
    data.mkdir(parents=True)
    (data / "train.csv").write_text(TAOBAO_HEADER + train)
    (data / "test.csv").write_text(TAOBAO_HEADER + TAOBAO_TEST)
    (folder / "config").mkdir()
    (folder / "config/dataset_config.yaml").write_text(config)
    return folder / "config/dataset_config.yaml"


def write_kuaivideo(folder: Path, train: str, config: str = KUAIVIDEO) -> Path:
    data = folder / "data/KuaiShou/KuaiVideo_x1"
    data.mkdir(parents=True)
    (data / "train.csv").write_text(KUAIVIDEO_HEADER + train)
    (data / "test.csv").write_text(KUAIVIDEO_HEADER + "9,u1,i2,1,0,0,i1^i2,\n")
    (folder / "config").mkdir()
    (folder / "config/dataset_config.yaml").write_text(config)
    return folder / "config/dataset_config.yaml"


def write_longctr(folder: Path) -> Path:
    data = folder / "data/KuaiVideo_x2"
    data.mkdir(parents=True)
    users = pl.DataFrame({"full_item_seq": [[1, 2, 3, 2], [3, 1]]})
    items = pl.DataFrame(
        {
            "item_index": [0, 1, 2, 3],
            "item_id": [0, 71, 72, 73],
            "tag": [[0, 0, 0], [4, 5, 0], [4, 0, 0], [0, 0, 0]],
            "image_emb_dim64": [[0.0] * 4, [0.1] * 4, [0.2] * 4, [0.3] * 4],
        }
    )
    users.write_parquet(data / "user_info.parquet")
    items.write_parquet(data / "item_info.parquet")
    rows = {
        "train": [(0, 1, 0, 1.0, 1, 3), (0, 2, 1, 0.0, 2, 3), (1, 3, 0, 0.0, 1, 4), (1, 2, 1, 1.0, 3, 4)],
        "valid": [(0, 3, 2, 1.0, 1, 3)],
        "test": [(0, 2, 3, 0.0, 1, 3), (1, 1, 1, 1.0, 2, 4)],
    }
    names = ["user_index", "item_index", "seq_len", "is_click", "tab", "degree"]
    for part, table in rows.items():
        pl.DataFrame(table, schema=names, orient="row").write_parquet(data / f"{part}.parquet")
    (folder / "dataset_config.yaml").write_text(LONGCTR)
    return folder / "dataset_config.yaml"


def collected(raw: RawLog) -> pl.DataFrame:
    return pl.concat([batch for file in raw.events for batch in file.batches()])


def roles(raw: RawLog) -> dict[str, list[str]]:
    return {role.value: sorted(feature.name for feature in raw.schema.with_role(role)) for role in Role}


def refused(read: Callable[[], RawLog], kind: type[LimerankError] = DataError) -> str:
    with pytest.raises(kind) as caught:
        read()
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_the_block_of_the_public_leaderboard(tmp_path: Path) -> None:
    raw = read_fuxictr(write_taobao(tmp_path))
    assert roles(raw) == {
        "item": ["adgroup_id", "brand", "campaign_id", "cate_id", "price"],
        "event": ["btag"],
        "user": ["cms_segid", "userid"],
        "context": ["pid"],
    }
    assert (raw.schema.user_id, raw.schema.item_id, raw.schema.time) == ("userid", "adgroup_id", None)
    assert raw.schema.histories is not None
    assert raw.schema.histories.items == {"cate_id": "cate_his", "brand": "brand_his"}
    assert raw.schema.histories.events == {"btag": "btag_his"}
    assert raw.schema.max_history == 50
    kinds = {feature.name: (feature.kind, feature.minimum_count) for feature in raw.schema.features}
    assert kinds["price"] == (Kind.CONTINUOUS, 1)
    assert kinds["cate_id"] == (Kind.CATEGORICAL, 10)
    table = collected(raw)
    assert table["__part"].to_list() == ["train", "train", "train", "test"]
    assert table["cate_his"].to_list() == [["11", "12"], ["11", "12"], [], ["11"]]
    assert table["price"].to_list() == ["3.5", None, "3.5", "9"]


def test_notes_say_what_was_understood_and_ignored(tmp_path: Path) -> None:
    notes = "\n".join(read_fuxictr(write_taobao(tmp_path)).notes)
    assert "user id: column 'userid'" in notes
    assert "item id: column 'adgroup_id'" in notes
    assert "valid_data is test_data: this configuration selects on the test set; unless --select-on-test 10 %" in notes
    assert "'cate_id' is an item feature and 'cate_his' its history" in notes
    assert "'btag' is the same in all training rows" in notes
    assert "user features, because they never change for a user: cms_segid" in notes
    assert "item features, because they never change for an item: campaign_id, price" in notes
    assert "context features, because they change for users and for items: pid" in notes
    assert "'price' is cut into buckets at quantiles" in notes


def test_the_validation_part(tmp_path: Path) -> None:
    config = write_taobao(tmp_path)
    split = read_fuxictr(config).schema.split
    assert isinstance(split, ByColumn)
    assert (split.train, split.validation, split.test) == (("train",), (), ("test",))
    data = tmp_path / "data/Taobao/TaobaoAd_x1"
    (data / "valid.csv").write_text(TAOBAO_HEADER + TAOBAO_TEST)
    config.write_text(
        TAOBAO.replace("valid_data: ../data/Taobao/TaobaoAd_x1/test", "valid_data: ../data/Taobao/TaobaoAd_x1/valid")
    )
    raw = read_fuxictr(config)
    assert isinstance(raw.schema.split, ByColumn)
    assert raw.schema.split.validation == ("valid",)
    assert [Path(file.name).name for file in raw.events] == ["train.csv", "valid.csv", "test.csv"]
    config.write_text("".join(line for line in TAOBAO.splitlines(keepends=True) if "test_data" not in line))
    raw = read_fuxictr(config)
    assert "no test_data: valid_data is the test part" in "\n".join(raw.notes)
    assert collected(raw)["__part"].to_list()[-1] == "test"


def test_tuner_file_with_python_tuples(tmp_path: Path) -> None:
    indented = "\n".join("    " + line for line in TAOBAO.strip().splitlines())
    config = write_taobao(tmp_path, TUNER.replace("{block}", indented))
    raw = read_fuxictr(config)
    assert raw.origin["dataset_id"] == "taobaoad_x1"
    assert raw.schema.max_history == 50


def test_other_python_tags_are_refused(tmp_path: Path) -> None:
    harmful = TAOBAO + "\nextra: !!python/object/apply:os.system ['touch harmed']\n"
    message = refused(lambda: read_fuxictr(write_taobao(tmp_path, harmful)))
    assert "dataset_config.yaml, line 22: not valid YAML" in message
    assert "only !!python/tuple is read, nothing is ever executed" in message


def test_old_and_misspelt_keys(tmp_path: Path) -> None:
    config = write_taobao(tmp_path)
    old = TAOBAO.replace(
        "dtype: str, type: categorical}", 'dtype: str, type: categorical, na_value: "5", encoder: null}'
    )
    config.write_text(old)
    raw = read_fuxictr(config)
    assert sum("'na_value' is read as 'fill_na'" in note for note in raw.notes) == 1
    assert sum("'encoder' is read as 'feature_encoder'" in note for note in raw.notes) == 1
    assert collected(raw)["cms_segid"].to_list() == [None, None, "6", "6"]
    config.write_text(TAOBAO.replace("share_embedding: brand", "share_embeding: brand"))
    message = refused(lambda: read_fuxictr(config))
    assert "column 'brand_his' has an unknown key 'share_embeding'; did you mean 'share_embedding'?" in message
    config.write_text(TAOBAO.replace("train_data", "train_dat"))
    assert "unknown key 'train_dat'; did you mean 'train_data'?" in refused(lambda: read_fuxictr(config))
    config.write_text(TAOBAO.replace("type: numeric", "type: number"))
    assert "column 'price': key 'type'" in refused(lambda: read_fuxictr(config))
    config.write_text(TAOBAO.replace("min_categr_count", "zookeeper: 3\n    min_categr_count"))
    assert "dataset: key 'zookeeper' is ignored" in "\n".join(read_fuxictr(config).notes)
    config.write_text(TAOBAO.replace("dtype: float, type: numeric", "type: numeric, fill_na: 1.5"))
    assert collected(read_fuxictr(config))["price"].to_list() == ["3.5", "1.5", "3.5", "9"]


def test_code_in_a_configuration_is_never_run(tmp_path: Path) -> None:
    config = write_taobao(tmp_path, TAOBAO.replace("type: numeric", 'type: numeric, preprocess: "convert_price"'))
    assert "preprocess 'convert_price' is Python code" in refused(lambda: read_fuxictr(config))


def test_data_files_are_found_or_named(tmp_path: Path) -> None:
    config = write_taobao(tmp_path)
    elsewhere = tmp_path / "elsewhere/config/dataset_config.yaml"
    elsewhere.parent.mkdir(parents=True)
    elsewhere.write_text(TAOBAO)
    message = refused(lambda: read_fuxictr(elsewhere))
    assert "dataset 'taobaoad_x1': train_data '../data/Taobao/TaobaoAd_x1/train.csv' is not there" in message
    assert "or pass --data-root" in message
    for root in ("data", "data/Taobao", "data/Taobao/TaobaoAd_x1"):
        assert collected(read_fuxictr(elsewhere, data_root=tmp_path / root)).height == 4
    (tmp_path / "data/Taobao/TaobaoAd_x1/train.csv").write_text(TAOBAO_HEADER.replace("pid", "pidd") + TAOBAO_TRAIN)
    message = refused(lambda: read_fuxictr(config))
    assert "train.csv: column 'pid' is missing; did you mean 'pidd'?" in message


def test_which_dataset(tmp_path: Path) -> None:
    config = write_taobao(tmp_path)
    config.write_text(TAOBAO + TAOBAO.replace("taobaoad_x1:", "other_x1:"))
    message = refused(lambda: read_fuxictr(config), UsageError)
    assert "has several datasets; choose one with --dataset-id: taobaoad_x1, other_x1" in message
    assert read_fuxictr(config, "other_x1").origin["dataset_id"] == "other_x1"
    assert "did you mean 'other_x1'" in refused(lambda: read_fuxictr(config, "othr_x1"), UsageError)
    assert read_fuxictr(config.parent, "other_x1").origin["dataset_id"] == "other_x1"
    assert "no such file" in refused(lambda: read_fuxictr(tmp_path / "nowhere.yaml"))


def test_ids_can_be_named(tmp_path: Path) -> None:
    config = write_taobao(tmp_path, TAOBAO.replace("adgroup_id", "thing"))
    data = tmp_path / "data/Taobao/TaobaoAd_x1"
    for file in data.iterdir():
        file.write_text(file.read_text().replace("adgroup_id", "thing"))
    message = refused(lambda: read_fuxictr(config), UsageError)
    assert "which column is the item id? pass --item-id; columns: brand, btag, campaign_id" in message
    assert read_fuxictr(config, choices=Choices(item_id="thing")).schema.item_id == "thing"
    assert "did you mean 'thing'" in refused(lambda: read_fuxictr(config, choices=Choices(item_id="thin")), UsageError)


def test_kuaivideo_has_one_history_of_item_ids(tmp_path: Path) -> None:
    train = "1,u1,i1,0,0,0,i1^i2^i3^i4,i9\n2,u2,i2,1,0,0,,\n"
    raw = read_fuxictr(write_kuaivideo(tmp_path, train))
    assert raw.schema.histories is not None
    assert raw.schema.histories.item_ids == "pos_items"
    assert raw.schema.max_history == 3
    assert roles(raw) == {"item": ["item_id"], "event": [], "user": ["user_id"], "context": []}
    ignored = [note for note in raw.notes if note.startswith("ignored")]
    assert any("'neg_items': 'pos_items' is the history of 'item_id' already" in note for note in ignored)
    assert any("'item_emb': it is a copy of 'item_id' for a pretrained embedding" in note for note in ignored)
    assert any("'pos_items_emb': it is a copy of 'pos_items'" in note for note in ignored)
    assert collected(raw)["pos_items"].to_list() == [["i1", "i2", "i3", "i4"], [], ["i1", "i2"]]


def test_padding_says_which_end_of_a_long_history_is_kept(tmp_path: Path) -> None:
    train = "1,u1,i1,0,0,0,i1^i2^i3^i4,i9\n2,u2,i2,1,0,0,,\n"
    raw = read_fuxictr(write_kuaivideo(tmp_path, train, KUAIVIDEO.replace("padding: pre", "padding: post")))
    assert collected(raw)["pos_items"].to_list() == [["i1", "i2", "i3"], [], ["i1", "i2"]]
    assert any("padding is post: of longer histories the first 3 events are kept" in note for note in raw.notes)
    shorter = read_fuxictr(tmp_path / "config", choices=Choices(max_history=2))
    assert shorter.schema.max_history == 2


def test_without_a_history_there_is_a_clear_error(tmp_path: Path) -> None:
    config = write_taobao(tmp_path, TAOBAO.replace("active: True, dtype: str, splitter", "active: False, splitter"))
    assert "no history: no sequence shares its embedding" in refused(lambda: read_fuxictr(config))


def test_longctr_layout(tmp_path: Path) -> None:
    raw = read_fuxictr(write_longctr(tmp_path))
    assert (raw.schema.user_id, raw.schema.item_id) == ("user_index", "item_index")
    assert raw.schema.histories is not None
    assert (raw.schema.histories.item_ids, raw.schema.histories.length) == ("full_item_seq", "seq_len")
    assert roles(raw) == {
        "item": ["image_emb_dim64", "item_id", "tag"],
        "event": [],
        "user": ["degree"],
        "context": ["tab"],
    }
    assert raw.items is not None
    assert raw.users is not None
    assert raw.items["item_index"].to_list() == [1, 2, 3], "row 0 is padding"
    assert raw.items["item_id"].to_list() == ["71", "72", "73"]
    assert raw.items["tag"].to_list() == [["4", "5"], ["4"], []]
    assert raw.items["image_emb_dim64"].to_list()[0] == [0.1] * 4
    assert raw.users["user_index"].to_list() == [0, 1]
    assert raw.users["full_item_seq"].to_list() == [[1, 2, 3, 2], [3, 1]]
    assert isinstance(raw.schema.split, ByColumn)
    assert raw.schema.split.validation == ("valid",)
    assert raw.origin["layout"] == "longctr"


def test_longctr_rows_are_addressed_by_number(tmp_path: Path) -> None:
    config = write_longctr(tmp_path)
    items = tmp_path / "data/KuaiVideo_x2/item_info.parquet"
    pl.read_parquet(items).reverse().write_parquet(items)
    message = refused(lambda: read_fuxictr(config))
    assert "item_info.parquet: row 0 has item_index 3; rows are addressed by their number" in message
    config.write_text("".join(line for line in LONGCTR.splitlines(keepends=True) if "user_info" not in line))
    assert "user_info is missing" in refused(lambda: read_fuxictr(config))


FEATURE_MAP: dict[str, Any] = {
    "dataset_id": "tiny_seq", "num_fields": 5, "total_features": 40, "input_length": 12, "labels": ["clk"],
    "features": [
        {"userid": {"source": "", "type": "categorical", "padding_idx": 0, "vocab_size": 9}},
        {"adgroup_id": {"source": "", "type": "categorical", "padding_idx": 0, "vocab_size": 9}},
        {"cate_id": {"source": "", "type": "categorical", "padding_idx": 0, "vocab_size": 9, "oov_idx": 8}},
        {"brand": {"source": "", "type": "categorical", "padding_idx": 0, "vocab_size": 9}},
        {"cate_his": {"source": "", "type": "sequence", "feature_encoder": None, "share_embedding": "cate_id",
                      "padding_idx": 0, "max_len": 4, "vocab_size": 9}},
        {"brand_his": {"source": "", "type": "sequence", "feature_encoder": None, "share_embedding": "brand",
                       "padding_idx": 0, "max_len": 4, "vocab_size": 9}},
    ],
}  # fmt: skip


def padded_arrays(side: str) -> dict[str, Any]:
    """As FuxiCTR saves them: int64 scalars, int32 sequences, float64 labels; the second brand is missing."""
    cates, brands = [[3, 4], [5, 3, 6, 7], []], [[7, 0], [8, 7, 8, 7], []]

    def pad(rows: list[list[int]]) -> Any:
        full = [[0] * (4 - len(row)) + row if side == "pre" else row + [0] * (4 - len(row)) for row in rows]
        return np.array(full, dtype=np.int32)

    return {
        "userid": np.array([1, 1, 2]), "adgroup_id": np.array([1, 2, 1]), "cate_id": np.array([3, 4, 3]),
        "brand": np.array([7, 0, 7]), "cate_his": pad(cates), "brand_his": pad(brands),
        "clk": np.array([0.0, 1.0, 0.0]),
    }  # fmt: skip


@pytest.mark.parametrize("side", ["pre", "post"])
@pytest.mark.parametrize("data_format", ["npz", "parquet"])
def test_processed_data_with_its_feature_map(tmp_path: Path, side: str, data_format: str) -> None:
    (tmp_path / "feature_map.json").write_text(json.dumps(FEATURE_MAP))
    arrays = padded_arrays(side)
    for part in ("train", "test"):
        if data_format == "npz":
            np.savez(tmp_path / f"{part}.npz", **arrays)
        else:
            columns = {name: values.tolist() for name, values in arrays.items()}
            pl.DataFrame(columns).write_parquet(tmp_path / f"{part}.parquet")
    raw = read_fuxictr(tmp_path)
    table = collected(raw)
    assert table["cate_his"].to_list()[:3] == [["3", "4"], ["5", "3", "6", "7"], []]
    assert table["brand_his"].to_list()[:3] == [["7", ""], ["8", "7", "8", "7"], []], "a missing value keeps its place"
    assert table["brand"].to_list()[:3] == ["7", None, "7"]
    assert {feature.minimum_count for feature in raw.schema.features} == {1}
    assert raw.origin["processed"] is True
    assert any("0 is read as missing" in note for note in raw.notes)
    assert any("all rare users share one" in note for note in raw.notes)
    assert read_fuxictr(tmp_path / "feature_map.json").schema == raw.schema


@pytest.mark.parametrize("data_format", ["npz", "csv"])
def test_small_batches_give_the_same_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data_format: str) -> None:
    """What is constant per user or item is found across batches, and npz rows are cut at the right places."""
    if data_format == "npz":
        (tmp_path / "feature_map.json").write_text(json.dumps(FEATURE_MAP))
        for part in ("train", "test"):
            np.savez(tmp_path / f"{part}.npz", **padded_arrays("pre"))
        config = tmp_path
    else:
        config = write_taobao(tmp_path)
    at_once = read_fuxictr(config)
    table = collected(at_once)
    monkeypatch.setattr(fuxictr_files, "ROWS_PER_BATCH", 1)
    in_pieces = read_fuxictr(config)
    assert len([batch for file in in_pieces.events for batch in file.batches()]) > 2
    assert in_pieces.schema == at_once.schema
    assert collected(in_pieces).equals(table)


def test_a_configuration_without_columns_uses_the_feature_map_beside_the_data(tmp_path: Path) -> None:
    data = tmp_path / "data/tiny_seq"
    data.mkdir(parents=True)
    (data / "feature_map.json").write_text(json.dumps(FEATURE_MAP))
    for part in ("train", "valid", "test"):
        np.savez_compressed(data / f"{part}.npz", **padded_arrays("pre"))
    config = tmp_path / "dataset_config.yaml"
    paths = "".join(f"    {part}_data: ./data/tiny_seq/{part}.npz\n" for part in ("train", "valid", "test"))
    config.write_text(f"tiny_seq:\n    data_root: ./data/\n    data_format: npz\n{paths}")
    raw = read_fuxictr(config)
    assert collected(raw).height == 9
    assert [task.name for task in raw.schema.tasks] == ["clk"]
    (data / "feature_map.json").unlink()
    assert "no feature_cols, and no feature_map.json beside the data" in refused(lambda: read_fuxictr(config))


def test_damaged_npz_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "feature_map.json").write_text(json.dumps(FEATURE_MAP))
    arrays = padded_arrays("pre")
    np.savez(tmp_path / "test.npz", **arrays)
    np.savez(tmp_path / "train.npz", **{**arrays, "clk": np.zeros(2)})
    assert "train.npz: its arrays have different lengths" in refused(lambda: read_fuxictr(tmp_path))
    np.savez(tmp_path / "train.npz", **{**arrays, "clk": np.array(["a", "b", "c"])})
    assert "train.npz: array 'clk' holds <U1, not numbers" in refused(lambda: read_fuxictr(tmp_path))
    np.savez(tmp_path / "train.npz", **{**arrays, "clk": np.array([None, 1, 2], dtype=object)})
    assert "train.npz: array 'clk' holds object" in refused(lambda: read_fuxictr(tmp_path))
    (tmp_path / "train.npz").write_bytes(b"PK nothing")
    assert "train.npz: cannot be read as .npz" in refused(lambda: read_fuxictr(tmp_path))
    (tmp_path / "train.npz").unlink()
    assert "no train.parquet or train.npz beside it" in refused(lambda: read_fuxictr(tmp_path))


def test_formats_that_are_not_read_are_said(tmp_path: Path) -> None:
    config = write_taobao(tmp_path, TAOBAO.replace("data_format: csv", "data_format: h5"))
    assert "data_format 'h5' is not read; convert the data to csv, parquet or npz" in refused(
        lambda: read_fuxictr(config)
    )


def selecting_on_test(raw: RawLog) -> RawLog:
    """All training rows train, so that small vocabularies are whole."""
    split = raw.schema.split.model_copy(update={"select_on_test": True})
    return replace(raw, schema=raw.schema.model_copy(update={"split": split}))


def test_prepared_from_the_leaderboards_block(tmp_path: Path) -> None:
    raw = read_fuxictr(write_taobao(tmp_path, TAOBAO.replace("count: 10", "count: 1")))
    dataset = prepare(selecting_on_test(raw), tmp_path / "out")
    both = (("11", "21", "1"), ("12", "22", "4"))
    assert decoded_rows(dataset, ("cate_id", "brand")) == [
        (0, "u1", both, "a1", 0),
        (0, "u1", both, "a2", 1),
        (0, "u2", (), "a1", 0),
        (2, "u2", (("11", "21", "1"),), "a2", 1),
    ]
    assert dataset.manifest.origin["source"] == "fuxictr"


def test_prepared_from_longctr(tmp_path: Path) -> None:
    """The history of a row is the beginning of its user's full sequence, as long as seq_len says."""
    dataset = prepare(read_fuxictr(write_longctr(tmp_path)), tmp_path / "out")
    assert decoded_rows(dataset) == [
        (0, "0", (), "1", 1),
        (0, "0", (("1",),), "2", 0),
        (0, "1", (), "3", 0),
        (0, "1", (("3",),), "2", 1),
        (1, "0", (("1",), ("2",)), "3", 1),
        (2, "0", (("1",), ("2",), ("3",)), "2", 0),
        (2, "1", (("3",),), "1", 1),
    ]
    row_of = {item: row for row, item in enumerate(dataset.item_ids.to_list())}
    assert dataset.item_table.vectors[0][row_of["2"]].tolist() == pytest.approx([0.2] * 4)
    tags = dataset.item_table.lists[0]
    assert int(tags.offsets[row_of["1"] + 1] - tags.offsets[row_of["1"]]) == 2


@pytest.mark.parametrize("side", ["pre", "post"])
def test_prepared_from_npz(tmp_path: Path, side: str) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/feature_map.json").write_text(json.dumps(FEATURE_MAP))
    for part in ("train", "valid", "test"):
        np.savez(tmp_path / f"raw/{part}.npz", **padded_arrays(side))
    dataset = prepare(read_fuxictr(tmp_path / "raw"), tmp_path / "out")
    train = [row for row in decoded_rows(dataset, ("cate_id", "brand")) if row.part == 0]
    assert train == [
        (0, "1", (("3", "7"), ("4", "unknown")), "1", 0),
        (0, "1", (("5", "8"), ("3", "7"), ("6", "8"), ("7", "7")), "2", 1),
        (0, "2", (), "1", 0),
    ]


def test_prepared_from_histories_of_item_ids(tmp_path: Path) -> None:
    train = "".join(f"{k},u{k % 3},i{k % 4},{k % 2},0,0,i0^i1^i2^i7,\n" for k in range(60))
    dataset = prepare(read_fuxictr(write_kuaivideo(tmp_path, train)), tmp_path / "out")
    histories = {row.history for row in decoded_rows(dataset) if row.part == 0}
    assert histories == {(("i1",), ("i2",), ("i7",))}, "the last 3, and items that are only in histories are items too"


def test_the_command(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from limerank.cli import app

    config = write_longctr(tmp_path)
    arguments = ["prepare", "fuxictr", "--config", str(config), "--out", str(tmp_path / "out"), "--max-history", "2"]
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert facts["events"] == 7
    assert "labels: is_click" in facts["notes"]
    assert StoredDataset.open(tmp_path / "out").schema.max_history == 2
