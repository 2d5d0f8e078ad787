"""Stores for hosts: bundles of chance weights, exported once and copied for whoever changes them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hosts import USERS, scores
from numpy.typing import NDArray

from limerank.data.store.dataset import StoredDataset
from limerank.models import build_ranker
from limerank.serve.bundles.offline import export
from limerank.serve.bundles.store import BundleStore
from limerank.serve.engine import Engine
from limerank.serve.hosting.host import Host


@pytest.fixture(scope="session")
def template(dataset: StoredDataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three bundles, other weights in each; the first is active."""
    import torch

    path = tmp_path_factory.mktemp("hosting") / "store"
    for seed in range(3):
        torch.manual_seed(seed)
        ranker = build_ranker(
            {"name": "lime-mha", "links": 8}, dataset.encoders.space(), len(dataset.schema.tasks), "t"
        )
        export(ranker.eval(), {"name": "lime-mha", "links": 8}, dataset, path, max_history=20, threads=1)
    BundleStore(path).activate(BundleStore(path).ids()[0])
    return path


@pytest.fixture(scope="session")
def ids(template: Path) -> list[str]:
    """The ids of the three bundles."""
    return BundleStore(template).ids()


@pytest.fixture(scope="session")
def expected(template: Path, ids: list[str]) -> dict[str, dict[str, NDArray[Any]]]:
    """What each bundle answers to some users, by bundle and user."""
    found = {}
    for bundle_id in ids:
        with Engine.open(template, bundle_id, threads=1) as engine:
            found[bundle_id] = {user: scores(engine, user) for user in USERS}
    return found


@pytest.fixture
def hosted_store(template: Path, tmp_path: Path) -> Path:
    """A store of one's own."""
    shutil.copytree(template, tmp_path / "store")
    return tmp_path / "store"


@pytest.fixture
def opened(hosted_store: Path) -> Iterator[Callable[..., Host]]:
    """Opens hosts on the own store, which are closed when the test is over."""
    hosts: list[Host] = []

    def open_host(**options: object) -> Host:
        given: dict[str, object] = {"threads": 1, "warmup_requests": 2, "follow": False, **options}
        hosts.append(Host.open(hosted_store, **given))  # type: ignore[arg-type]
        return hosts[-1]

    yield open_host
    for host in hosts:
        host.close()
