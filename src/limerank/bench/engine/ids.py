"""How long a map of many ids takes to open: hashed, mapped, and every id proven to find its own row."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from limerank import files
from limerank.bench.engine.results import OpenedIds
from limerank.serve.bundles.bundle import load_tensors
from limerank.serve.bundles.ids import IdMap, write_id_map

LOOKED_UP = 10_000


def measure_ids(folder: Path, count: int, repeats: int = 3) -> OpenedIds:
    """The best of some openings, and of looking up ids at random."""
    path = folder / "ids.safetensors"
    write_id_map(path, ["", *map(str, range(10**9, 10**9 + count))])
    wanted = [str(number) for number in np.random.default_rng(0).integers(10**9, 10**9 + count, LOOKED_UP)]
    opening, looking = [], []
    for _ in range(repeats):
        started = time.perf_counter()
        files.sha256_of_file(path)
        ids = IdMap(load_tensors(path))
        ids.check()
        opened = time.perf_counter()
        ids.rows_of(wanted)
        opening.append(opened - started)
        looking.append(time.perf_counter() - opened)
    return OpenedIds(
        ids=count,
        bytes=path.stat().st_size,
        open_seconds=min(opening),
        lookup_ms=1000 * min(looking),
        looked_up=LOOKED_UP,
    )
