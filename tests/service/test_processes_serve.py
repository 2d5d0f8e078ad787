"""Several processes on one socket, and a supervisor: they follow one store, and what dies is replaced or told."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from calling import refusal
from processes import Served, serving, until

from limerank.api.run import Run
from limerank.errors import LimerankError
from limerank.serve.bundles.store import BundleStore
from limerank.service.options import ServiceOptions
from limerank.service.running.listening import listen
from limerank.service.running.processes import CrashLoopError, Supervisor

ALIKE_SECONDS = 2.0
"""S4: so soon all processes answer with a bundle that was activated; a busy machine has five times as long."""


@pytest.fixture(scope="module")
def two_bundles(store: Path, runs: dict[str, Run], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two bundles, the first active."""
    copy = Path(shutil.copytree(store, tmp_path_factory.mktemp("processes") / "store"))
    runs["lime-mha"].publish(copy, quiet=True)
    BundleStore.open(copy).roll_back()
    return copy


@pytest.fixture(scope="module")
def served(two_bundles: Path) -> Iterator[Served]:
    with serving(two_bundles, "--processes", "2", "--warmup-requests", "1", "--threads", "1") as running:
        yield running


def info(served: Served) -> dict[str, Any]:
    """Asked on a connection of its own, which any of the processes may take."""
    with served.client() as client:
        answer = client.get("/v1/info")
    assert answer.status_code == 200, answer.text
    facts: dict[str, Any] = answer.json()
    return facts


def of_both(served: Served) -> dict[int, dict[str, Any]]:
    """What each of the two processes says of itself."""
    said: dict[int, dict[str, Any]] = {}

    def both() -> bool:
        facts = info(served)
        said[facts["pid"]] = facts
        return len(said) == 2

    until(both)
    return said


def test_both_answer_and_say_how_many_they_are(served: Served) -> None:
    said = of_both(served)
    assert set(said) == set(served.facts["children"])
    assert {facts["processes"] for facts in said.values()} == {2}
    assert served.facts["pid"] == served.process.pid


def test_what_one_activates_all_answer_with(served: Served, two_bundles: Path) -> None:
    """S4: activate through one process; soon after, every answer of both names the new bundle."""
    first, second = BundleStore.open(two_bundles).ids()
    assert {facts["served"]["bundle"] for facts in of_both(served).values()} == {first}
    with served.client() as client:
        activated = client.post(f"/v1/bundles/{second}/activate", json={"expected_current": first})
        assert activated.status_code == 200, activated.text
    began = time.monotonic()
    until(lambda: {facts["served"]["bundle"] for facts in of_both(served).values()} == {second}, 5 * ALIKE_SECONDS)
    assert time.monotonic() - began < 5 * ALIKE_SECONDS
    ranked = []
    for _ in range(20):
        with served.client() as client:
            ranked.append(client.post("/v1/rank", json={"user_id": "u1", "limit": 1}).json()["bundle"])
    assert set(ranked) == {second}


def test_a_second_owner_is_told_of_the_supervisor(served: Served, two_bundles: Path) -> None:
    """F8 for several processes: the supervisor owns the store."""
    assert str(served.process.pid) in refusal(5, "serve", two_bundles, "--port", "0")


def test_counts_of_all_processes_are_added_up(served: Served) -> None:
    """Whichever process is asked for metrics answers for both."""
    of_both(served)
    with served.client() as client:
        text = client.get("/metrics").text
    counted = [line for line in text.splitlines() if "limerank_http_request_duration_seconds_count" in line]
    infos = [float(line.rpartition(" ")[2]) for line in counted if 'route="/v1/info"' in line]
    assert sum(infos) >= 4


def test_a_process_that_dies_is_replaced(served: Served) -> None:
    """kill -9 of one of two: all calls are answered meanwhile (`info` takes only 200), and soon there are two."""
    before = set(of_both(served))
    victim = min(before)
    os.kill(victim, signal.SIGKILL)
    (survivor,) = before - {victim}
    after = of_both(served)
    assert victim not in after
    assert survivor in after


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_children_do_not_outlive_their_supervisor(served: Served) -> None:
    """Killed without a word, it leaves nobody behind that nobody looks after."""
    children = set(of_both(served))
    served.process.kill()
    until(lambda: not [pid for pid in children if is_alive(pid)])


@pytest.fixture
def supervisor_of(tmp_path: Path) -> Iterator[Callable[[str], Supervisor]]:
    """A supervisor of two processes that run a few lines of Python each; real ones, but quick."""
    listeners = []

    def made(lines: str) -> Supervisor:
        options = ServiceOptions(port=0, processes=2, grace_seconds=10)
        listeners.append(listen(options))
        return Supervisor(tmp_path, options, listeners[-1], lambda facts: None, (sys.executable, "-c", lines))

    yield made
    for listener in listeners:
        listener.close()


def test_children_cannot_die_for_ever(supervisor_of: Callable[[str], Supervisor]) -> None:
    """They are ready, and die, and the next die, too: that ends with a line that says how, and exit code 6."""
    dying = supervisor_of("import sys; print('{}', flush=True); sys.stdin.close(); sys.exit(3)")
    dying._announced = True  # they were well once
    with pytest.raises(CrashLoopError, match="processes died within 60 s, the last with code 3") as raised:
        dying.run()
    assert raised.value.exit_code == 6


def test_what_a_child_cannot_do_is_told_as_if_it_were_alone(supervisor_of: Callable[[str], Supervisor]) -> None:
    """The error of a child that never became ready: its line, its exit code."""
    failing = supervisor_of("""print('{"error": "no bundle is active", "exit_code": 4}', flush=True)""")
    with pytest.raises(LimerankError, match="no bundle is active") as raised:
        failing.run()
    assert raised.value.exit_code == 4


@pytest.mark.parametrize(("signals", "code"), [(1, 0), (2, 143)])
def test_all_end_together(supervisor_of: Callable[[str], Supervisor], signals: int, code: int) -> None:
    """One signal to the supervisor: every process is asked to end, and it ends with 0; two: at once."""
    waits = "import signal, sys; signal.signal(15, lambda *_: sys.exit(0)); print('{}', flush=True); signal.pause()"
    ends_at_once = waits if signals == 1 else waits.replace("sys.exit(0)", "signal.signal(15, signal.SIG_DFL)")
    supervisor = supervisor_of(ends_at_once + "; signal.pause()")

    def ask() -> None:
        until(lambda: len(supervisor._ready) == 2)
        for _ in range(signals):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.2)

    asking = threading.Thread(target=ask)
    asking.start()
    assert supervisor.run() == code
    asking.join()
    assert all(child.poll() is not None for child in supervisor.children)
