"""F2: a process that is killed at any step of its work leaves a store that serves, and the work can be done again."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from killed_works import WORKS

from limerank.data.store.dataset import StoredDataset
from limerank.serve.bundles import archive
from limerank.serve.bundles.store import BundleStore

pytest_plugins = ("host_fixtures",)

POINTS = 3
"""Steps of each work before which it is killed: the first, the last and some between."""


class Killer:
    """A process that does works in children, and kills them."""

    def __init__(self, data: Path) -> None:
        script = Path(__file__).with_name("killed_works.py")
        self._process = subprocess.Popen(
            [sys.executable, str(script), str(data)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, work: str, store: Path, kill: int | None) -> tuple[int, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"work": work, "store": str(store), "kill": kill}) + "\n")
        self._process.stdin.flush()
        code, said = json.loads(self._process.stdout.readline())
        return code, said

    def done(self, work: str, store: Path) -> Any:
        """The steps of a work that is not killed."""
        code, said = self.ask(work, store, 0)
        assert code == 0
        return said

    def looked_at(self, work: str, store: Path) -> Any:
        """What a store is, what it is after the work, and what is left in it when it is collected."""
        code, said = self.ask(work, store, None)
        assert code == 0
        return said

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@pytest.fixture(scope="module")
def killer(template: Path, dataset: StoredDataset, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killer]:
    """Beside it lie the dataset of an export, and the archive of a bundle that stores do not have."""
    data = tmp_path_factory.mktemp("killing")
    (data / "dataset").symlink_to(dataset.path)
    last = BundleStore(template).ids()[-1]
    archive.save(BundleStore(template).open_bundle(last), data / "bundle.tar")
    killer = Killer(data)
    yield killer
    killer.close()


def prepared(work: str, template: Path, ids: list[str], store: Path, killer: Killer) -> Path:
    """A store that a work finds something to do in."""
    shutil.copytree(template, store)
    if work == "receive":
        shutil.rmtree(store / "bundles" / ids[-1])
    if work == "roll back":
        BundleStore(store).point_to(ids[1])
        BundleStore(store).point_to(ids[0])
    if work == "fold":
        killer.done("upsert", store)
    return store


@pytest.mark.parametrize("work", list(WORKS))
def test_killed_at_any_step(work: str, template: Path, ids: list[str], tmp_path: Path, killer: Killer) -> None:
    """Afterwards every bundle verifies, the active one is the old or the new one, and doing it again ends alike."""
    before, whole, _ = killer.looked_at(work, prepared(work, template, ids, tmp_path / "whole", killer))
    steps = killer.done(work, prepared(work, template, ids, tmp_path / "counted", killer))
    assert len(steps) >= 3, steps
    for kill in np.unique(np.linspace(1, len(steps), POINTS).astype(int)).tolist():
        store = prepared(work, template, ids, tmp_path / str(kill), killer)
        assert killer.ask(work, store, kill) == (-signal.SIGKILL, None), steps[kill - 1]
        left, again, folders = killer.looked_at(work, store)
        assert left["current"] in (before["current"], whole["current"])
        assert left["ranked"] == left["current"]
        assert left["changes"] in (before["changes"], whole["changes"])  # all of a call, or nothing
        same = {bundle: left["contents"].get(bundle) for bundle in before["contents"] if bundle in whole["contents"]}
        assert same == {bundle: before["contents"][bundle] for bundle in same}
        assert again["changes"] == whole["changes"]
        assert (again["current"], again["previous"]) == (whole["current"], whole["previous"])
        assert newest(again) == newest(whole)
        assert set(folders) <= set(again["contents"])  # nothing is left over


def newest(seen: dict[str, Any]) -> str:
    """The hash of the content of a store's newest bundle."""
    contents: dict[str, str] = seen["contents"]
    return contents[max(contents)]
