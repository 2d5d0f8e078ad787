"""The Ray of this process: who may end it, and where its files are. Ray itself is not there."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from limerank.errors import ConflictError, UnavailableError
from limerank.serve.bundles.on_ray.starting import LONGEST_FOLDER, START_TRIES
from limerank.serve.sharded import cluster
from limerank.serve.sharded.cluster import RayCluster


class FakeRay:
    """Remembers where it was started, and how often it was ended."""

    def __init__(self) -> None:
        self.address: str | None = None
        self.folders: list[Path] = []
        self.ended = 0
        self.breaks = False

    def is_initialized(self) -> bool:
        return self.address is not None

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(gcs_address=self.address)

    def init(self, address: str, _temp_dir: str, **options: object) -> None:
        self.folders.append(Path(_temp_dir))
        assert self.folders[-1].is_dir()
        if self.breaks:
            raise RuntimeError("no room for a socket")
        self.address = f"127.0.0.1:{len(self.folders)}"

    def shutdown(self) -> None:
        self.address = None
        self.ended += 1


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setattr(cluster, "check_ray", lambda address: None)
    return fake


def test_the_last_user_ends_ray(ray: FakeRay) -> None:
    """Two engines on a Ray that the first has started, in any order; to close twice is to close once."""
    first, second = RayCluster.connect(), RayCluster.connect()
    assert (first.address, second.address, len(ray.folders)) == ("127.0.0.1:1", "127.0.0.1:1", 1)
    first.close()
    first.close()
    assert ray.is_initialized()
    assert ray.folders[0].exists()
    third = RayCluster.connect("auto")
    with pytest.raises(ConflictError, match="this process is connected to 127.0.0.1:1 already"):
        RayCluster.connect("127.0.0.1:9")
    second.close()
    assert ray.is_initialized()
    third.close()
    assert (ray.is_initialized(), ray.ended) == (False, 1)
    assert not ray.folders[0].exists()
    again = RayCluster.connect()
    assert again.address == "127.0.0.1:2"
    again.close()
    assert ray.ended == 2


def test_what_others_have_started_is_theirs(ray: FakeRay) -> None:
    """Before us, or in place of what was ours."""
    ray.address = "10.0.0.1:1"
    theirs = RayCluster.connect()
    assert not theirs.connected_here
    theirs.close()
    ray.shutdown()
    ours = RayCluster.connect()
    ray.shutdown()
    ray.address = "10.0.0.1:2"
    late = RayCluster.connect()
    ours.close()
    late.close()
    assert ray.address == "10.0.0.1:2"
    assert not ray.folders[0].exists()


def test_folders_are_short_and_none_is_left(ray: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sockets need a short path, whatever TMPDIR is; a Ray that does not start leaves nothing behind."""
    long = tmp_path / ("long" * 20)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    ray.breaks = True
    with pytest.raises(UnavailableError, match="no room for a socket.*; tried 3 times"):
        RayCluster.connect()
    assert len(ray.folders) == START_TRIES
    assert len(str(ray.folders[0])) < LONGEST_FOLDER
    assert not ray.folders[0].exists()
    ray.breaks = False
    one = RayCluster.connect()
    one.close()
    assert not ray.folders[-1].exists()
