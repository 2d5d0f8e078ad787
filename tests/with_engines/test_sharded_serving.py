"""Sharded serving on a real Ray: one machine's order, scorers killed and stopped under load, bundles exchanged."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from calling import refusal
from processes import serving, until
from tied_world import MARGIN, tied_bundle, tied_dataset

import limerank as lr
from limerank.data.store.dataset import StoredDataset
from limerank.errors import BundleError, ConflictError, UnavailableError, UsageError
from limerank.serve.bundles.bundle import ROWS, Bundle
from limerank.serve.engine import Engine
from limerank.serve.hosting.host import Host
from limerank.serve.ranking import Ranking
from limerank.serve.sharded import deployed
from limerank.serve.sharded.asking import Patience
from limerank.serve.sharded.cluster import RayCluster, check_reachable, serve_module
from limerank.serve.sharded.engine import ShardedEngine, ShardedEngines
from limerank.serve.sharded.messages import Assignment
from limerank.serve.sharded.slices import Slice
from with_engines.ray_cluster import below, command_of
from with_engines.ray_here import ray_here

pytestmark = pytest.mark.filterwarnings("ignore")  # of Ray and what it brings

ITEMS = 9_000
"""Three blocks of the scorer, the last one not full."""
SECONDS = 60.0
"""No wait takes so long; a test that waits longer has failed."""
USERS = ("u0", "u7", "u21", "nobody")
SLOW_MACHINE = Patience(hedge_ms=300, patience_ms=20_000)
"""Nobody is lost because the machine has other things to do."""


@pytest.fixture(scope="module", autouse=True)
def ray_address() -> Iterator[str]:
    with ray_here(cpus=16) as address:
        yield address


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> StoredDataset:
    return tied_dataset(tmp_path_factory.mktemp("tied") / "d", ITEMS)


def agree(one: Ranking, other: Ranking, *, bits: bool = False) -> None:
    """The same order, ties included; and the same scores, to the bit where each block has the shape of one machine."""
    values = np.unique(other.probabilities[:, 0])
    assert len(values) < 2 or np.diff(values).min() > MARGIN, "the test's own margin"
    assert one.degraded == other.degraded == []
    assert one.item_ids == other.item_ids
    np.testing.assert_allclose(one.probabilities, other.probabilities, rtol=1e-5, atol=MARGIN / 4)
    assert not bits or np.array_equal(one.probabilities, other.probabilities)
    told = ("candidates", "unknown_items", "repeated_items", "seen_items", "unscored", "history_used", "known_user")
    assert {name: getattr(one, name) for name in told} == {name: getattr(other, name) for name in told}


def of_store(store: Path) -> set[str]:
    """The applications that are there for a store."""
    return {name for name in serve_module().status().applications if name.startswith(deployed.prefix_of(store))}


def scorers_below(process: int) -> list[int]:
    """The scorers of a Ray that a process has started."""
    return [pid for pid in below(process) if command_of(pid).startswith(b"ray::ServeReplica")]


@contextmanager
def under_load(ask: Callable[[int], None], threads: int = 2) -> Iterator[list[BaseException]]:
    """Ask again and again from some threads; what goes wrong there is in the list, and fails at the end."""
    end, wrong = threading.Event(), list[BaseException]()

    def work(seed: int) -> None:
        number = seed
        while not end.is_set() and not wrong:
            try:
                ask(number)
            except BaseException as error:
                wrong.append(error)
            number += threads
            end.wait(0.01)  # the machine has other things to do, too

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(threads)]
    for one in workers:
        one.start()
    try:
        yield wrong
    finally:
        end.set()
        for one in workers:
            one.join(SECONDS)
    if wrong:
        raise wrong[0]


@pytest.mark.parametrize("name", ["lime-mha", "lime-xor", "linear-attention"])
def test_merged_order_is_that_of_one_machine(name: str, tied: StoredDataset, tmp_path: Path) -> None:
    """Several users and limits, named and unknown candidates, without what was seen, and thousands of ties."""
    tied_bundle(tied, tmp_path / "store", name=name)
    named = [f"i{number}" for number in np.random.default_rng(2).integers(0, ITEMS, 300)] + ["nothing", "i5", "nothing"]
    with (
        lr.ShardedEngine.open(tmp_path / "store", shards=2, patience=SLOW_MACHINE) as sharded,
        Engine.open(tmp_path / "store", threads=1) as engine,
    ):
        assert len({facts.pid for facts in sharded.shards.facts} | {os.getpid()}) == 3, "rows are in other processes"
        for user in USERS:
            agree(sharded.answer(user), engine.answer(user), bits=True)
            for limit in (1, 10, 500):
                agree(sharded.answer(user, limit=limit), engine.answer(user, limit=limit))
            agree(sharded.answer(user, named), engine.answer(user, named))
            agree(sharded.answer(user, named, limit=7), engine.answer(user, named, limit=7))
        agree(sharded.answer("u7", limit=50, exclude_seen=True), engine.answer("u7", limit=50, exclude_seen=True))
        one, other = (each.rank("u7", limit=20, task="like") for each in (sharded, engine))
        assert one["item_id"].to_list() == other["item_id"].to_list()
        for task in ("click", "like"):  # one of them may have tried integers, and scored the best in other blocks
            np.testing.assert_allclose(one[task], other[task], rtol=1e-5, atol=MARGIN / 4)
        ours, theirs = (one.score(one.encode_user("u7"), named) for one in (sharded, engine))
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=MARGIN / 4)


def test_a_scorer_killed_under_load(tied: StoredDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every answer is the whole truth, or the truth without some shards and says how much is missing; then it is back.

    One of two threads has a deadline that ends before Ray has started the scorer again. Where a healthy shard is cut
    short by it, too, because the machine has other things to do, what was found is in the order of the truth.
    """
    bundle = tied_bundle(tied, tmp_path / "store", name="lime-mha")
    with (
        ShardedEngine.open(tmp_path / "store", shards=2, patience=Patience(300, 10_000)) as sharded,
        Engine(bundle, threads=1) as engine,
    ):
        truth = {user: engine.answer(user).item_ids for user in USERS}
        slices = sharded.shards.slices
        items = [set(bundle.item_ids.names_of(np.arange(one.first_item, one.last))) for one in slices]
        counts = {"whole": 0, "without the killed one": 0, "cut short": 0}

        def ask(number: int) -> None:
            user, hasty = USERS[number % len(USERS)], number % 2 == 0
            found = sharded.answer(user, limit=25, deadline_ms=700 if hasty else None)
            lost = lost_shards(found, slices)
            rest = [item for item in truth[user] if not any(item in items[one] for one in lost)]
            if found.unscored == sum(slices[one].items for one in lost):
                assert found.item_ids == rest[:25]
                assert bool(found.degraded) == bool(lost)
                counts["whole"] += not lost
                counts["without the killed one"] += lost == {1}
            else:
                assert hasty, found.degraded
                order = iter(rest)
                assert all(item in order for item in found.item_ids), "in the order of the truth"
                counts["cut short"] += 1

        with under_load(ask) as wrong:
            until(lambda: counts["whole"] > 20 or bool(wrong), SECONDS)  # answers
            os.kill(sharded.shards.facts[1].pid, signal.SIGKILL)
            killed = time.monotonic()
            until(lambda: counts["without the killed one"] > 0 or bool(wrong), SECONDS)  # somebody missed the shard
            whole = counts["whole"]
            until(lambda: counts["whole"] > whole or bool(wrong), 2 * SECONDS)  # it came back
            back = time.monotonic() - killed
            until(lambda: counts["whole"] > whole + 20 or bool(wrong), SECONDS)  # whole answers again
        until(lambda: not sharded.shards.asking.lost, SECONDS)
        assert sharded.answer("u0", limit=25).item_ids == truth["u0"][:25]
    with capsys.disabled():
        print(f"\na scorer killed under load: {counts}, 0 wrong; whole again {back:.1f} s after the kill")  # noqa: T201


