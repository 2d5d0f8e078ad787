"""What tests of hosts have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from limerank.serve.engine import Engine
from limerank.serve.hosting.host import Host
from limerank.serve.overlay.items import Item

USERS = ["u1", "u7", "u33", "nobody"]


def scores(engine: Engine, user: str) -> NDArray[np.float32]:
    """The probabilities of the whole catalog, in row order."""
    return engine.score(engine.encode_user(user))


def answers_as(host: Host, expected: dict[str, dict[str, NDArray[Any]]], bundle_id: str) -> None:
    """The active bundle is this one, and answers as it does."""
    with host.lease() as lease:
        assert lease.bundle_id == bundle_id
        for user in USERS:
            np.testing.assert_allclose(scores(lease.engine, user), expected[bundle_id][user], atol=1e-5)


def featureless(engine: Engine, item_id: str) -> Item:
    """An item of which nothing but the id is known."""
    return Item(item_id, {one.name: None for one in engine.bundle.encoders.item if one.name != "item_id"})


def open_files() -> int:
    """How many descriptors this process has."""
    return len(list(Path("/proc/self/fd").iterdir()))


def mapped(folder: Path) -> int:
    """How many mappings this process has of files in a folder."""
    return sum(str(folder) in line for line in Path("/proc/self/maps").read_text().splitlines())
