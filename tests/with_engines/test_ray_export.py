"""Exports on a real Ray cluster: the bytes of a local export, whatever dies on the way."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from calling import refusal
from engines import need
from processes import until

from limerank.api.run import Run
from limerank.models import RANKERS
from limerank.serve.bundles import item_stage
from limerank.serve.bundles.offline import Exported
from limerank.serve.bundles.on_ray import connection
from limerank.serve.bundles.store import BundleStore
from with_engines.ray_cluster import RayCluster, free_address, own_environment, ray_cluster, ray_head

DRIVER = Path(__file__).parent / "ray_driver.py"
SECONDS = 240.0
"""No wait takes so long; a test that waits longer has failed."""
SLOW = 1 << 15
"""Items of a block, however few are wanted: a shard takes a good part of a second."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    need("ray", "ray")
    with ray_cluster() as started:
        yield started


@pytest.fixture(scope="module")
def run(runs: dict[str, Run]) -> Run:
    """201 items, seven shards."""
    return runs["lime-mha"]


@pytest.fixture(scope="module")
def small_shards() -> Iterator[None]:
    """As in the processes that the tests start."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(item_stage, "ITEMS_PER_BLOCK", SLOW)
        patched.setattr(item_stage, "ITEMS_PER_SHARD", 32)
        yield


@pytest.fixture(scope="module")
def expected(small_shards: None, run: Run, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The hashes of a local export."""
    return hashes(run.exported(tmp_path_factory.mktemp("local") / "store", quiet=True))


def hashes(exported: Exported) -> dict[str, str]:
    return {record.path: record.sha256 for record in exported.bundle.manifest.files}


def shards_of(store: Path) -> int:
    """How many are finished."""
    return sum(len(path.read_text().splitlines()) for path in store.glob("bundles/*/shards.jsonl"))


