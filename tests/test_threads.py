"""Threads sleep while they wait, wherever limerank is imported before torch, and use no more cores than are granted."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from limerank.bench.threads import run_thread_bench
from limerank.cli.common import use_threads
from limerank.progress import Progress
from limerank.threads import CHOICES, available_cores, cgroup_share


def python(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A new process in which nobody has chosen how threads wait, but for `variables`."""
    plain = {name: value for name, value in os.environ.items() if name not in CHOICES}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**plain, **variables}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done


def test_importing_limerank_lets_threads_sleep_and_loads_no_torch() -> None:
    done = python("import os, sys, limerank; print(os.environ['OMP_WAIT_POLICY'], 'torch' in sys.modules)")
    assert done.stdout.split() == ["PASSIVE", "False"]


@pytest.mark.skipif(sys.platform != "linux", reason="asks GNU's OpenMP, which torch uses on Linux")
@pytest.mark.parametrize("first", ["limerank, torch", "limerank.cli, torch", "limerank.serve.engine"])
def test_torch_really_takes_it(first: str) -> None:
    """OpenMP itself says what it read when torch loaded it."""
    done = python(f"import {first}", OMP_DISPLAY_ENV="VERBOSE")
    assert "OMP_WAIT_POLICY = 'PASSIVE'" in done.stderr
    assert "GOMP_SPINCOUNT = '0'" in done.stderr


@pytest.mark.parametrize("name", CHOICES)
def test_what_somebody_chose_is_kept(name: str) -> None:
    values = {"OMP_WAIT_POLICY": "ACTIVE", "GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "10"}
    code = f"import os, limerank; print({{n: os.environ[n] for n in {CHOICES} if n in os.environ}})"
    assert python(code, **{name: values[name]}).stdout.strip() == str({name: values[name]})


WARN_TWICE = """
import torch, limerank
from limerank.threads import warn_if_spinning
torch.set_num_threads({threads})
warn_if_spinning()
warn_if_spinning()
"""


def test_a_torch_that_was_there_first_is_told_of_once() -> None:
    done = python(WARN_TWICE.format(threads=2))
    assert done.stderr.count("torch was imported before limerank, so its 2 threads spin") == 1
    assert "set OMP_WAIT_POLICY=PASSIVE" in done.stderr
    assert python(WARN_TWICE.format(threads=1)).stderr == ""
    assert python(WARN_TWICE.format(threads=2), OMP_WAIT_POLICY="PASSIVE").stderr == ""


def test_a_share_of_a_container_limits_the_cores(tmp_path: Path) -> None:
    root, own = tmp_path / "cgroup", tmp_path / "own"
    inner = root / "machine" / "job"
    inner.mkdir(parents=True)
    own.write_text("0::/machine/job\n")
    assert cgroup_share(root, own) == math.inf
    (inner / "cpu.max").write_text("max 100000\n")
    assert cgroup_share(root, own) == math.inf
    (inner / "cpu.max").write_text("250000 100000\n")
    assert cgroup_share(root, own) == 2.5
    (root / "machine" / "cpu.max").write_text("150000 100000\n")  # a group is bound by those around it
    assert cgroup_share(root, own) == 1.5
    own.write_text("0::/../../elsewhere\n")  # as a container may see it
    (root / "cpu.max").write_text("50000 100000\n")
    assert cgroup_share(root, own) == 0.5
    own.write_text("4:cpu,cpuacct:/docker/abc\n3:memory:/docker/abc\n")
    old = root / "cpu,cpuacct"
    old.mkdir()
    (old / "cpu.cfs_quota_us").write_text("-1\n")
    (old / "cpu.cfs_period_us").write_text("100000\n")
    (root / "cpu.max").unlink()
    assert cgroup_share(root, own) == math.inf
    (old / "cpu.cfs_quota_us").write_text("400000\n")
    assert cgroup_share(root, own) == 4
    assert cgroup_share(tmp_path / "nowhere", tmp_path / "nothing") == math.inf
    assert available_cores() >= 1


def test_the_bench_measures_every_way_to_wait() -> None:
    result = run_thread_bench(Progress(quiet=True), items=500, repeats=1, works=["rank"])
    assert [(row.waiting, row.busy_processes) for row in result.rows] == [
        (waiting, busy) for busy in (0, 1) for waiting in ("one thread", "spin", "sleep", "workers")
    ]
    assert all(row.seconds > 0 and row.to_one_thread > 0 for row in result.rows)
    assert {row.threads for row in result.rows if row.waiting == "one thread"} == {1}


def test_commands_compute_on_one_thread_unless_told() -> None:
    before = torch.get_num_threads()
    try:
        for asked, used in ((None, 1), (2, 2)):
            torch.set_num_threads(3)
            use_threads(asked)
            assert torch.get_num_threads() == used
    finally:
        torch.set_num_threads(before)