def lost_shards(found: Ranking, slices: Sequence[Slice]) -> set[int]:
    """The shards that an answer names as lost; the fraction that it tells is theirs."""
    said = [line for line in found.degraded if line.startswith("shards: ")]
    lost = {int(number) - 1 for line in said for number in re.findall(rf"shard (\d+) of {len(slices)}: ", line)}
    missing = sum(slices[one].items for one in lost) / ITEMS
    assert len(said) == bool(lost)
    assert all(line.startswith(f"shards: {missing:.1%} of the catalog is missing (shard ") for line in said)
    return lost


def test_a_scorer_that_hangs_is_hedged(tied: StoredDataset, tmp_path: Path) -> None:
    """One of two replicas is stopped, not dead: its requests are answered by the other, and none is degraded."""
    bundle = tied_bundle(tied, tmp_path / "store", name="lime-mha")
    patience = Patience(hedge_ms=100, patience_ms=20_000)
    with (
        ShardedEngine.open(tmp_path / "store", shards=1, replicas=2, patience=patience) as sharded,
        Engine(bundle, threads=1) as engine,
    ):
        truth = {user: engine.answer(user, limit=25).item_ids for user in USERS}
        stopped = sharded.shards.facts[0].pid
        os.kill(stopped, signal.SIGSTOP)
        try:
            for number in range(40):
                found = sharded.answer(USERS[number % len(USERS)], limit=25)
                assert (found.item_ids, found.degraded) == (truth[USERS[number % len(USERS)]], [])
        finally:
            with suppress(ProcessLookupError):  # Serve replaces who hangs for long
                os.kill(stopped, signal.SIGCONT)
        assert sharded.shards.asking.counts.lost == 0


