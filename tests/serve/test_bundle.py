"""Bundles: whole or not at all, verified, tied to their weights; activation, rollback, collection."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from forging import bundle_folder, rehash
from safetensors.torch import load_file, save_file

from limerank import files
from limerank.api.run import Run
from limerank.data.store.dataset import StoredDataset
from limerank.errors import BundleError, ConflictError, UnavailableError
from limerank.models import build_ranker
from limerank.progress import Progress
from limerank.serve.bundles.bundle import NEWER_OF_ALL, NEWER_OPTIONS, Bundle, tensors_of
from limerank.serve.bundles.offline import RowType, export
from limerank.serve.bundles.store import BundleStore
from limerank.serve.engine import Engine

QUIET = Progress(quiet=True)


@pytest.fixture
def copy(store: Path, tmp_path: Path) -> Path:
    """A store of one's own, to damage."""
    shutil.copytree(store, tmp_path / "store")
    return tmp_path / "store"


def names(store: Path) -> list[str]:
    return sorted(record.path for record in BundleStore(store).open_bundle().manifest.files)


def test_a_bundle_holds_nothing_executable(store: Path) -> None:
    assert {Path(name).suffix for name in names(store)} == {".safetensors", ".json", ".html"}


@pytest.mark.parametrize("damage", ["missing", "empty", "short", "long", "flipped"])
def test_every_damaged_file_is_refused_and_named(copy: Path, damage: str) -> None:
    for name in names(copy):
        path = bundle_folder(copy) / name
        content = path.read_bytes()
        if damage == "missing":
            path.unlink()
        else:
            middle = len(content) // 2
            flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
            path.write_bytes({"empty": b"", "short": content[:-1], "long": content + b"x", "flipped": flipped}[damage])
        with pytest.raises(BundleError) as caught:
            Engine.open(copy)
        message = str(caught.value)
        assert f"{path}:" in message
        assert "export the run again" in message
        assert "\n" not in message
        path.write_bytes(content)
    Engine.open(copy)


def test_a_manifest_that_is_not_one(copy: Path) -> None:
    path = bundle_folder(copy) / "manifest.json"
    for text, reason in (("{", "not valid JSON"), ("[]", "key 'format'"), ('{"format": "other"}', "key 'format'")):
        path.write_text(text)
        with pytest.raises(BundleError, match=reason):
            Engine.open(copy)


def test_rows_of_other_weights_are_refused_even_with_right_hashes(
    runs: dict[str, Run], copy: Path, tmp_path: Path
) -> None:
    """Rows of one training of the same ranker never serve with the weights of another."""
    folder = bundle_folder(copy)
    weights = load_file(folder / "model.safetensors")
    weights["links.embeddings"] = weights["links.embeddings"] + 0.1
    save_file(weights, folder / "model.safetensors")
    rehash(folder)
    with pytest.raises(BundleError, match="rows.safetensors: rows were made by other weights"):
        Engine.open(copy)


def test_user_side_weights_may_change_without_new_rows(copy: Path) -> None:
    """The fingerprint covers exactly what rows depend on; the rest can be retrained."""
    folder = bundle_folder(copy)
    weights = load_file(folder / "model.safetensors")
    weights["link_values.linear.bias"] = weights["link_values.linear.bias"] + 0.1
    save_file(weights, folder / "model.safetensors")
    rehash(folder)
    Engine.open(copy)


def test_too_few_rows_are_refused(copy: Path) -> None:
    folder = bundle_folder(copy)
    bundle = Bundle.open(folder)
    rows = {"rows": bundle.rows.rows[:-1].clone(), "head_part": bundle.rows.head_part[:-1].clone()}
    save_file(rows, folder / "rows.safetensors", {"fingerprint": bundle.manifest.row_fingerprint})
    rehash(folder)
    with pytest.raises(BundleError, match="rows.safetensors: 'rows' is \\(200, 128\\), should be \\(201, 128\\)"):
        Bundle.open(folder)


def test_rows_of_another_width_are_refused(copy: Path) -> None:
    folder = bundle_folder(copy)
    bundle = Bundle.open(folder)
    rows = {"rows": bundle.rows.rows[:, :-4].clone(), "head_part": bundle.rows.head_part.clone()}
    save_file(rows, folder / "rows.safetensors", {"fingerprint": bundle.manifest.row_fingerprint})
    rehash(folder)
    with pytest.raises(BundleError, match=r"rows.safetensors: 'rows' is \(201, 124\), should be \(201, 128\)"):
        Bundle.open(folder)


