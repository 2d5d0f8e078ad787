"""/v1/info and the probes."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from serving import RunningService, serving

from limerank.serve.engine import Engine, Missing
from limerank.service.options import ServiceOptions


def test_info_says_what_requests_may_say(service: RunningService) -> None:
    """Features, tasks and limits, as the active bundle and the options have them."""
    told = service.http.get("/v1/info").json()
    manifest = service.host.store.open_bundle().manifest
    assert told["served"]["bundle"] == manifest.id
    assert told["served"]["tasks"] == manifest.tasks
    with service.host.lease() as lease:
        assert told["served"]["items"] == len(lease.engine.catalog)
    assert "device" in told["served"]["context_features"]
    assert told["limits"]["candidates"] == 50_000
    assert set(told["events"]) >= {"users", "events", "bytes"}


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/healthz"])
def test_probes(service: RunningService, path: str) -> None:
    """All are fine, and HEAD says the same without a body."""
    assert service.http.get(path).json()["status"] == "ok"
    head = service.http.head(path)
    assert (head.status_code, head.content) == (200, b"")


def test_a_service_that_drains_is_alive_and_not_ready(own_store: Path) -> None:
    """/readyz changes first, and work that arrives late is told 503, never dropped."""
    with serving(own_store, ServiceOptions(max_bundle_age_hours=0.0)) as running:
        assert running.http.get("/healthz").json()["status"] == "degraded"
        running.service.status = "draining"
        running.service.admission.draining = True
        assert running.http.get("/livez").status_code == 200
        for path in ("/readyz", "/healthz"):
            answer = running.http.get(path)
            assert (answer.status_code, answer.json()["status"]) == (503, "draining")
        refused = running.post("/v1/rank", {"user_id": "u1"})
        assert refused.status_code == 503
        assert refused.json()["type"] == "/problems/unavailable"


def test_a_service_that_can_rank_nothing_is_not_ready(own_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lives and says why; where only some rows are missing, requests are welcome."""
    with serving(own_store, ServiceOptions()) as running:
        monkeypatch.setattr(Engine, "missing", lambda engine: Missing("some are missing"))
        assert running.http.get("/readyz").status_code == 200
        assert running.http.get("/healthz").json()["reasons"] == ["some are missing"]
        monkeypatch.setattr(Engine, "missing", lambda engine: Missing("all are missing", 3.0))
        ready, health = running.http.get("/readyz"), running.http.get("/healthz")
        assert (ready.status_code, health.status_code) == (503, 200)
        for told in (ready.json(), health.json()):
            assert (told["status"], told["reasons"]) == ("degraded", ["all are missing"])
        assert running.http.get("/livez").status_code == 200
        assert "limerank_ready 0.0" in running.http.get("/metrics").text


def test_request_ids_are_echoed_or_made(service: RunningService) -> None:
    """A harmless id comes back; what could break a header or a log is replaced."""

    def echoed(given: str) -> str:
        answer: httpx.Response = service.http.get("/v1/info", headers={"X-Request-ID": given})
        return answer.headers["x-request-id"]

    assert echoed("mine-1") == "mine-1"
    for bad in ("", "x" * 129, "two words", "<b>"):
        assert len(echoed(bad)) == 32
