"""A small simulated world shared by the tests: one log, one trained run per ranker, one store."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from numerics import THREADS
from serving import RunningService, copied, serving

from limerank.api.dataset import Dataset
from limerank.api.run import Run
from limerank.api.training import train
from limerank.data.raw.log import RawLog
from limerank.data.sources.simulated import SimulatedConfig, simulate
from limerank.data.store.dataset import StoredDataset
from limerank.models import RANKERS, Ranker, build_ranker
from limerank.serve.engine import Engine

SMALL = SimulatedConfig(users=60, items=200, topics=6, sessions=8, slots=6, seed=3)
MAX_HISTORY = 20

settings.register_profile("limerank", deadline=None)  # tests assert no times, and machines are shared
settings.load_profile("limerank")


@pytest.fixture(autouse=True, scope="session")
def fixed_threads() -> None:
    """Small tensors are fastest on one thread, and sums do not depend on the number of cores; see numerics.py."""
    torch.set_num_threads(int(os.environ.get(THREADS, "1")))


@pytest.fixture(scope="session")
def raw_log() -> RawLog:
    return simulate(SMALL)


@pytest.fixture(scope="session")
def dataset(raw_log: RawLog, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return Dataset.build(raw_log, out=tmp_path_factory.mktemp("data") / "dataset", quiet=True)


@pytest.fixture(params=sorted(RANKERS))
def ranker(request: pytest.FixtureRequest, dataset: StoredDataset) -> Ranker:
    """Every ranker in turn, freshly initialized."""
    torch.manual_seed(0)
    ranker = build_ranker({"name": request.param}, dataset.encoders.space(), len(dataset.schema.tasks), "test")
    return ranker.eval()


class Runs(dict[str, Run]):
    """A ranker is trained when it is first asked for: a session needs few of them."""

    def __init__(self, dataset: StoredDataset, folder: Path) -> None:
        super().__init__()
        self.dataset = dataset
        self.folder = folder

    def __missing__(self, name: str) -> Run:
        out = self.folder / name
        self[name] = train(
            name, self.dataset, out=out, epochs=2, batch_requests=32, max_history=MAX_HISTORY, quiet=True
        )
        return self[name]


@pytest.fixture(scope="session")
def runs(dataset: StoredDataset, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """One short run of every ranker, by name."""
    return Runs(dataset, tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def store(runs: dict[str, Run], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose active bundle is LIME-MHA in fp16."""
    path = tmp_path_factory.mktemp("stores") / "store"
    runs["lime-mha"].publish(path, quiet=True)
    return path


@pytest.fixture(scope="session")
def engine(store: Path) -> Engine:
    return Engine.open(store)


@pytest.fixture(scope="session")
def service(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """A running service on a copy of the session's store: add events of your own users, but change no bundles."""
    with serving(copied(store, tmp_path_factory.mktemp("served"))) as running:
        yield running


@pytest.fixture
def own_store(store: Path, tmp_path: Path) -> Path:
    """A copy of the session's store, for one test: `with serving(own_store) as running: ...`."""
    return copied(store, tmp_path)


@pytest.fixture
def owners_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, str]]:
    """The folder that a real server publishes, and its address."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    class Silent(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            return None

    folder = tmp_path / "served"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()