def test_a_manifest_that_lists_other_files_is_refused(copy: Path) -> None:
    """Dropping a file from the list would switch its verification off."""
    folder = bundle_folder(copy)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"] = [record for record in manifest["files"] if record["path"] != "histories.safetensors"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match="key 'files' does not list the files of a bundle"):
        Bundle.open(folder)


def test_an_engine_keeps_the_bundle_it_opened(copy: Path) -> None:
    engine = Engine.open(copy)
    before = engine.answer("u1")
    shutil.rmtree(copy)
    assert engine.answer("u1").item_ids == before.item_ids


def test_a_stray_folder_and_a_broken_record_are_reported(copy: Path) -> None:
    good = BundleStore(copy).current_id()
    (copy / "bundles" / "stray").mkdir()
    listed = BundleStore(copy).manifests()
    assert good in listed
    assert isinstance(listed["stray"], BundleError)
    (copy / "ACTIVE.json").write_bytes(b"\xff\x00")
    with pytest.raises(BundleError, match="ACTIVE.json: not valid JSON"):
        Engine.open(copy)


def test_weights_of_another_ranker_are_refused(runs: dict[str, Run], copy: Path) -> None:
    folder = bundle_folder(copy)
    shutil.copy(runs["mha"].path / "model.safetensors", folder / "model.safetensors")
    rehash(folder)
    with pytest.raises(BundleError, match="model.safetensors: weights do not fit model 'lime-mha'"):
        Bundle.open(folder)


def test_activate_roll_back_and_collect(runs: dict[str, Run], tmp_path: Path) -> None:
    store = BundleStore(tmp_path / "store")
    ids = []
    for name in ("lime-mha", "mha", "ttsn"):
        ids.append(runs[name].publish(store.path, quiet=True).manifest.id)
    assert (store.current_id(), store.previous_id()) == (ids[2], ids[1])
    store.roll_back()
    assert (store.current_id(), store.previous_id()) == (ids[1], ids[2])
    store.activate(ids[1])
    assert store.previous_id() == ids[2]
    dead = subprocess.Popen(["true"])
    dead.wait()
    leftover, working = (f"x{files.STAGING_MARK}{pid}" for pid in (dead.pid, os.getppid()))
    for name in (leftover, working):
        (store.path / "bundles" / name).mkdir()
    assert store.ids() == ids
    assert set(store.collect(keep=1)) == {ids[0], leftover}
    assert (store.path / "bundles" / working).exists()
    assert set(store.ids()) == {ids[1], ids[2]}


def test_a_bundle_that_fails_verification_does_not_become_active(runs: dict[str, Run], tmp_path: Path) -> None:
    store = BundleStore(tmp_path / "store")
    good = runs["ttsn"].publish(store.path, quiet=True).manifest.id
    bad = runs["mha"].publish(store.path, activate=False, quiet=True).manifest.id
    path = store.path / "bundles" / bad / "rows.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BundleError, match="rows.safetensors"):
        store.activate(bad)
    assert store.current_id() == good


def test_stores_and_bundles_that_are_not_there(store: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="no bundle store here; make one with"):
        BundleStore.open(tmp_path)
    opened = BundleStore.open(store)
    with pytest.raises(BundleError, match="no bundle 'nope'"):
        opened.open_bundle("nope")
    with pytest.raises(BundleError, match="no bundle '../bundles"):
        opened.open_bundle(f"../bundles/{opened.current_id()}")
    with pytest.raises(ConflictError, match="no previous bundle"):
        opened.roll_back()


