"""The last append can be undone: exactly, at once, and whatever it merged."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from logs_by_day import DAY, contents, days_of, every_day, raw_of
from snapshots import snapshot

from limerank.api.run import Run
from limerank.config import RunConfig, TrainConfig
from limerank.data.build import append as appending
from limerank.data.build.append import append
from limerank.data.build.prepare import prepare
from limerank.data.store import states
from limerank.data.store.dataset import StoredDataset
from limerank.data.store.manifest import MANIFEST
from limerank.data.store.states import undo
from limerank.errors import ConflictError, DataError
from limerank.progress import Progress
from limerank.splits import Part
from limerank.training.trainer import train

DAYS = days_of(every_day([("ann", "p", day * DAY + 7, day % 2) for day in range(1, 12)]))
MENDED = pl.concat([DAYS[6], days_of([("bob", "q", 7 * DAY + 9, 1)])[6]])


@pytest.mark.parametrize("most_segments", [1, 2, 8])
def test_undo_restores_the_state_before_and_the_mended_day_can_be_appended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_segments: int
) -> None:
    """With one segment at most every append merges, with two the second one here, with eight none."""
    monkeypatch.setattr(appending, "MOST_SEGMENTS", most_segments)
    first = prepare(raw_of(*DAYS[:5]), tmp_path / "d")
    path = first.path
    before = append(path, raw_of(DAYS[5]))
    said = snapshot(before)
    longer = append(path, raw_of(DAYS[6]))
    left, restored = undo(path)
    assert (left.fingerprint, restored.fingerprint) == (longer.fingerprint, before.fingerprint)
    found = StoredDataset.open(path, check_hashes=True)
    assert found.manifest == before.manifest.model_copy(update={"before": None})
    assert snapshot(found) == said
    mended = append(path, raw_of(MENDED))
    assert snapshot(mended) == snapshot(prepare(raw_of(*DAYS[:6], MENDED), tmp_path / "once"))
    assert longer.fingerprint not in (mended.fingerprint, *mended.manifest.grown_from)
    undo(path)
    assert snapshot(StoredDataset.open(path, check_hashes=True)) == said


def test_after_the_first_append_even_the_manifest_is_the_same(tmp_path: Path) -> None:
    dataset = prepare(raw_of(*DAYS[:5]), tmp_path / "d")
    before = contents(dataset.path)
    append(dataset.path, raw_of(DAYS[5]))
    undo(dataset.path)
    after = contents(dataset.path)
    assert {name: after[name] for name in before} == before


def test_only_the_last_append_can_be_undone_and_only_once(tmp_path: Path) -> None:
    path = prepare(raw_of(*DAYS[:4]), tmp_path / "d").path
    with pytest.raises(ConflictError, match="nothing is appended to it, so there is nothing to undo"):
        undo(path)
    append(path, raw_of(DAYS[4]))
    append(path, raw_of(DAYS[5]))
    undo(path)
    with pytest.raises(ConflictError, match="only the last append can be undone, and it was undone already"):
        undo(path)
    assert StoredDataset.open(path, check_hashes=True).manifest.counts["events"] == 10


def test_a_dry_run_of_undo_changes_nothing(tmp_path: Path) -> None:
    path = prepare(raw_of(*DAYS[:4]), tmp_path / "d").path
    append(path, raw_of(DAYS[4]))
    before = contents(path)
    left, restored = undo(path, dry_run=True)
    assert (left.counts["events"], restored.counts["events"]) == (10, 8)
    assert contents(path) == before
    with states.locked(path), pytest.raises(ConflictError, match="another process is appending"):
        undo(path)


def test_undoing_again_and_again_never_loses_a_file(tmp_path: Path) -> None:
    """The oldest parts are forgotten, but not those of the state that every undo goes back to."""
    first = prepare(raw_of(*DAYS[:4]), tmp_path / "d")
    for _ in range(states.PARTS_KEPT + 2):
        append(first.path, raw_of(DAYS[4]))
        undo(first.path)
        assert StoredDataset.open(first.path, check_hashes=True).fingerprint == first.fingerprint
    kept = append(first.path, raw_of(DAYS[4]))
    assert len(list((first.path / "segments").iterdir())) == len(kept.segments) == 2


def test_readers_go_on_with_what_they_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns are mapped when they are first asked for, which may be after the undo."""
    monkeypatch.setattr(appending, "MOST_SEGMENTS", 2)
    path = prepare(raw_of(*DAYS[:4]), tmp_path / "d").path
    append(path, raw_of(DAYS[4]))
    shorter = StoredDataset.open(path)
    longer = append(path, raw_of(DAYS[5]))
    assert (len(shorter.segments), len(longer.segments)) == (2, 1)
    undo(path)
    assert [len(dataset.column("events/item")) for dataset in (shorter, longer)] == [10, 12]
    assert [len(dataset.requests_in(Part.TEST)) for dataset in (shorter, longer)] == [2, 2]
    assert snapshot(longer) == snapshot(prepare(raw_of(*DAYS[:6]), tmp_path / "once"))


