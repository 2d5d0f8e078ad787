"""Compute threads that stay out of each other's way, whatever else the machine does.

torch's CPU threads meet at a barrier after every small operation. By default those who arrive first spin until the last
one is there; if another process holds its core, that takes whole time slices, and two threads become many times slower
than one. Threads that sleep instead lose less there, and more on an idle machine, where waking them takes time
(`limerank bench threads` measures it all). So commands compute on one thread unless they are told otherwise, and where
there are several, they sleep. How they wait is read from the environment when torch is loaded. The engine needs none of
this: its workers (`limerank.serve.threads.workers`) run torch on one thread each and meet at no barrier.
"""

from __future__ import annotations

import logging
import math
import os
import sys
from functools import cache
from pathlib import Path

POLICY, SLEEP = "OMP_WAIT_POLICY", "PASSIVE"
CHOICES = (POLICY, "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Variables by which somebody may have chosen how threads wait; OpenMP's, GNU's and LLVM's."""


def sleep_while_waiting() -> None:
    """Let threads that wait sleep, unless somebody chose otherwise or torch is loaded already."""
    if "torch" not in sys.modules and not _chosen():
        os.environ[POLICY] = SLEEP


@cache
def warn_if_spinning() -> None:
    """Say once that torch was loaded before it could be told how to wait, if it has several threads."""
    import torch

    if torch.get_num_threads() > 1 and not _chosen():
        logging.getLogger("limerank").warning(
            "torch was imported before limerank, so its %d threads spin while they wait: beside another busy process "
            "they can be many times slower than one. Import limerank first, set %s=%s, or torch.set_num_threads(1)",
            torch.get_num_threads(),
            POLICY,
            SLEEP,
        )


def available_cores() -> int:
    """How many cores this process may use: those it may run on, or fewer if a container's share is smaller."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return max(1, math.ceil(min(allowed, cgroup_share())))


def cgroup_share(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> float:
    """How many cores' time the control groups of this process grant (Linux, version 2 and 1); else infinity."""
    shares = [math.inf]
    for line in _read(own).splitlines():
        _, controllers, path = line.split(":", 2)
        folder = root / controllers / path.lstrip("/") if controllers else root / path.lstrip("/")
        for group in (folder, *folder.parents):  # in a container the path may be the host's, and only the root is there
            if group.is_relative_to(root):
                shares += [_quota(_read(group / "cpu.max"))]
                shares += [_quota(f"{_read(group / 'cpu.cfs_quota_us')} {_read(group / 'cpu.cfs_period_us')}")]
    return min(shares)


def _quota(text: str) -> float:
    """Cores from `quota period` in microseconds; infinity for `max`, -1 and anything that is not there."""
    words = text.split()
    if len(words) != 2 or not words[0].isdigit() or not words[1].isdigit() or words[1] == "0":
        return math.inf
    return int(words[0]) / int(words[1])


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _chosen() -> bool:
    return any(name in os.environ for name in CHOICES)