def test_bundles_are_exchanged_under_load_and_a_damaged_one_is_not(
    tied: StoredDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every answer is wholly one bundle's; a shard that cannot prepare leaves all shards with the bundle they have."""
    store = tmp_path / "store"
    first = tied_bundle(tied, store, name="lime-mha")
    second = tied_bundle(tied, store, seed=6, name="lime-xor")
    truth: dict[tuple[str, str], list[str]] = {}
    for bundle in (first, second):
        with Engine(bundle, threads=1) as engine:
            truth |= {(bundle.manifest.id, user): engine.answer(user, limit=25).item_ids for user in USERS}
    ids = [first.manifest.id, second.manifest.id]
    assert truth[ids[0], "u0"] != truth[ids[1], "u0"], "the test can tell them apart"
    engines = ShardedEngines(shards=2, patience=SLOW_MACHINE)
    answered = dict.fromkeys(ids, 0)

    def ask(number: int) -> None:
        user = USERS[number % len(USERS)]
        with host.lease(user) as lease:
            found = lease.engine.answer(user, limit=25)
        assert found.item_ids == truth[found.bundle, user]
        assert (found.bundle, found.degraded) == (lease.bundle_id, [])
        answered[found.bundle] += 1

    with Host.open(store, threads=2, warmup_requests=2, open_engine=engines, follow=False) as host:
        assert host.current_id == ids[1]
        with under_load(ask) as wrong:
            until(lambda: answered[ids[1]] > 5 or bool(wrong), SECONDS)  # answers
            host.activate(ids[0])
            at_flip = answered[ids[0]]
            until(lambda: answered[ids[0]] > at_flip + 5 or bool(wrong), SECONDS)  # answers by the new bundle
            host.roll_back()
            at_flip = answered[ids[1]]
            until(lambda: answered[ids[1]] > at_flip + 5 or bool(wrong), SECONDS)  # answers after the rollback
        third = tied_bundle(tied, store, seed=7, name="lime-mha")
        host.store.point_to(ids[1])
        until(lambda: len(of_store(store)) == 2, SECONDS)  # those of the bundle that was rolled back have ended
        before = of_store(store)
        monkeypatch.setattr(deployed, "assignments", damaging(third))
        with pytest.raises(BundleError, match=r"shard 2 of 2: .*rows\.safetensors: rows .* are not those that were"):
            host.activate(third.manifest.id)
        assert (host.current_id, host.store.current_id()) == (ids[1], ids[1])
        assert of_store(store) == before, "nothing of it is left"
        for number in range(len(USERS)):
            ask(number)
    until(lambda: not of_store(store), SECONDS)  # no scorer outlives its host


def damaging(bundle: Bundle) -> Callable[..., list[Assignment]]:
    """What the machine of the last shard reads is another file than what was verified."""
    real = deployed.assignments

    def damaged(*given: object) -> list[Assignment]:
        told = real(*given)  # type: ignore[arg-type]
        path = bundle.path / ROWS
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.unlink()  # who has mapped it keeps what was there
        path.write_bytes(content)
        return told

    return damaged


def test_what_cannot_be_is_told_in_a_line(tied: StoredDataset, tmp_path: Path, ray_address: str) -> None:
    """Rankers without rows, more shards than rows, an address where nobody is, another cluster than the one in use."""
    tied_bundle(tied, tmp_path / "mha", name="mha")
    with pytest.raises(UsageError, match="ranker 'mha' cannot be sharded"):
        ShardedEngine.open(tmp_path / "mha", shards=2)
    tied_bundle(tied, tmp_path / "lime", name="lime-mha")
    with pytest.raises(UsageError, match="for 9,000 items, at most 563, but are 600"):
        ShardedEngine.open(tmp_path / "lime", shards=600)
    with pytest.raises(ConflictError, match=f"this process is connected to {ray_address} already"):
        ShardedEngine.open(tmp_path / "lime", shards=2, ray="127.0.0.1:1")
    with pytest.raises(UsageError, match=r"ray at 10.0.0.1: an address is auto or HOST:PORT, such as 10.0.0.1:6379"):
        ShardedEngine.open(tmp_path / "lime", shards=2, ray="10.0.0.1")
    assert not of_store(tmp_path / "mha") | of_store(tmp_path / "lime")
    assert RayCluster.connect(ray_address).connected_here is False
    with pytest.raises(UnavailableError, match="ray at 127.0.0.1:1: does not answer .*; start it: ray start"):
        check_reachable("127.0.0.1:1")


def test_other_names_of_the_cluster_in_use(tied: StoredDataset, tmp_path: Path, ray_address: str) -> None:
    """Ray says the IP of its first node, whatever name it was joined by."""
    tied_bundle(tied, tmp_path / "lime", name="lime-mha")
    port = ray_address.rpartition(":")[2]
    with ShardedEngine.open(tmp_path / "lime", shards=2, patience=SLOW_MACHINE) as first:
        with ShardedEngine.open(tmp_path / "lime", shards=2, ray=f"127.0.0.1:{port}", patience=SLOW_MACHINE) as second:
            agree(second.answer("u7", limit=12), first.answer("u7", limit=12))
        for name in (f"localhost:{port}", "auto", ray_address):
            assert RayCluster.connect(name).address == ray_address


def test_the_command_serves_in_shards(
    tied: StoredDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ray_address: str
) -> None:
    """`limerank serve --shards 2` on a Ray of its own: the same API and the same answers.

    That Ray starts a killed scorer again, and ends when the service does.
    """
    store = tmp_path / "store"
    bundle = tied_bundle(tied, store, name="lime-mha")
    monkeypatch.setenv("TMPDIR", "/tmp")  # sockets need a short path
    with Engine(bundle, threads=1) as engine:
        expected = engine.answer("u7", limit=12)
    told = ("--shards", "2", "--warmup-requests", "1", "--patience-ms", "20000", "--deadline-ms", "20000")
    with serving(store, *told) as served, served.client() as client:
        found = client.post("/v1/rank", json={"user_id": "u7", "limit": 12}).raise_for_status().json()
        assert [item["id"] for item in found["items"]] == expected.item_ids
        assert (found["degraded"], found["bundle"]) == ([], bundle.manifest.id)
        before = scorers_below(served.process.pid)
        assert len(before) == 2
        os.kill(before[0], signal.SIGKILL)

        def whole_again() -> bool:
            now = scorers_below(served.process.pid)
            if len(now) != 2 or before[0] in now:
                return False
            again = client.post("/v1/rank", json={"user_id": "u7", "limit": 12}).raise_for_status().json()
            return (again["degraded"], again["items"]) == ([], found["items"])

        until(whole_again, SECONDS)
        of_ray = below(served.process.pid)
        served.ask_to_end()
        assert served.wait() == 0
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in of_ray), SECONDS)
    nobody = refusal(6, "serve", store, "--shards", "2", "--ray", "127.0.0.1:1", "--port", "0")
    assert "ray at 127.0.0.1:1: does not answer" in nobody
    assert "give HOST:PORT" in refusal(2, "serve", store, "--shards", "2", "--ray", "ray://127.0.0.1:1")
