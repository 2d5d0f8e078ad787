"""A host serves what its store says, exchanges it without a wrong answer, and refuses what it cannot serve."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from calling import answer, limerank
from hosts import USERS, answers_as, featureless, mapped, open_files, scores

from limerank.errors import BundleError, ConflictError, UnavailableError
from limerank.serve.bundles.store import BundleStore
from limerank.serve.engine import Engine
from limerank.serve.experiments.routing import Arm, Routing, Shadow, assign, write_routing
from limerank.serve.histories.past import Happened
from limerank.serve.hosting.host import Host

pytest_plugins = ("host_fixtures",)

Open = Callable[..., Host]
OWNER = """
import sys, time
from limerank.serve.hosting.host import Host
host = Host.open(sys.argv[1], threads=1, warmup_requests=1)
print(host.current_id, flush=True)
time.sleep(600)
"""
SIBLING = """
import json, sys
from limerank.serve.hosting.host import Host
host = Host.open(sys.argv[1], threads=1, warmup_requests=1, owner=False)
host.states.forget()
with host.lease("u1") as lease:
    lease.engine.answer("u1")
print("ready", flush=True)
for line in sys.stdin:
    with host.lease("u1") as lease:
        print(json.dumps([lease.bundle_id, lease.arm, sorted(host.states.user_ids()), host.reasons()]), flush=True)
