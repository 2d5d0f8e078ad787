"""Bundles are exchanged while requests run: no error, and no answer that is not one bundle's own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hosts import USERS, scores

from limerank.errors import UnavailableError
from limerank.serve.hosting.host import Host

pytest_plugins = ("host_fixtures",)

Open = Callable[..., Host]


class Clients:
    """Threads that lease and rank until they are told to stop; each answer is compared with its bundle's."""

    def __init__(self, host: Host, expected: Any, threads: int) -> None:
        self.host = host
        self.expected = expected
        self.errors: list[BaseException] = []
        self.answered: dict[str, int] = {}
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(threads)]

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        while not self._end.is_set():
            user = USERS[number % len(USERS)]
            number += 1
            try:
                with self.host.lease(user) as lease:
                    ranking = lease.engine.answer(user, limit=10)
                    found = scores(lease.engine, user)
                assert ranking.bundle == lease.bundle_id
                wanted = self.expected[lease.bundle_id][user]
                np.testing.assert_allclose(found, wanted, atol=1e-5)
                np.testing.assert_allclose(ranking.probabilities[:, 0], np.sort(wanted[:, 0])[::-1][:10], atol=1e-5)
                self.answered[lease.bundle_id] = self.answered.get(lease.bundle_id, 0) + 1
            except BaseException as error:
                self.errors.append(error)
                return


@pytest.mark.parametrize("keep_previous", [True, False])
def test_twenty_swaps_under_load(opened: Open, ids: list[str], expected: Any, keep_previous: bool) -> None:
    """S1: activations and rollbacks while threads rank; every answer is the one of the bundle that it names."""
    host = opened(threads=2, keep_previous=keep_previous, follow=True)
    with Clients(host, expected, threads=4) as clients:
        for number in range(20):
            done = host.roll_back() if number % 5 == 4 else host.activate(ids[(number + 1) % 3])
            assert done.flip_ms < 1000
            time.sleep(0.02)
    assert clients.errors == []
    assert set(clients.answered) == set(ids)
    assert host.leases == 0
    assert host.reasons() == []


def test_a_host_that_closes_lets_requests_end(opened: Open, expected: Any) -> None:
    """Requests under way are answered; those that come too late are refused with a word, whatever the timing."""
    for _ in range(3):
        host = opened(threads=2)
        with Clients(host, expected, threads=4) as clients:
            time.sleep(0.05)
            host.close()
        assert {type(error) for error in clients.errors} == {UnavailableError}
        assert sum(clients.answered.values()) > 0


def test_many_change_at_once(opened: Open, ids: list[str], expected: Any) -> None:
    """Threads that activate, look and roll back at the same time: one at a time does, and the store agrees."""
    host = opened(threads=2)
    host.activate(ids[1])  # so that there is something to roll back to
    errors: list[BaseException] = []

    def change(number: int) -> None:
        try:
            for step in range(4):
                host.activate(ids[(number + step) % 3])
                host.look()
                host.roll_back()
        except BaseException as error:
            errors.append(error)

    with Clients(host, expected, threads=2) as clients:
        threads = [threading.Thread(target=change, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert (errors, clients.errors) == ([], [])
    assert host.current_id == host.store.current_id()
    assert set(host.served_ids) == {host.store.current_id(), host.store.previous_id()}
