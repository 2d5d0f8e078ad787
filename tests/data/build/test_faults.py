"""Preparing under bad luck: killed at any time, no room left, little memory, several files, other processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from limerank.data.batches import RequestLoader
from limerank.data.build import encoding, fit, sorting
from limerank.data.build.prepare import prepare
from limerank.data.raw.log import EventFile, RawLog
from limerank.data.sources.simulated import SimulatedConfig, simulate
from limerank.data.sources.table.read import write_table_log
from limerank.data.store.dataset import StoredDataset
from limerank.errors import DataError, UnavailableError
from limerank.splits import Part

COMMAND = [sys.executable, "-m", "limerank", "prepare", "table"]
ENVIRONMENT = {**os.environ, "POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1"}


def test_small_batches_and_blocks_give_the_same_dataset(
    raw_log: RawLog, dataset: StoredDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log of 19-row batches, sorted 50 rows at a time and encoded 70 at a time: nothing depends on what fits."""
    monkeypatch.setattr(sorting, "ROWS_PER_BLOCK", 50)
    monkeypatch.setattr(encoding, "EVENTS_PER_BLOCK", 70)
    events = raw_log.collect_events()
    small = EventFile("events", tuple(events.columns), lambda: events.iter_slices(19))
    assert prepare(replace(raw_log, events=(small,)), tmp_path / "d").fingerprint == dataset.fingerprint


def test_quantiles_of_a_large_log_come_from_an_even_sample(
    raw_log: RawLog, dataset: StoredDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit, "MOST_SAMPLED_VALUES", 400)
    monkeypatch.setattr(encoding, "EVENTS_PER_BLOCK", 70)
    sampled = prepare(raw_log, tmp_path / "a").encoders.event[1]
    exact = dataset.encoders.event[1]
    assert sampled.name == exact.name == "watched_fraction"
    assert sampled.boundaries[-1] == pytest.approx(exact.boundaries[-1], abs=0.1)
    assert sampled != exact
    assert prepare(raw_log, tmp_path / "b").encoders.event[1] == sampled


def test_another_process_gets_the_same_fingerprint(tmp_path: Path, raw_log: RawLog) -> None:
    """Hash seeds, threads and the order in which they run do not matter."""
    write_table_log(raw_log, tmp_path / "raw")
    found = set()
    for seed, threads in (("1", "1"), ("2", "2"), ("3", "2")):
        out = tmp_path / f"d{seed}"
        environment = {**os.environ, "PYTHONHASHSEED": seed, "POLARS_MAX_THREADS": threads}
        arguments = ["--raw", str(tmp_path / "raw"), "--out", str(out)]
        subprocess.run([*COMMAND, *arguments], env=environment, check=True, capture_output=True)
        found.add(StoredDataset.open(out).fingerprint)
    assert len(found) == 1


def test_kill_9_at_any_time_leaves_nothing_or_everything(tmp_path: Path) -> None:
    """And the next run removes what the killed one left on the way."""
    write_table_log(simulate(SimulatedConfig(users=1500, items=500)), tmp_path / "raw")
    out = tmp_path / "d"
    arguments = [*COMMAND, "--raw", str(tmp_path / "raw"), "--out", str(out), "--overwrite"]
    left = 0
    for attempt in range(12):
        process = subprocess.Popen(arguments, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        started = time.monotonic()
        while process.poll() is None and not list(tmp_path.glob("d.staging-*")) and time.monotonic() - started < 60:
            time.sleep(0.005)
        time.sleep(0.08 * attempt)
        process.send_signal(signal.SIGKILL)
        process.wait()
        left += len(list(tmp_path.glob("d.staging-*")))
        if out.exists():
            StoredDataset.open(out, check_hashes=True)
            break
        assert len(list(tmp_path.glob("d.staging-*"))) <= 1
    assert left > 0, "the process was never killed while it wrote"
    subprocess.run(arguments, env=ENVIRONMENT, check=True, capture_output=True)
    StoredDataset.open(out, check_hashes=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d", "raw"]


FULL = """
import resource, signal, sys
from pathlib import Path
from limerank.cli import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
sys.argv = ["limerank", "prepare", "table", "--raw", sys.argv[1], "--out", sys.argv[2]]
main()
"""


def test_no_room_left_is_one_line_and_nothing_is_kept(tmp_path: Path, raw_log: RawLog) -> None:
    """The kernel refuses every file beyond 20 kB, whoever writes it: polars, numpy or Python."""
    write_table_log(raw_log, tmp_path / "raw")
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "raw"), str(tmp_path / "d")], capture_output=True, text=True
    )
    assert done.returncode == UnavailableError.exit_code, done.stderr
    assert f"error: {tmp_path / 'd'}: no room left on the device; nothing was kept" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]