"""


def wait_for(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "too late"
        time.sleep(0.02)


def test_a_store_is_served_activated_and_rolled_back(opened: Open, ids: list[str], expected: Any) -> None:
    """S3: what is said of an activation is true, and a rollback finds the previous bundle still open."""
    warmed: list[tuple[int, int]] = []
    host = opened(on_warm=lambda done, of: warmed.append((done, of)), warmup_requests=4)
    assert warmed == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert (host.current_id, host.previous_id, host.reasons()) == (ids[0], None, [])
    answers_as(host, expected, ids[0])
    done = host.activate(ids[1], expected_current=ids[0])
    assert (done.previous, done.current, done.verified_files, done.warmup_requests) == (ids[0], ids[1], 9, 4)
    assert 0 <= done.flip_ms < 1000
    answers_as(host, expected, ids[1])
    back = host.roll_back()
    assert (back.previous, back.current, back.verified_files, back.warmup_requests) == (ids[1], ids[0], 0, 0)
    assert back.took_ms < 1000
    answers_as(host, expected, ids[0])
    assert host.activate(ids[0]).current == ids[0]  # what is active already stays, and so does the previous
    assert (host.current_id, host.previous_id) == (ids[0], ids[1])


def test_whoever_expects_another_bundle_changes_nothing(opened: Open, ids: list[str], hosted_store: Path) -> None:
    host = opened()
    before = (hosted_store / "ACTIVE.json").read_bytes()
    with pytest.raises(ConflictError, match=f"the active bundle is {ids[0]}, not {ids[2]}"):
        host.activate(ids[1], expected_current=ids[2])
    with pytest.raises(ConflictError, match=f"the active bundle is {ids[0]}, not x"):
        host.roll_back(expected_current="x")
    with pytest.raises(ConflictError, match="no previous bundle to roll back to"):
        host.roll_back()
    with pytest.raises(BundleError, match="no bundle 'x'"):
        host.activate("x")
    assert (hosted_store / "ACTIVE.json").read_bytes() == before
    assert (host.current_id, host.served_ids) == (ids[0], [ids[0]])


def test_a_full_disk_changes_nothing(opened: Open, ids: list[str], hosted_store: Path, expected: Any) -> None:
    """The bundle was verified and warm: it is not served, its files are not mapped, and the old one answers."""
    host = opened()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        with pytest.raises(UnavailableError, match="no room left on the device; nothing was changed"):
            host.activate(ids[1])
        with pytest.raises(UnavailableError, match="no room left on the device; nothing was changed"):
            host.set_routing(Routing(shadows=(Shadow(bundle=ids[2], sample=1),)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    answers_as(host, expected, ids[0])
    assert (host.served_ids, mapped(hosted_store / "bundles" / ids[1]), host.routing) == ([ids[0]], 0, Routing())
    assert host.activate(ids[1]).previous == ids[0]


def test_nothing_active_is_an_error_that_says_what_to_do(hosted_store: Path) -> None:
    (hosted_store / "ACTIVE.json").unlink()
    with pytest.raises(BundleError, match="no bundle is active; choose one with `limerank bundle activate`"):
        Host.open(hosted_store)
    assert (hosted_store / "owner.lock").read_text() == ""  # and the store is free


def test_one_process_owns_a_store(hosted_store: Path, ids: list[str]) -> None:
    """F8: a second host is refused with the pid of the first, until that is killed; a supervisor's children are not."""
    process = subprocess.Popen([sys.executable, "-c", OWNER, str(hosted_store)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline().strip() == ids[0]
        with pytest.raises(ConflictError, match=f"is served by process {process.pid} on .* since 20"):
            Host.open(hosted_store, threads=1)
        Host.open(hosted_store, threads=1, warmup_requests=1, owner=False).close()
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    with Host.open(hosted_store, threads=1, warmup_requests=1) as host:
        assert host.current_id == ids[0]
        with pytest.raises(ConflictError, match="is served by process"):
            Host.open(hosted_store, threads=1)


def test_a_request_keeps_its_bundle_and_the_last_one_takes_it_along(
    opened: Open, ids: list[str], hosted_store: Path, expected: Any
) -> None:
    """Two activations while a request is under way: it goes on with its bundle, which goes when the request ends."""
    host = opened()
    with host.lease("u1") as lease:
        host.activate(ids[1])
        host.activate(ids[2])
        assert host.served_ids == [ids[2], ids[1]]
        assert lease.bundle_id == ids[0]
        assert (scores(lease.engine, "u1") == scores(lease.engine, "u1")).all()
        assert host.leases == 1
        assert mapped(hosted_store / "bundles" / ids[0]) > 0
        lease.engine.answer("u1")
        assert host.states is not None
        states = host.states.counts().users
    del lease
    assert mapped(hosted_store / "bundles" / ids[0]) == 0
    assert host.states.counts().users < states  # what was kept of users for it, is forgotten
    assert host.leases == 0
    answers_as(host, expected, ids[2])


def test_ten_activations_leave_nothing_open(opened: Open, ids: list[str], hosted_store: Path) -> None:
    """L7: descriptors and mappings stay what they were."""
    host = opened()
    for number in range(3):
        host.activate(ids[number % 3])
    before = open_files(), mapped(hosted_store)
    for number in range(3, 15):
        host.activate(ids[number % 3])
    assert (open_files(), mapped(hosted_store)) == before


def test_after_close_nothing_is_served(opened: Open, ids: list[str], hosted_store: Path) -> None:
    """A request that is under way is waited for; a new one is refused."""
    host = opened()
    host.close()
    with pytest.raises(UnavailableError, match="this host is closed"), host.lease():
        pytest.fail("a lease of a closed host")
    with pytest.raises(UnavailableError, match="this host is closed"):
        host.activate(ids[1])
    assert mapped(hosted_store) == 0


def of_arm(routing: Routing, arm: str) -> str:
    return next(user for number in range(1000) if assign(routing, user := f"u{number}") == arm)


def test_arms_have_their_bundles(opened: Open, ids: list[str], hosted_store: Path) -> None:
    """Users of an arm have its bundle, all others the active one; a bundle may be asked for if it is served."""
    host = opened()
    routing = Routing(
        experiment="e", arms=(Arm(name="b", bundle=ids[1], percent=50),), shadows=(Shadow(bundle=ids[2], sample=1),)
    )
    host.set_routing(routing)
    for arm, bundle_id in (("b", ids[1]), ("control", ids[0])):
        with host.lease(of_arm(routing, arm)) as lease:
            assert (lease.arm, lease.bundle_id, lease.shadows) == (arm, bundle_id, [ids[2]])
        with host.lease("u1", bundle=bundle_id) as lease:
            assert (lease.arm, lease.bundle_id) == (arm, bundle_id)
    with host.lease(bundle=ids[2]) as lease:
        assert (lease.bundle_id, lease.arm) == (ids[2], "asked")
    with pytest.raises(BundleError, match="bundle 'x' is not served"), host.lease(bundle="x"):
        pytest.fail("a lease of nothing")
    assert host.collect(1) == []
    host.set_routing(Routing())
    assert host.served_ids == [ids[0]]
    with host.lease(of_arm(routing, "b")) as lease:
        assert (lease.arm, lease.bundle_id) == ("control", ids[0])
    assert host.collect(1) == [ids[1]]  # the newest one is kept, too
    assert mapped(hosted_store / "bundles" / ids[2]) == 0


def damage(store: Path, bundle_id: str) -> Path:
    path = store / "bundles" / bundle_id / "rows.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    return path


def test_a_broken_arm_is_refused_and_at_a_start_left_out(opened: Open, ids: list[str], hosted_store: Path) -> None:
    """Refused while serving, with the file named; a host that finds one starts, and the active bundle has its users."""
    host = opened()
    path = damage(hosted_store, ids[1])
    routing = Routing(experiment="e", arms=(Arm(name="b", bundle=ids[1], percent=50),))
    with pytest.raises(BundleError, match=r"rows\.safetensors: has \d+ bytes, should have"):
        host.set_routing(routing)
    assert (host.routing, (hosted_store / "routing.json").exists()) == (Routing(), False)
    host.close()
    write_routing(hosted_store, routing)
    host = opened()
    with host.lease(of_arm(routing, "b")) as lease:
        assert (lease.arm, lease.bundle_id) == ("control", ids[0])
    (reason,) = host.reasons()
    assert reason.startswith(f"arm b: {path}: has")
    (hosted_store / "routing.json").write_text("{")
    host.look()
    assert any("routing.json: not valid JSON" in reason for reason in host.reasons())


def test_another_process_activates(opened: Open, ids: list[str], hosted_store: Path, expected: Any) -> None:
    """What a command activates is served; what is broken is not: the old bundle serves on, and there is a reason."""
    host = opened(follow=True)
    assert answer("bundle", "activate", hosted_store, ids[1])["current"] == ids[1]
    wait_for(lambda: host.current_id == ids[1])
    answers_as(host, expected, ids[1])
    answer("bundle", "rollback", hosted_store)
    wait_for(lambda: host.current_id == ids[0])
    path = damage(hosted_store, ids[2])
    (hosted_store / "ACTIVE.json").write_text(json.dumps({"current": ids[2], "previous": ids[0]}))
    wait_for(lambda: bool(host.reasons()))
    assert host.reasons()[0].startswith(f"{path}: has")
    assert host.reasons()[0].endswith(f"{ids[0]} serves on")
    answers_as(host, expected, ids[0])
    (hosted_store / "ACTIVE.json").write_text("{")
    wait_for(lambda: "not valid JSON" in "".join(host.reasons()))
    answers_as(host, expected, ids[0])
    (hosted_store / "ACTIVE.json").unlink()
    wait_for(lambda: "names no bundle" in "".join(host.reasons()))
    host.activate(ids[1])
    wait_for(lambda: host.reasons() == [])
    answers_as(host, expected, ids[1])


def test_sibling_processes_agree(opened: Open, ids: list[str], hosted_store: Path) -> None:
    """S4: a process beside the owner serves what the owner activates and routes, and forgets whom it erases."""
    host = opened()
    sibling = subprocess.Popen(
        [sys.executable, "-c", SIBLING, str(hosted_store)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert sibling.stdout is not None
    assert sibling.stdin is not None

    def says() -> list[Any]:
        assert sibling.stdin is not None
        assert sibling.stdout is not None
        sibling.stdin.write("?\n")
        sibling.stdin.flush()
        said: list[Any] = json.loads(sibling.stdout.readline())
        return said

    try:
        assert sibling.stdout.readline() == "ready\n"
        assert says() == [ids[0], "control", ["u1"], []]
        assert host.erase_user("u1").hidden[ids[0]] > 0
        wait_for(lambda: says()[2] == [])
        for number in (1, 2, 0):
            host.activate(ids[number])
            began = time.monotonic()
            wait_for(lambda wanted=ids[number]: says()[0] == wanted)  # type: ignore[misc]
            assert time.monotonic() - began < 10  # two seconds on a machine that does nothing else
        host.set_routing(Routing(experiment="e", arms=(Arm(name="all", bundle=ids[1], percent=100),)))
        wait_for(lambda: says()[:2] == [ids[1], "all"])
    finally:
        sibling.stdin.close()
        sibling.wait()
        sibling.stdout.close()
    assert sibling.returncode == 0


def test_reasons_tell_what_is_not_well(opened: Open, hosted_store: Path) -> None:
    host = opened(max_age_hours=1e-9)
    (reason,) = host.reasons()
    assert "hours old, more than 1e-09; export a new one" in reason
    host.max_age_hours = None
    with host.lease() as lease:
        lease.engine.upsert([featureless(lease.engine, "new")])
        assert host.reasons() == []
    (hosted_store / "overlay" / "changes.sqlite").write_bytes(b"not a database, and long enough to be looked at" * 100)
    assert any("changes.sqlite" in reason for reason in host.reasons())


def test_an_erased_user_is_forgotten(opened: Open, ids: list[str]) -> None:
    """Stored events, kept states and logged rankings go; what bundles hold is counted, and not read any more."""
    host, user = opened(), "u7"
    host.activate(ids[1])  # the one before stays open, and forgets, too
    with host.lease() as lease, host.lease(bundle=ids[0]) as other:
        length = lease.engine.answer(user).history_used
        time_of_event = int(time.time() * 1000)
        host.histories.add([Happened(user, "i1", time_of_event, type="click")])
        for engine in (lease.engine, other.engine):
            assert engine.answer(user).history_used == min(20, length + 1)
            assert user in engine.users_in_memory()
    erased = host.erase_user(user)
    assert (erased.deleted["events"], erased.deleted["states"], erased.deleted["rankings"]) == (1, 2, 0)
    assert erased.hidden == dict.fromkeys(ids, length)
    with host.lease() as lease, host.lease(bundle=ids[0]) as other:
        engines = [lease.engine, other.engine]
        assert [user in engine.users_in_memory() for engine in engines] == [False, False]
        assert [engine.answer(user).history_used for engine in engines] == [0, 0]
    assert host.erase_user("nobody").hidden == {}
    assert user not in (host.store.path / "erasures.json").read_text()


def test_verify_and_diff(opened: Open, ids: list[str], hosted_store: Path) -> None:
    """Bundles are compared by what they hold and how they rank; the same one does not differ."""
    host = opened()
    assert host.verify(ids[1]).files == 9
    same = host.diff(ids[0], ids[0])
    assert (same.facts, same.items_added, same.items_changed, same.users_removed) == ({}, 0, 0, 0)
    assert same.rankings == {"users": 50.0, "overlap_10": 1.0, "overlap_100": 1.0, "score_difference": 0.0}
    other = host.diff(ids[0], ids[1])
    assert set(other.facts) == {"row_fingerprint"}
    assert other.rankings["overlap_10"] < 1
    assert other.rankings["score_difference"] > 0
    assert mapped(hosted_store / "bundles" / ids[1]) == 0
    damage(hosted_store, ids[2])
    with pytest.raises(BundleError, match=r"rows\.safetensors: has"):
        host.verify(ids[2])


def test_what_is_compared_is_opened_as_what_is_served(opened: Open, ids: list[str]) -> None:
    """By the host's own opener, or a host with shards would map all rows here; and it is closed afterwards."""
    opening: list[tuple[str, object]] = []
    closed: list[str] = []

    class Own(Engine):
        def close(self) -> None:
            closed.append(self.bundle.manifest.id)
            super().close()

    def open_own(store: BundleStore, bundle_id: str, **given: Any) -> Engine:
        opening.append((bundle_id, given["states"]))
        return Own(store.open_bundle(bundle_id), **given)

    host = opened(open_engine=open_own)
    del opening[:]
    with host.engine_of(ids[1]) as engine:
        assert isinstance(engine, Own)
        assert (opening, closed) == ([(ids[1], 0)], [])
    assert closed == [ids[1]]
    assert host.diff(ids[0], ids[1]).rankings["overlap_10"] < 1
    assert closed == [ids[1], ids[1]]


def test_engines_elsewhere_are_two_at_most(opened: Open, ids: list[str]) -> None:
    """What they keep for a bundle is not there three times: the previous one is closed, and a rollback opens it."""
    there: list[str] = []
    most = 0

    class Elsewhere(Engine):
        def close(self) -> None:
            there.remove(self.bundle.manifest.id)
            super().close()

    def open_elsewhere(store: BundleStore, bundle_id: str, **given: Any) -> Engine:
        nonlocal most
        there.append(bundle_id)
        most = max(most, len(there))
        return Elsewhere(store.open_bundle(bundle_id), **given)

    host = opened(open_engine=open_elsewhere)
    for bundle_id in (ids[1], ids[0], ids[1]):
        host.activate(bundle_id)
        assert host.served_ids == there == [bundle_id]
    assert host.roll_back().verified_files > 0
    assert host.served_ids == there == [ids[0]]
    assert most == 2


def test_diff_counts_items(opened: Open, ids: list[str], hosted_store: Path) -> None:
    """A folded bundle has the items that were upserted, the command says so too, and gc spares what is routed."""
    host = opened()
    with host.lease() as lease:
        known = lease.engine.bundle.item_ids.names_of([1, 2])
        lease.engine.upsert([featureless(lease.engine, name) for name in (*known, "new")])
    done = limerank("items", "fold", hosted_store, "--no-activate")
    assert done.returncode == 0, done.stderr
    folded = host.store.ids()[-1]
    found = host.diff(ids[0], folded)
    assert (found.items_added, found.items_removed, found.items_changed) == (1, 0, 2)
    back = answer("bundle", "diff", hosted_store, folded, ids[0])
    assert (back["items_added"], back["items_removed"], back["items_changed"]) == (0, 1, 2)
    assert "items: 1 added, 0 removed, 2 changed" in limerank("bundle", "diff", hosted_store, ids[0], folded).stdout
    write_routing(hosted_store, Routing(shadows=(Shadow(bundle=ids[1], sample=0.5),)))
    assert answer("bundle", "gc", hosted_store, "--keep", "1")["removed"] == [ids[2]]
    (hosted_store / "routing.json").write_text("[]")
    assert "does not list arms and shadows" in limerank("bundle", "gc", hosted_store, "--keep", "1").stderr


def test_users_of_the_tests_are_known(template: Path, ids: list[str]) -> None:
    """Three with histories and one without; else the tests above would compare little."""
    known = BundleStore(template).open_bundle(ids[0]).user_ids.rows_of(USERS)
    assert [bool(row) for row in known] == [True, True, True, False]