def test_undo_needs_the_files_of_the_state_before_and_no_others(tmp_path: Path) -> None:
    path = prepare(raw_of(*DAYS[:4]), tmp_path / "d").path
    longer = append(path, raw_of(DAYS[4]))
    old = longer.segments[0] / "events/item.npy"
    whole = old.read_bytes()
    old.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    before = contents(path)
    with pytest.raises(DataError, match="item.npy: content does not match its recorded SHA-256"):
        undo(path)
    assert contents(path) == before
    old.write_bytes(whole)
    (longer.segments[1] / "events/item.npy").unlink()
    undo(path)
    assert StoredDataset.open(path, check_hashes=True).manifest.counts["events"] == 8


def test_a_dataset_from_before_undo_opens_and_grows(tmp_path: Path) -> None:
    path = prepare(raw_of(*DAYS[:4]), tmp_path / "d").path
    append(path, raw_of(DAYS[4]))
    manifest = json.loads((path / MANIFEST).read_text())
    del manifest["before"]
    (path / MANIFEST).write_text(json.dumps(manifest))
    old = StoredDataset.open(path, check_hashes=True)
    with pytest.raises(ConflictError, match="or made by an older limerank"):
        undo(path)
    append(path, raw_of(DAYS[5]))
    assert undo(path)[1] == old.manifest


def test_a_run_of_the_longer_log_is_refused_and_one_of_the_shorter_is_not(tmp_path: Path) -> None:
    both = days_of(every_day([("ann", "p", day * DAY + 7, (day + 1) % 2) for day in range(1, 12)]))
    path = prepare(raw_of(*both[:5]), tmp_path / "d").path
    config = RunConfig(dataset=path, model={"name": "ttsn"}, train=TrainConfig(epochs=1), seed=1)
    train(config, tmp_path / "short", Progress(quiet=True))
    longer = append(path, raw_of(both[5]))
    train(config, tmp_path / "long", Progress(quiet=True))
    undo(path)
    assert Run.open(tmp_path / "short").dataset().manifest.counts["events"] == 10
    with pytest.raises(DataError) as refusal:
        Run.open(tmp_path / "long").dataset()
    assert f"({longer.fingerprint[:12]}): it was prepared anew, or what was appended was taken back" in str(
        refusal.value
    )


def test_a_repeated_or_overlapping_day_is_told_about_undo(tmp_path: Path) -> None:
    path = prepare(raw_of(*DAYS[:4]), tmp_path / "d").path
    append(path, raw_of(DAYS[4]))
    fix = f"append only later events, or take the last append back first: limerank append {path} --undo"
    for events, problem in (
        (DAYS[4], "was appended already, it seems: the last append brought 2 events up to 1970-01-06 00:00:00 too"),
        (pl.concat([DAYS[4], DAYS[5]]), f"has events of 1970-01-06 00:00:00, but {path} already reaches 1970-01-06"),
    ):
        with pytest.raises(DataError) as refusal:
            append(path, raw_of(events))
        assert problem in str(refusal.value)
        assert fix in str(refusal.value)
    with pytest.raises(DataError, match="append only later events, or prepare all of them again"):
        append(path, raw_of(DAYS[3]))


KILLED = """
import os, signal, sys
from pathlib import Path
from typing import Any
import polars as pl
from limerank.data.build import append as appending
from limerank.data.store.dataset import StoredDataset
from limerank.data.store.manifest import MANIFEST
from limerank.data.raw.log import EventFile, RawLog
from limerank.data.store.states import undo

path = Path(sys.argv[1])
appending.MOST_SEGMENTS = 2

def killed_after(allowed):
    def count(event, arguments):
        nonlocal allowed
        if event in ("os.rename", "os.remove", "shutil.rmtree"):
            name = str(arguments[0])
            changes = event == "os.rename" or MANIFEST in name or ".staging-" not in name
            if name.startswith(str(path)) and changes:
                allowed -= 1
                if allowed < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
    return count

for line in sys.stdin:
    child = os.fork()  # importing takes longer than all the rest
    if not child:
        day = EventFile.of_frame(pl.read_parquet(path.parent / "day.parquet"), "day")
        raw = RawLog(schema=StoredDataset.open(path).schema, events=(day,), items=None, users=None, origin={})
        sys.addaudithook(killed_after(int(line)))
        appending.append(path, raw)
        undo(path)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def test_kill_9_between_any_two_changes_of_the_folder_leaves_the_old_or_the_new_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An append that merges and its undo, killed before their first, second, ... rename or removal, until both end."""
    monkeypatch.setattr(appending, "MOST_SEGMENTS", 2)
    DAYS[5].write_parquet(tmp_path / "day.parquet")
    path = prepare(raw_of(*DAYS[:4]), tmp_path / "d").path
    short = snapshot(append(path, raw_of(DAYS[4])))
    long = snapshot(prepare(raw_of(*DAYS[:6]), tmp_path / "once"))
    found: list[list[Any]] = []
    command = [sys.executable, "-c", KILLED, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        ended = -signal.SIGKILL
        while ended == -signal.SIGKILL:
            process.stdin.write(f"{len(found)}\n")
            process.stdin.flush()
            ended = int(process.stdout.readline())
            found.append(snapshot(StoredDataset.open(path, check_hashes=True)))
            assert found[-1] in (short, long)
            if found[-1] == long:
                undo(path)
                assert snapshot(StoredDataset.open(path, check_hashes=True)) == short
        process.stdin.close()
    assert ended == 0
    assert long in found
    assert found[0] == found[-1] == short