def _rows_read(path: str) -> int:
    loader = RequestLoader(StoredDataset.open(Path(path)), Part.TRAIN, batch_requests=8, max_history=20, seed=1)
    return sum(len(batch.labels) for batch in loader)


def test_many_processes_read_one_dataset(dataset: StoredDataset) -> None:
    start = dataset.column("requests/start").astype(np.int64)
    expected = int(np.diff(start)[dataset.requests_in(Part.TRAIN)].sum())
    with ProcessPoolExecutor(3, mp_context=get_context("spawn")) as pool:
        assert list(pool.map(_rows_read, [str(dataset.path)] * 6)) == [expected] * 6
    assert not dataset.column("events/item").flags.writeable


def test_memory_does_not_grow_with_the_log(tmp_path: Path) -> None:
    """Eight times the events take little more memory: a batch, the ids and the requests stay, the log does not."""
    peaks = []
    for sessions in (8, 64):
        out = tmp_path / str(sessions)
        code = (
            "import resource; from pathlib import Path\n"
            "from limerank.data.build import sorting; sorting.ROWS_PER_BLOCK = 100_000\n"
            "from limerank.data.build.prepare import prepare\n"
            "from limerank.data.sources.simulated import SimulatedConfig, simulate\n"
            "import limerank.data.sources.simulated as s; s.USERS_PER_BLOCK = 60\n"
            f"prepare(simulate(SimulatedConfig(users=1800, items=500, sessions={sessions})), Path({str(out)!r}))\n"
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
        )
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=ENVIRONMENT)
        peaks.append(int(done.stdout) * 1024)
    events = StoredDataset.open(tmp_path / "64").manifest.counts["events"]
    raw_bytes = 100 * events  # a row of the raw log in memory
    assert peaks[1] - peaks[0] < raw_bytes / 2


def test_an_overwrite_that_was_killed_between_two_renames_says_where_the_dataset_is(
    raw_log: RawLog, tmp_path: Path
) -> None:
    dataset = prepare(raw_log, tmp_path / "d")
    dataset.path.rename(tmp_path / "d.staging-999999-old")
    with pytest.raises(
        DataError, match=r"an interrupted --overwrite left the dataset as .*d.staging-999999-old; rename it back"
    ):
        StoredDataset.open(tmp_path / "d")


@pytest.mark.parametrize("limit", [1_500, 4_000, 9_000, 30_000])
def test_any_writer_may_be_the_one_that_finds_the_disk_full(tmp_path: Path, raw_log: RawLog, limit: int) -> None:
    """Polars, our own columns, numpy.save or JSON, depending on which file is the first beyond the limit."""
    write_table_log(raw_log, tmp_path / "raw")
    code = FULL.replace("(20_000, 20_000)", f"({limit}, {limit})")
    command = [sys.executable, "-c", code, str(tmp_path / "raw"), str(tmp_path / "d")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "Traceback" not in done.stderr
    assert (done.returncode, "no room left on the device" in done.stderr) == (UnavailableError.exit_code, True)
    assert not list(tmp_path.glob("d*"))