def test_an_export_on_a_full_disk_publishes_nothing(
    runs: dict[str, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Item rows that were finished are kept for the next try (test_export.py); before that nothing is."""

    def disk_full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("limerank.serve.bundles.offline.files.write_json", disk_full)
    with pytest.raises(UnavailableError, match="no room left"):
        runs["ttsn"].publish(tmp_path / "store", quiet=True)
    store = BundleStore(tmp_path / "store")
    assert (store.ids(), store.current_id()) == ([], None)
    (left,) = (store.path / "bundles").iterdir()
    assert store.collect(keep=1) == [left.name]
    monkeypatch.setattr("limerank.serve.bundles.offline.save_file", disk_full)
    with pytest.raises(UnavailableError, match="no room left"):
        runs["ttsn"].publish(tmp_path / "store", quiet=True)
    assert list((tmp_path / "store" / "bundles").iterdir()) == []


def test_rows_are_weights_and_head_part(runs: dict[str, Run], store: Path) -> None:
    """H * l attention weights that sum to one per head, and the head's first layer, in half precision."""
    bundle = BundleStore(store).open_bundle()
    options = bundle.ranker.options
    links, heads = options.links, options.heads  # type: ignore[attr-defined]
    assert bundle.rows.rows.shape == (201, heads * links)
    assert bundle.rows.head_part.shape == (201, options.head[0])
    sums = bundle.rows.rows.float().view(201, heads, links).sum(-1)
    torch.testing.assert_close(sums, torch.ones_like(sums), atol=2e-3, rtol=0)
    assert bundle.manifest.row_bytes == 2 * (heads * links + options.head[0])


@pytest.mark.parametrize("row_type", ["fp16", "u8"])
def test_a_bundle_of_format_3_opens_and_ranks_the_same(
    dataset: StoredDataset, tmp_path: Path, row_type: RowType
) -> None:
    """There head parts are `share`, select_from is `pool`, towers have no shortcut; no newer option has a name."""
    torch.manual_seed(0)
    model = {"name": "lime-mha", "links": 4, "select_from": 6, "tower_shortcut": False}
    ranker = build_ranker(model, dataset.encoders.space(), len(dataset.schema.tasks), "test")
    bundle = export(ranker, model, dataset, tmp_path, max_history=20, row_type=row_type)
    expected = Engine(bundle).answer("u3", limit=20)
    options = {"pool" if k == "select_from" else k: v for k, v in ranker.options.model_dump(mode="json").items()}
    for newer in (*NEWER_OF_ALL, *NEWER_OPTIONS["lime-mha"]):
        del options[newer]
    tensors = ranker.item_side_parameters() | {f"items.{n}": t for n, t in tensors_of(dataset.item_table).items()}
    parts: list[str | bytes] = [ranker.name, json.dumps(options, separators=(",", ":"))]
    for name in sorted(tensors):
        parts += [name, str(tuple(tensors[name].shape)), tensors[name].detach().numpy().tobytes()]
    fingerprint = files.digest_of(*parts)
    rows = bundle.rows.tensors()
    save_file(
        {"share" if name == "head_part" else name: tensor.clone() for name, tensor in rows.items()},
        bundle.path / "rows.safetensors",
        {"fingerprint": fingerprint},
    )
    manifest = json.loads((bundle.path / "manifest.json").read_text())
    manifest |= {"format": "limerank-bundle-3", "row_fingerprint": fingerprint}
    manifest["model"] = {"name": "lime-mha", "links": 4, "pool": 6}
    (bundle.path / "manifest.json").write_text(json.dumps(manifest))
    rehash(bundle.path)
    ranking = Engine.open(tmp_path, bundle.manifest.id).answer("u3", limit=20)
    assert ranking.item_ids == expected.item_ids
    assert (ranking.probabilities == expected.probabilities).all()


@pytest.mark.parametrize(
    ("before", "newer"),
    [
        ({"name": "sasrec", "readout": "last", "final_norm": False, "sharpness": None}, {"final_norm", "sharpness"}),
        ({"name": "ttsn"}, {"interaction"}),
    ],
    ids=["sasrec", "ttsn"],
)
def test_a_bundle_of_before_its_options_opens_and_ranks_the_same(
    dataset: StoredDataset, tmp_path: Path, before: dict[str, object], newer: set[str]
) -> None:
    """Its manifest does not name them and its fingerprint does not know them; SASRec then had no final norm."""
    torch.manual_seed(0)
    ranker = build_ranker(before, dataset.encoders.space(), len(dataset.schema.tasks), "test")
    bundle = export(ranker, before, dataset, tmp_path, max_history=20, row_type="fp32")
    expected = Engine(bundle).answer("u3", limit=20)
    options = ranker.options.model_dump(mode="json", exclude={*NEWER_OF_ALL, *newer})
    tensors = ranker.item_side_parameters() | {f"items.{n}": t for n, t in tensors_of(dataset.item_table).items()}
    parts: list[str | bytes] = [ranker.name, json.dumps(options, separators=(",", ":"))]
    for name in sorted(tensors):
        parts += [name, str(tuple(tensors[name].shape)), tensors[name].detach().numpy().tobytes()]
    assert bundle.manifest.row_fingerprint == files.digest_of(*parts)
    manifest = json.loads((bundle.path / "manifest.json").read_text())
    manifest["model"] = {"name": ranker.name, "tower_shortcut": True}
    (bundle.path / "manifest.json").write_text(json.dumps(manifest))
    ranking = Engine.open(tmp_path, bundle.manifest.id).answer("u3", limit=20)
    assert ranking.item_ids == expected.item_ids
    assert (ranking.probabilities == expected.probabilities).all()
