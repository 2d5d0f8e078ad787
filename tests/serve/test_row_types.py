"""Row types end to end: published, verified, served; their scores stay within the bounds that are stated for them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from calling import answer
from safetensors.torch import load_file, save_file

from limerank import files
from limerank.api.run import Run
from limerank.data.batches import RequestLoader
from limerank.data.store.dataset import StoredDataset
from limerank.errors import ArgumentError, BundleError
from limerank.ops.candidate import score_error_bound
from limerank.progress import Progress
from limerank.serve.bundles.bundle import Bundle
from limerank.serve.bundles.offline import RowType, compute_rows
from limerank.serve.bundles.store import BundleStore
from limerank.serve.engine import Engine
from limerank.serve.scorer import score_candidates
from limerank.splits import Part

QUIET = Progress(quiet=True)
BYTES = {"fp32": 4 * (128 + 64), "fp16": 2 * (128 + 64), "u8": 128 + 4 + 2 * 64}


@pytest.fixture
def u8_bundle(runs: dict[str, Run], tmp_path: Path) -> Path:
    return runs["lime-mha"].publish(tmp_path / "store", rows="u8", quiet=True).path


@pytest.mark.parametrize("row_type", sorted(BYTES))
def test_from_export_to_a_ranking(
    runs: dict[str, Run], dataset: StoredDataset, row_type: RowType, tmp_path: Path
) -> None:
    """`limerank export --rows`, `bundle verify`, `rank`: the served scores are those of rows computed here."""
    exported = answer("export", runs["lime-mha"].path, "--store", tmp_path / "store", "--rows", row_type)
    assert (exported["row_type"], exported["row_bytes"]) == (row_type, BYTES[row_type])
    assert answer("bundle", "verify", tmp_path / "store")["bundle"] == exported["bundle"]
    engine = Engine.open(tmp_path / "store")
    assert engine.bundle.manifest.row_type == engine.bundle.rows.row_type == row_type
    assert engine.bundle.manifest.row_bytes == engine.bundle.rows.row_bytes
    ranker = runs["lime-mha"].ranker(dataset)
    with torch.inference_mode():
        user = ranker.encode_user(engine.user_inputs("u3", {})[0])
        expected = score_candidates(ranker, user, compute_rows(ranker, dataset.item_table, row_type)).sigmoid().numpy()
    ranked = answer("rank", tmp_path / "store", "--user", "u3", "--limit", "20")
    items = [entry["id"] for entry in ranked["items"]]
    rows = engine.bundle.item_ids.rows_of(items)
    assert len(rows) == 20
    assert engine.answer("u3", limit=20).item_ids == items
    np.testing.assert_allclose(engine.answer("u3", limit=20).probabilities, expected[rows], atol=1e-6)
    assert expected[rows[-1], 0] >= np.sort(expected[1:, 0])[-20] - 1e-6


@pytest.mark.parametrize(("row_type", "lost"), [("fp16", 0.2), ("u8", 2)])
def test_top_hundred_and_bounds(runs: dict[str, Run], dataset: StoredDataset, row_type: RowType, lost: float) -> None:
    """Every request of the test part: the top 100 of 200 items, and each logit within its stated bound of fp32's.

    Who stands next to the border depends on every last digit of the training, so what is lost is averaged over
    requests: 0.02 to 0.06 with fp16 and 0.5 to 1.0 with u8, over four seeds.
    """
    ranker = runs["lime-mha"].ranker(dataset)
    full, narrow = (compute_rows(ranker, dataset.item_table, name) for name in ("fp32", row_type))
    loader = RequestLoader(dataset, Part.TEST, batch_requests=1, max_history=20)
    missing = []
    with torch.inference_mode():
        for requests in loader.plan():
            user = ranker.encode_user(loader.user_inputs(requests))
            exact, got = (score_candidates(ranker, user, rows, path="folded") for rows in (full, narrow))
            bound = score_error_bound(narrow, ranker.fold(user)[0].matrix, ranker.head.later_layers())
            assert ((got - exact).abs() <= bound + 1e-5).all()
            tops = [set(logits[:, 0].topk(100).indices.tolist()) for logits in (exact, got)]
            missing.append(len(tops[0] - tops[1]))
    assert np.mean(missing) < lost


def test_u8_rows_of_width_zero_are_served(runs: dict[str, Run], tmp_path: Path) -> None:
    """TTSN has no rows at all; its head part is stored in half precision and still ranks."""
    engine = Engine(runs["ttsn"].publish(tmp_path / "store", rows="u8", quiet=True))
    half = Engine(runs["ttsn"].publish(tmp_path / "store", rows="fp16", quiet=True))
    assert engine.answer("u1").item_ids == half.answer("u1").item_ids


def test_rows_that_u8_cannot_hold_are_refused_and_nothing_is_published(runs: dict[str, Run], tmp_path: Path) -> None:
    """The MHA skyline's rows are query projections, of either sign."""
    with pytest.raises(ArgumentError, match="u8 holds values from 0 up, .*; store these rows as fp16 or fp32"):
        runs["mha"].publish(tmp_path / "store", rows="u8", quiet=True)
    assert BundleStore(tmp_path / "store").ids() == []


def forge(folder: Path, tensors: dict[str, torch.Tensor], **changes: object) -> None:
    """Replace a bundle's rows and manifest entries, hashes included."""
    manifest = json.loads((folder / "manifest.json").read_text()) | changes
    save_file(tensors, folder / "rows.safetensors", {"fingerprint": manifest["row_fingerprint"]})
    for record in manifest["files"]:
        path = folder / record["path"]
        record["bytes"], record["sha256"] = path.stat().st_size, files.sha256_of_file(path)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_rows_of_another_type_than_the_manifest_says_are_refused(u8_bundle: Path) -> None:
    tensors = load_file(u8_bundle / "rows.safetensors")
    rows, head_part, scale = tensors["rows"], tensors["head_part"], tensors["scale"]
    wrong: list[tuple[dict[str, torch.Tensor], str, str]] = [
        (tensors, "fp16", r"holds \['head_part', 'rows', 'scale'\], should be \['head_part', 'rows'\] for fp16 rows"),
        ({"rows": rows, "head_part": head_part}, "u8", r"should be \['head_part', 'rows', 'scale'\] for u8 rows"),
        ({"rows": rows.half(), "head_part": head_part}, "fp32", "'rows' are torch.float16, manifest.json says fp32"),
        ({"rows": rows.half(), "head_part": head_part}, "fp8", "'rows' are torch.float16, manifest.json says fp8"),
        (tensors | {"scale": scale[1:].clone()}, "u8", r"scale \[200\] does not fit rows \[201, 128\]"),
        (tensors | {"head_part": head_part.float()}, "u8", "rows are torch.uint8 and head_part is torch.float32"),
    ]
    for changed, row_type, message in wrong:
        forge(u8_bundle, changed, row_type=row_type)
        with pytest.raises(BundleError, match=f"rows.safetensors: .*{message}.*; export the run again"):
            Bundle.open(u8_bundle)
    forge(u8_bundle, tensors, row_type="u8")
    Bundle.open(u8_bundle)
