"""Exports that are interrupted go on to the same bytes, trust nothing that is damaged, and need bounded memory."""

from __future__ import annotations

import fcntl
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from calling import limerank
from forging import assert_same_files
from killing import Killed, KilledAt
from numpy.typing import NDArray
from safetensors.numpy import load_file

from limerank import files
from limerank.api.run import Run
from limerank.batch import Features
from limerank.data.build.append import append
from limerank.data.build.prepare import prepare
from limerank.data.raw.log import EventFile, RawLog
from limerank.data.store.dataset import StoredDataset
from limerank.data.store.history import HistoryIndex
from limerank.errors import ConflictError, UnavailableError
from limerank.models import Ranker, build_ranker
from limerank.ops.dealing import in_order
from limerank.progress import Progress
from limerank.schema import Feature, Role, Schema, Task
from limerank.serve.bundles import item_stage, tables
from limerank.serve.bundles.offline import Exported, RowType, compute_rows, export_bundle
from limerank.serve.bundles.store import BundleStore
from limerank.serve.bundles.tensor_file import TensorFile

MODEL = {"name": "lime-mha", "links": 8}
DAY = 86_400_000


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """The 201 items of the test world are seven shards."""
    monkeypatch.setattr(item_stage, "ITEMS_PER_BLOCK", 16)
    monkeypatch.setattr(item_stage, "ITEMS_PER_SHARD", 32)


@pytest.fixture
def own(dataset: StoredDataset) -> Ranker:
    torch.manual_seed(0)
    return build_ranker(MODEL, dataset.encoders.space(), len(dataset.schema.tasks), "test")


def exported(
    ranker: Ranker,
    dataset: StoredDataset,
    store: Path,
    *,
    row_type: RowType = "fp16",
    progress: Progress | None = None,
    threads: int = 1,
) -> Exported:
    return export_bundle(
        ranker, MODEL, dataset, store, max_history=20, row_type=row_type, progress=progress, threads=threads
    )


def unfinished(store: Path) -> list[Path]:
    return [path for path in (store / "bundles").iterdir() if path.name.endswith(".unfinished")]


@pytest.mark.parametrize("row_type", ["fp16", "u8"])
def test_interrupted_and_asked_again_it_is_uninterrupted(
    own: Ranker, dataset: StoredDataset, tmp_path: Path, row_type: RowType
) -> None:
    """Wherever it ends; shards that were finished are not computed again."""
    whole = exported(own, dataset, tmp_path / "whole", row_type=row_type)
    assert (whole.kept, whole.copied) == (0, 0)
    for items in (16, 40, 100, 201):
        store = tmp_path / str(items)
        with pytest.raises(Killed):
            exported(own, dataset, store, row_type=row_type, progress=KilledAt(items))
        again = exported(own, dataset, store, row_type=row_type)
        assert again.kept == (items - 1) // 32 * 32
        assert_same_files(again.bundle, whole.bundle)
        assert unfinished(store) == []


SLOWLY = """
import sys, time
from limerank.api.run import Run
from limerank.serve.bundles import item_stage
item_stage.ITEMS_PER_BLOCK, item_stage.ITEMS_PER_SHARD = 16, 32
block = item_stage.ItemStage.block
def slowly(self, numbers):
    time.sleep(0.05)
    return block(self, numbers)
item_stage.ItemStage.block = slowly
Run.open(sys.argv[1]).exported(sys.argv[2], quiet=True, threads=2)
"""


def test_a_process_killed_with_sigkill_is_gone_on_with(runs: dict[str, Run], tmp_path: Path) -> None:
    """A real process, and a real kill -9 in the middle of its shards."""
    run, store = runs["lime-mha"], tmp_path / "killed"
    process = subprocess.Popen([sys.executable, "-c", SLOWLY, str(run.path), str(store)])
    deadline = time.monotonic() + 120
    while sum(len(path.read_text().splitlines()) for path in store.glob("bundles/*/shards.jsonl")) < 2:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert BundleStore(store).ids() == []
    again = run.exported(store, quiet=True)
    assert 64 <= again.kept < 201
    assert_same_files(again.bundle, run.publish(tmp_path / "whole", quiet=True))
    assert BundleStore(store).current_id() == again.bundle.manifest.id