@pytest.fixture(scope="module")
def found(cluster: RayCluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one process found out with many exports."""
    done: dict[str, Any] = cluster.run(DRIVER, "kinds", cluster.address, tmp_path_factory.mktemp("kinds"))
    return done


@pytest.mark.parametrize("kind", [*(f"{name} fp16" for name in RANKERS), "lime-mha fp32", "lime-mha u8"])
def test_every_ranker_and_row_type_has_the_bytes_of_a_local_export(found: dict[str, Any], kind: str) -> None:
    assert found[kind] is True


def test_engines_go_on_with_each_others_exports_and_copy_the_same_rows(found: dict[str, Any]) -> None:
    """Rows that are kept, rows that are copied from an earlier bundle, and the bytes of an export without either.

    It was killed when the fourth shard, or the third whole one, came: Ray gives the last, a small one, at any time.
    """
    assert found["to ray"] == [128, True]
    assert found["from ray"] in ([128, True], [173, True])
    assert found["grown"] == [301, True]
    assert found["nothing new"] == [401, True]


def test_what_is_under_way_is_bounded(found: dict[str, Any]) -> None:
    """A shard for each of two cores, the spare ones, and one that waits for room."""
    assert found["shards"] == 11
    assert found["taken at once"] <= 3


def test_a_busy_cluster_is_waited_for_and_people_are_told(cluster: RayCluster, found: dict[str, Any]) -> None:
    assert found["busy"] == [f"note: Ray at {cluster.address}: no core is free yet; the export waits for one"]


def test_cores_that_others_take_in_the_middle_are_waited_for_and_people_are_told(
    cluster: RayCluster, found: dict[str, Any]
) -> None:
    told, missing = found["taken away"]
    waits = "no core is free, and none of [1-4] shards has come yet; the export waits"
    assert re.fullmatch(f"note: Ray at {cluster.address}: {waits}", told[0])
    assert missing == 0


def test_machines_that_vanish_are_waited_for_and_people_are_told(cluster: RayCluster) -> None:
    """A cluster of its own, whose only machine with a core is ended in the middle; another joins, and all is there."""
    found = cluster.run(DRIVER, "vanished")
    left = "no machine with a core is left; the export waits for one to join"
    assert set(found["told"]) == {f"note: Ray of a test: {left}"}
    assert found["same"] == [True] * 11


def test_what_a_worker_says_is_heard(found: dict[str, Any]) -> None:
    """One item is a shard; other bytes than the driver's are refused; an error of the ranker is the ranker's."""
    assert found["one item"] is True
    assert "rounds otherwise than this machine" in found["other bytes"]
    assert found["error"].startswith("IndexError: index out of range")
    lacks = "shard 4 was not computed: its worker had no memory, or could not read or write .*MemoryError: "
    assert re.fullmatch(f"UnavailableError: Ray at .*: {lacks}.*, then export again", found["no memory"])


def test_a_ray_client_exports_from_outside(
    run: Run, expected: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ray://HOST:PORT`: this process is no node of the cluster; the same bytes, and without the token a line."""
    own, address, clients = own_environment(), free_address(), free_address()
    with ray_head(address, own, f"--ray-client-server-port={clients.partition(':')[2]}"):
        joining = RayCluster(address, 0, {**os.environ, **own})
        for engine in (f"ray://{clients}", f"ray:ray://{clients}"):
            store = tmp_path / engine.partition(":")[0] / str(len(engine))
            found = joining.run(DRIVER, "run", run.path, store, str(SLOW), engine)
            assert found == {"hashes": expected, "kept": 0}
        for name, value in {**own, "RAY_AUTH_MODE": "disabled"}.items():
            monkeypatch.setenv(name, value)
        message = refusal(6, "export", run.path, "--store", tmp_path / "none", "--engine", f"ray://{clients}")
        assert message.startswith(f"error: engine 'ray:ray://{clients}': no Ray Client server took this process in; ")
        assert "does the cluster want a token (RAY_AUTH_MODE=token" in message
        assert message.count("\n") == 1
        assert not (tmp_path / "none").exists()


def test_a_worker_killed_with_sigkill_is_replaced(
    cluster: RayCluster, run: Run, expected: dict[str, str], tmp_path: Path
) -> None:
    """A real worker process in the middle of a shard, and a real kill -9."""
    store = tmp_path / "store"
    with cluster.begin(DRIVER, "run", run.path, store, str(SLOW), cluster.engine) as driver:
        killed: list[int] = []

        def one_is_killed() -> bool:
            """In one look: who was computing a moment ago may have finished."""
            if shards_of(store) >= 1:
                with suppress(ProcessLookupError):
                    for pid in cluster.computing()[:1]:
                        os.kill(pid, signal.SIGKILL)
                        killed.append(pid)
            return bool(killed)

        until(one_is_killed, SECONDS)
        assert shards_of(store) < 7  # its own is not among them
        assert driver.poll() is None
        until(lambda: killed[0] not in cluster.computing(), SECONDS)
        printed, errors = driver.communicate(timeout=SECONDS)
    assert driver.returncode == 0, errors
    assert json.loads(printed.splitlines()[-1]) == {"hashes": expected, "kept": 0}
    assert errors == ""


def test_a_driver_killed_with_sigkill_is_gone_on_with(
    cluster: RayCluster, run: Run, expected: dict[str, str], tmp_path: Path
) -> None:
    """The same command keeps what was finished; the cluster drops what nobody waits for."""
    store = tmp_path / "store"
    with cluster.begin(DRIVER, "run", run.path, store, str(SLOW), cluster.engine) as driver:
        until(lambda: shards_of(store) >= 2)
        driver.send_signal(signal.SIGKILL)
    kept = shards_of(store)
    assert BundleStore(store).ids() == []
    assert kept < 7
    until(lambda: not cluster.computing())
    again = cluster.run(DRIVER, "run", run.path, store, str(SLOW), cluster.engine)
    assert again == {"hashes": expected, "kept": kept * 32}


def test_a_shard_that_always_ends_its_worker_is_named(
    cluster: RayCluster, run: Run, expected: dict[str, str], tmp_path: Path
) -> None:
    """After four workers, with a line; the shards before it are kept, and an export without Ray goes on with them."""
    store = tmp_path / "store"
    with cluster.begin(DRIVER, "run", run.path, store, str(SLOW), cluster.engine) as driver:
        until(lambda: shards_of(store) >= 1)

        def all_are_killed() -> bool:
            for pid in cluster.computing():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return driver.poll() is not None

        try:
            until(all_are_killed, SECONDS)
        finally:
            driver.kill()
        _, errors = driver.communicate(timeout=SECONDS)
    assert driver.returncode != 0
    last = errors.splitlines()[-1]
    assert f"Ray at {cluster.address}: shard " in last
    assert "ended its worker 4 times" in last
    kept = shards_of(store)
    assert 1 <= kept < 7
    again = run.exported(store, quiet=True)
    assert (again.kept, hashes(again)) == (kept * 32, expected)


def test_an_interrupted_export_says_so_and_leaves_its_shards(cluster: RayCluster, run: Run, tmp_path: Path) -> None:
    """Ctrl-C, in the middle of the real command on an engine of its own; nothing of that engine is left."""
    temporary = Path(tempfile.mkdtemp(prefix="lr", dir="/tmp"))  # short: sockets are in it
    store = tmp_path / "store"
    with cluster.begin(
        "-m", "limerank", "export", run.path, "--store", store, "--engine", "ray", TMPDIR=str(temporary)
    ) as command:
        until(lambda: any(temporary.glob("limerank-ray-*")), SECONDS)
        command.send_signal(signal.SIGINT)
        _, errors = command.communicate(timeout=SECONDS)  # Ray starts first, which may take a minute and more
    assert command.returncode == 130
    assert "Traceback" not in errors
    assert f"interrupted; nothing was activated, {store} ranks as before" in errors
    assert BundleStore(store).ids() == []
    assert not any(temporary.glob("limerank-ray-*"))
    temporary.rmdir()


def test_more_processes_are_measured_on_an_engine_that_ends_with_the_work(cluster: RayCluster) -> None:
    """`engine="ray"` starts Ray with so many cores, and every bundle has the bytes that one thread makes."""
    rates = cluster.run(DRIVER, "bench")["rates"]
    assert [(rate["engine"], rate["processes"]) for rate in rates] == [
        ("local", 1),
        ("local", 2),
        ("ray", 1),
        ("ray", 2),
    ]
    assert all(rate["same_bytes"] and rate["items_per_second"] > 0 for rate in rates)
    assert [rate["efficiency"] for rate in rates if rate["processes"] == 1] == [1, 1]


def test_workers_without_limerank_are_named(cluster: RayCluster, run: Run, tmp_path: Path) -> None:
    """Before anything is written; and a connection that is there stays, and is not taken for another."""
    blocker = tmp_path / "blocker" / "limerank"
    blocker.mkdir(parents=True)
    (blocker / "__init__.py").write_text("raise ImportError(\"No module named 'limerank'\")")
    found = cluster.run(DRIVER, "without_limerank", cluster.address, blocker.parent, run.path, tmp_path / "store")
    assert found["exit code"] == 6
    assert f"Ray at {cluster.address}: " in found["error"]
    assert "No module named 'limerank'; install the same version of limerank there" in found["error"]
    assert not (tmp_path / "store").exists()
    assert found["still connected"] is True
    assert f"this process is connected to Ray at {cluster.address} already" in found["elsewhere"]
    assert found["here"] == [f"Ray at {cluster.address}"] * 3, "other names of the same cluster"


@pytest.fixture
def listener() -> Iterator[str]:
    """The address of somebody who listens and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def other_version(cluster: RayCluster, folder: Path) -> dict[str, str]:
    """Ray compares versions; a process that takes its own for an older one is refused."""
    (folder / "sitecustomize.py").write_text("import ray\nray.__version__ = '2.1.0'\n")
    return {**cluster.environment, "PYTHONPATH": f"{folder}{os.pathsep}{cluster.environment['PYTHONPATH']}"}


def no_token(cluster: RayCluster, folder: Path) -> dict[str, str]:
    return {**cluster.environment, "RAY_AUTH_MODE": "disabled"}


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        (other_version, "the cluster is of another version; install the same on both: .*Ray: 2.1.0"),
        (no_token, "the cluster wants a token; set RAY_AUTH_MODE=token"),
        (None, "Ray did not join a cluster there .no answer in 5 s.; see that it runs with `ray status`"),
    ],
)
def test_a_cluster_that_cannot_be_joined_is_a_line(
    cluster: RayCluster,
    listener: str,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    environment: Callable[[RayCluster, Path], dict[str, str]] | None,
    said: str,
) -> None:
    """Of another version, with a token that this process has not, or none at all; nothing is made."""
    if environment is None:
        monkeypatch.setattr(connection, "JOIN_SECONDS", 5.0)
    address = listener if environment is None else cluster.address
    for name, value in (environment(cluster, tmp_path) if environment is not None else cluster.environment).items():
        monkeypatch.setenv(name, value)
    store = tmp_path / "store"
    message = refusal(6, "export", run.path, "--store", store, "--engine", f"ray:{address}")
    assert message.startswith(f"error: engine 'ray:{address}': ")
    assert message.count("\n") == 1
    assert not store.exists()
    assert re.search(said, message), message


def test_a_port_where_nobody_listens_is_a_line(run: Run, tmp_path: Path) -> None:
    need("ray", "ray")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}"):
        message = refusal(6, "export", run.path, "--store", tmp_path / "store", "--engine", f"ray:{address}")
        assert message == (
            f"error: engine 'ray:{address}': nothing answers at 127.0.0.1:{port} (Connection refused); start Ray there "
            "(`ray start --head`), or export without --engine\n"
        )
    assert not (tmp_path / "store").exists()
