"""Works on a store that are killed with SIGKILL at a step; a script, for a process that forks one child per try.

A step is a call that changes what is on the disk: every fsync, rename, mkdir, link and unlink, and every statement that
SQLite executes. The code of limerank does not know of it. Each line of standard input names a work, a store and the
number of the step before which to kill (0: none); the answer tells how the child ended and what its steps were. Without
a number the child looks at the store, does the work again, and looks again.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from limerank import files
from limerank.data.store.dataset import StoredDataset
from limerank.models import build_ranker
from limerank.serve.bundles.archive import pieces_of, receive
from limerank.serve.bundles.offline import export
from limerank.serve.bundles.store import BundleStore
from limerank.serve.engine import Engine
from limerank.serve.hosting.host import Host
from limerank.serve.overlay.changes import ChangeFile
from limerank.serve.overlay.fold import fold
from limerank.serve.overlay.items import Item

MODEL = {"name": "lime-mha", "links": 4}
CALLS = ("fsync", "replace", "rename", "mkdir", "unlink", "rmdir", "link")


class Steps:
    """Counts steps, and kills this process before one of them."""

    def __init__(self, kill: int) -> None:
        self.names: list[str] = []
        self.kill = kill

    def step(self, name: str) -> None:
        self.names.append(name)
        if len(self.names) == self.kill:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self) -> None:
        """From now on."""
        for call in CALLS:
            setattr(os, call, partial(self._called, call, getattr(os, call)))
        steps = self

        class Watched(sqlite3.Connection):
            def execute(self, *arguments: Any) -> sqlite3.Cursor:
                steps.step(f"sql {arguments[0].split()[0]}")
                return super().execute(*arguments)

        connect = sqlite3.connect
        sqlite3.connect = lambda *given, **named: connect(*given, **{"factory": Watched, **named})

    def _called(self, name: str, call: Callable[..., Any], *given: Any, **named: Any) -> Any:
        self.step(name)
        return call(*given, **named)


def _export(store: Path, data: Path) -> None:
    dataset = StoredDataset.open(data / "dataset")
    torch.manual_seed(9)
    ranker = build_ranker(MODEL, dataset.encoders.space(), len(dataset.schema.tasks), "test").eval()
    export(ranker, MODEL, dataset, store, max_history=20, threads=1)


def _host(store: Path) -> Host:
    return Host.open(store, threads=1, warmup_requests=1, follow=False)


def _activate(store: Path, data: Path) -> None:
    with _host(store) as host:
        host.activate(host.store.ids()[1])


def _roll_back(store: Path, data: Path) -> None:
    with _host(store) as host:
        if host.current_id == host.store.ids()[0]:
            host.roll_back()


def _upsert(store: Path, data: Path) -> None:
    with Engine.open(store, threads=1) as engine:
        names = [one.name for one in engine.bundle.encoders.item if one.name != "item_id"]
        engine.upsert([Item(item, dict.fromkeys(names)) for item in ("i1", "new one", "new two")])


WORKS: dict[str, Callable[[Path, Path], object]] = {
    "export": _export,
    "activate": _activate,
    "roll back": _roll_back,
    "receive": lambda store, data: receive(BundleStore.open(store), pieces_of(data / "bundle.tar")),
    "upsert": _upsert,
    "fold": lambda store, data: fold(BundleStore.open(store)),
    "collect": lambda store, data: BundleStore.open(store).collect(1),
}


def look(store: Path) -> dict[str, Any]:
    """What a store is now; every bundle of it is verified, and the active one ranks."""
    opened = BundleStore.open(store)
    contents = {}
    for bundle_id in opened.ids():
        records = opened.open_bundle(bundle_id).manifest.files
        contents[bundle_id] = files.digest_of(*(part for record in records for part in (record.path, record.sha256)))
    with Engine.open(store, threads=1) as engine:
        ranked = engine.answer("u1", limit=3)
    changes = [[one.item_id, one.deleted, one.features] for one in ChangeFile(store).records()]
    folders = sorted(path.name for path in (store / "bundles").iterdir())
    active = opened.active()
    return {
        "contents": contents,
        "current": active.current,
        "previous": active.previous,
        "ranked": ranked.bundle,
        "changes": changes,
        "leftovers": [name for name in folders if name not in contents],
    }


def _looked_at(name: str, store: Path, data: Path) -> list[Any]:
    """What a store is now, when a work was done on it again, and when leftovers were collected."""
    left = look(store)
    WORKS[name](store, data)
    again = look(store)
    BundleStore.open(store).collect(1)
    return [left, again, [path.name for path in (store / "bundles").iterdir()]]


def _in_a_child(work: Callable[[], Any]) -> tuple[int, Any]:
    """How a child that does a work ends (the number of a signal, 0 if well), and what it returned."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        code = 1
        try:
            said = json.dumps(work()).encode()
            with os.fdopen(writing, "wb") as out:
                out.write(said)
            code = 0
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as handle:
        said = handle.read()
    status = os.waitpid(child, 0)[1]
    return os.waitstatus_to_exitcode(status), json.loads(said) if said else None


def _done(name: str, store: Path, data: Path, kill: int) -> list[str]:
    steps = Steps(kill)
    steps.watch()
    WORKS[name](store, data)
    return steps.names


def main() -> None:
    """Answer every line of standard input."""
    data = Path(sys.argv[1])
    torch.set_num_threads(1)
    for line in sys.stdin:
        asked = json.loads(line)
        store = Path(asked["store"])
        if asked["kill"] is None:
            work: Callable[[], Any] = partial(_looked_at, asked["work"], store, data)
        else:
            work = partial(_done, asked["work"], store, data, asked["kill"])
        print(json.dumps(_in_a_child(work)), flush=True)  # noqa: T201 (this is how it answers)


if __name__ == "__main__":
    main()