def shortened(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1  # of the last tensor, in the last shard
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("file", "damage", "kept"),
    [
        ("bundle/rows.safetensors", Path.unlink, 0),
        ("bundle/rows.safetensors", lambda path: path.write_bytes(b""), 0),
        ("bundle/rows.safetensors", shortened, 192),
        ("bundle/rows.safetensors", flipped, 192),
        ("shards.jsonl", shortened, 192),
        ("shards.jsonl", Path.unlink, 0),
        ("shards.jsonl", lambda path: path.write_bytes(b'{"shard": 0}\n[]\n{"shard": "x", "sha256": 1}\n\xff\n'), 0),
        ("bundle/items.safetensors", flipped, 201),
        ("bundle/stray", lambda path: path.write_text("x"), 201),
    ],
)
def test_what_was_damaged_meanwhile_is_computed_again(
    own: Ranker,
    dataset: StoredDataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    file: str,
    damage: Any,
    kept: int,
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as late:
        late.setattr(files, "record_files", full)
        with pytest.raises(UnavailableError, match="no room left"):
            exported(own, dataset, tmp_path / "store")
    (folder,) = unfinished(tmp_path / "store")
    damage(folder / file)
    again = exported(own, dataset, tmp_path / "store")
    assert again.kept == kept
    assert_same_files(again.bundle, exported(own, dataset, tmp_path / "whole").bundle)


def test_another_export_begins_anew(own: Ranker, dataset: StoredDataset, tmp_path: Path) -> None:
    """Other rows, other weights and other block sizes find nothing to go on with, and leave what is there."""
    with pytest.raises(Killed):
        exported(own, dataset, tmp_path, progress=KilledAt(100))
    assert exported(own, dataset, tmp_path, row_type="u8").kept == 0
    with torch.no_grad():
        before = own.head.from_item.bias.clone()
        own.head.from_item.bias.add_(1)
        assert exported(own, dataset, tmp_path).kept == 0
        own.head.from_item.bias.copy_(before)
    assert len(unfinished(tmp_path)) == 1
    assert exported(own, dataset, tmp_path).kept == 96
    assert unfinished(tmp_path) == []


def test_bytes_do_not_depend_on_threads(own: Ranker, dataset: StoredDataset, tmp_path: Path) -> None:
    before = torch.get_num_threads()
    one = exported(own, dataset, tmp_path / "1").bundle
    assert_same_files(one, exported(own, dataset, tmp_path / "3", threads=3).bundle)
    dealt = export_bundle(own, MODEL, dataset, tmp_path / "dealt", max_history=20, deal=in_order).bundle
    assert_same_files(one, dealt)
    assert torch.get_num_threads() == before
    rows, head_part = one.rows.widened()
    expected = compute_rows(own, dataset.item_table, "fp32")
    torch.testing.assert_close(rows, expected.rows, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(head_part, expected.head_part, atol=1e-3, rtol=1e-3)


def test_an_export_that_somebody_works_on_is_left_alone(own: Ranker, dataset: StoredDataset, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        exported(own, dataset, tmp_path, progress=KilledAt(100))
    (folder,) = unfinished(tmp_path)
    with files.locked(folder / "lock", "exporting"):
        with pytest.raises(ConflictError, match="another process is exporting the same there; .* another --store"):
            exported(own, dataset, tmp_path)
        assert BundleStore(tmp_path).collect(keep=1) == []
    assert BundleStore(tmp_path).collect(keep=1) == [folder.name]


def test_nobody_begins_to_work_on_what_is_being_collected(
    own: Ranker, dataset: StoredDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither while an unfinished export is deleted nor with a lock that was deleted with it."""
    with pytest.raises(Killed):
        exported(own, dataset, tmp_path, progress=KilledAt(100))
    delete, refused = shutil.rmtree, []

    def delete_slowly(folder: Path, **options: Any) -> None:
        if folder.name.endswith(".unfinished"):
            with pytest.raises(ConflictError, match="another process is exporting the same there"):
                exported(own, dataset, tmp_path)
            refused.append(folder.name)
        delete(folder, **options)

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", delete_slowly)
        assert BundleStore(tmp_path).collect(keep=1) == refused != []
    assert exported(own, dataset, tmp_path).kept == 0
    lock, take = tmp_path / "lock", fcntl.flock

    def take_late(handle: Any, how: int) -> None:
        lock.unlink()
        take(handle, how)

    monkeypatch.setattr(fcntl, "flock", take_late)
    with pytest.raises(ConflictError, match="another process is exporting"), files.locked(lock, "exporting"):
        pytest.fail("a lock that nobody else sees")


@pytest.mark.parametrize("limit", [4000, 40_000])
def test_a_full_disk_is_named(own: Ranker, dataset: StoredDataset, tmp_path: Path, limit: int) -> None:
    """Whoever writes raises its own error: for weights it is safetensors', for rows the system's."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(UnavailableError, match=r"no room left on the device; .*: free some, then export again"):
            exported(own, dataset, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert BundleStore(tmp_path).ids() == []
    assert exported(own, dataset, tmp_path).bundle.manifest.items == 201


def test_the_command_tells_what_it_took(runs: dict[str, Run], tmp_path: Path) -> None:
    done = limerank("export", runs["ttsn"].path, "--store", tmp_path, "--threads", "2")
    assert done.returncode == 0, done.stderr
    assert "items/s" in done.stdout
    assert "copied" not in done.stdout
    again = limerank("export", runs["ttsn"].path, "--store", tmp_path)
    assert "201 rows copied from an earlier bundle, " in again.stdout
    shown = limerank("bundle", "show", tmp_path).stdout
    assert re.search(r"age of item rows +\d+ (seconds|minutes)\s", shown)
    assert re.search(r"age of the newest event +[\d,]+ days\s", shown)


SCHEMA = Schema(
    features=(Feature(name="item_id", role=Role.ITEM), Feature(name="clicked", role=Role.EVENT, column="click")),
    tasks=(Task(name="click"),),
)


def part_of_log(first_day: int, users: int, items: int, events: int) -> RawLog:
    draw = np.random.default_rng(first_day)
    frame = pl.DataFrame(
        {
            "user_id": [f"u{n}" for n in draw.integers(0, users, events)],
            "item_id": [f"i{n}" for n in draw.integers(0, items, events)],
            "time": first_day * DAY + np.sort(draw.integers(0, DAY, events)),
            "click": draw.integers(0, 2, events),
        }
    )
    return RawLog(SCHEMA, (EventFile.of_frame(frame, "events"),), None, None, {"source": "test"})


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> StoredDataset:
    """60,000 events of 500 users in three segments."""
    folder = tmp_path_factory.mktemp("long") / "dataset"
    prepare(part_of_log(1, 300, 100, 30_000), folder)
    append(folder, part_of_log(2, 400, 200, 20_000))
    return append(folder, part_of_log(3, 500, 300, 10_000))


def plain_histories(dataset: StoredDataset, most: int) -> dict[str, NDArray[Any]]:
    """All at once, as it is defined."""
    history = HistoryIndex(dataset)
    rows, offsets = history.rows_of_users(most)
    assert history.time is not None
    return {
        "offsets": offsets,
        "item": rows.take(history.item),
        "events": np.stack([rows.take(column) for column in history.events], axis=1),
        "times": rows.take(history.time),
    }


def plain_seen(dataset: StoredDataset) -> list[set[int]]:
    seen: list[set[int]] = [set() for _ in range(dataset.manifest.table_rows["users"])]
    users = np.repeat(dataset.column("requests/user"), np.diff(dataset.column("requests/start")))
    for user, item in zip(users.tolist(), dataset.column("events/item").tolist(), strict=True):
        seen[user].add(item)
    return seen


@pytest.mark.parametrize("block", [1, 700, 10**6])
def test_histories_and_seen_items_do_not_depend_on_blocks(
    long: StoredDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(tables, "NUMBERS_PER_BLOCK", block)
    tables.write_histories(tmp_path / "histories", long, 30)
    written = load_file(tmp_path / "histories")
    for name, expected in plain_histories(long, 30).items():
        np.testing.assert_array_equal(written[name], expected)
    tables.write_seen(tmp_path / "seen", long)
    seen = load_file(tmp_path / "seen")
    bounds = seen["offsets"].tolist()
    found = [seen["item"][start:end].tolist() for start, end in pairwise(bounds)]
    assert found == [sorted(items) for items in plain_seen(long)]


def test_memory_is_bounded_by_blocks_not_by_events(
    long: StoredDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written at once and what is held meanwhile is a fraction of what there is."""
    largest, tables_of, write = 0, 0, TensorFile.write

    def watched(self: TensorFile, name: str, first: int, rows: NDArray[Any]) -> None:
        nonlocal largest
        largest = max(largest, rows.nbytes)
        write(self, name, first, rows)

    monkeypatch.setattr(TensorFile, "write", watched)
    monkeypatch.setattr(tables, "NUMBERS_PER_BLOCK", 1000)
    works: list[Callable[[Path], None]] = [
        partial(tables.write_histories, dataset=long, max_history=10**6),
        partial(tables.write_seen, dataset=long),
    ]
    for work in works:
        work(tmp_path / "before")  # what is loaded once, is
        (tmp_path / "before").unlink()
        tracemalloc.start()
        work(tmp_path / "file")
        _, held = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        tables_of += (tmp_path / "file").stat().st_size
        (tmp_path / "file").unlink()
        assert held < 400_000
    assert largest <= 1000 * 8
    assert tables_of > 800_000


def test_no_more_than_a_block_is_encoded_at_once(
    own: Ranker, dataset: StoredDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, rows, encode, write = set(), set(), own.encode_items, TensorFile.write

    def encode_items(items: Features) -> Any:
        sizes.add(len(items))
        return encode(items)

    def watched(self: TensorFile, name: str, first: int, values: NDArray[Any]) -> None:
        if "head_part" in self.tensors:
            rows.add(len(values))
        write(self, name, first, values)

    monkeypatch.setattr(own, "encode_items", encode_items)
    monkeypatch.setattr(TensorFile, "write", watched)
    exported(own, dataset, tmp_path)
    assert sizes == {1, 16}
    assert rows == {32, 201 % 32}
