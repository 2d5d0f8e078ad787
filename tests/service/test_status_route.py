"""/v1/status: what somebody on call sees, and what nobody sees there."""

from __future__ import annotations

from pathlib import Path
from time import monotonic, sleep

import pytest
from serving import RunningService, serving

from limerank.service.options import ServiceOptions
from limerank.service.security.gate import Gate
from limerank.service.security.keys import KeyRing, create_key
from limerank.service.watching.recent import MOST_PROBLEMS, SECONDS, Recent, quantile


def until_noted(running: RunningService, problems: int) -> None:
    """An answer may be seen before the service has noted it."""
    until = monotonic() + 30
    while len(running.service.metrics.recent.told().problems) < problems:
        assert monotonic() < until, f"{problems} problems were not noted"
        sleep(0.005)


def test_what_happened_is_told(own_store: Path) -> None:
    """Stages and counts of requests that were made here, and problems by kind; no user, no item, no key."""
    with serving(own_store, ServiceOptions(deadline_ms=20_000, queue=7), slots=3) as running:
        for _ in range(5):
            running.post("/v1/rank", {"user_id": "secret-user", "item_ids": ["secret-item"], "limit": 5})
        running.post("/v1/rank", {"user_id": "secret-user", "task": "no-such-task"}, **{"X-Request-ID": "mine-1"})
        until_noted(running, 1)
        running.http.get("/v1/nothing-here")
        until_noted(running, 2)
        response = running.http.get("/v1/status")
        told = response.json()
        assert told["status"] == "ok"
        assert told["bundle"]["id"] == running.host.current_id
        assert told["stages"]["user"]["count"] == 5
        assert told["stages"]["total"]["count"] == 5
        for stage in told["stages"].values():
            assert stage["p50"] <= stage["p95"] <= stage["p99"] <= stage["max"]
        assert told["requests"]["by_status"] == {"200": 5, "404": 1, "422": 1}
        assert told["requests"]["in_flight"] == 1
        assert (told["queue"]["limit"], told["queue"]["slots"], told["queue"]["refused"]) == (7, 3, 0)
        assert told["queue"]["admitted"] == 6
        states = told["states"]
        assert sum(states["by_how"].values()) == 5
        assert states["hit_rate"] == pytest.approx(states["by_how"].get("cached", 0) / 5)
        assert told["rankings_by_arm"] == {"control": 5}
        assert [(one["status"], one["type"], one["route"]) for one in told["errors"]] == [
            (404, "/problems/no-such-path", ""),
            (422, "/problems/invalid-value", "/v1/rank"),
        ]
        assert told["errors"][1]["request_id"] == "mine-1"
        assert "secret" not in response.text
        assert running.post("/v1/rank", {"user_id": "u1", "options": {"deadline_ms": 1}}).status_code in (200, 504)


def test_answers_that_leave_something_out_are_counted(own_store: Path) -> None:
    with serving(own_store) as running:
        with running.host.lease() as lease:
            for reason in ("user: half of the history", "interact: some", "user: all of it"):
                running.service.metrics.degraded.labels(reason.partition(":")[0]).inc()
            assert lease.bundle_id
        assert running.http.get("/v1/status").json()["degraded"] == {"user": 2.0, "interact": 1.0}


def test_seconds_follow_each_other_without_gaps() -> None:
    """By a clock of the test: quiet seconds are there, the one that is not over is not, and old ones go."""
    time = 1000.0
    recent = Recent(lambda: time)

    def request(status: int = 200, milliseconds: float = 2.0) -> None:
        kinds = [] if status < 400 else ["internal"]
        recent.answered("/v1/rank", "POST", status, milliseconds / 1000, kinds, f"r{time}", computes=True)

    for milliseconds in (1.0, 2.0, 3.0):
        request(milliseconds=milliseconds)
    recent.waits(4)
    recent.waits(2)
    time = 1003.5
    request(500)
    request(429)
    told = recent.told()
    assert [(one.second, one.requests, one.waiting) for one in told.seconds] == [
        (1000, 3, 4),
        (1001, 0, 0),
        (1002, 0, 0),
    ]
    assert told.seconds[0].milliseconds == [1.0, 2.0, 3.0]
    assert told.seconds[0].milliseconds is not recent.told().seconds[0].milliseconds
    time = 1004.0
    assert [(one.requests, one.failed) for one in recent.told().seconds][-1] == (2, 2)
    assert told.stages["total"] == [1.0, 2.0, 3.0]
    time = 1070.0
    assert recent.told().stages == {}
    assert recent.told().by_status == {}
    time = 2000.0
    assert len(recent.told().seconds) == SECONDS
    assert all(one.requests == 0 for one in recent.told().seconds)
    for _ in range(3 * MOST_PROBLEMS):
        request(500)
    recent.answered("", "GET", 404, 0.001, ["no-such-path"], "r", computes=False)
    assert len(recent.told().problems) == MOST_PROBLEMS + 2  # faults do not push refusals out, nor they faults
    assert [quantile([1.0, 2.0, 3.0, 4.0], fraction) for fraction in (0.0, 0.5, 0.99)] == [1.0, 3.0, 4.0]


def test_problems_of_one_millisecond_are_told_newest_first() -> None:
    """A quick client meets several before the clock goes on."""
    recent = Recent(lambda: 1000.0)
    for name in ("first", "second", "third"):
        recent.answered("/v1/rank", "POST", 422, 0.001, ["invalid-value"], name, computes=True)
    assert [one.request_id for one in recent.told().problems] == ["third", "second", "first"]


def test_info_says_what_a_key_may_do(own_store: Path) -> None:
    """And what it may not is not there: a key that may not read users is told of none."""
    made = {scope: create_key(own_store, [scope])[0] for scope in ("rank", "admin")}
    options = ServiceOptions(deadline_ms=20_000)
    keys = KeyRing(own_store)
    with serving(own_store, options, layers=[lambda app: Gate(app, keys, options)]) as running:
        seen = {
            scope: running.http.get("/v1/info", headers={"Authorization": f"Bearer {key}"}).json()
            for scope, key in made.items()
        }
        assert seen["rank"]["scopes"] == ["rank"]
        assert seen["rank"]["served"]["example_user"] is None
        assert seen["admin"]["scopes"] == ["rank", "write", "admin"]
        assert seen["admin"]["served"]["example_user"] is not None
        refused = running.http.get("/v1/users", headers={"Authorization": f"Bearer {made['rank']}"})
        assert (refused.status_code, refused.json()["type"]) == (403, "/problems/forbidden")
        assert made["rank"] not in refused.text
        status = running.http.get("/v1/status", headers={"X-API-Key": made["rank"]})
        assert status.json()["errors"][0]["type"] == "/problems/forbidden"
        assert not any(key in status.text for key in made.values())


def test_the_service_of_the_session_answers(service: RunningService) -> None:
    assert service.http.get("/v1/status").json()["processes"] == 1
