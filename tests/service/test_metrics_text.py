"""GET /metrics: what happened, by route, stage and kind; nobody's id."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from serving import RunningService, serving

from limerank.service.metrics import MOST_TYPES, Metrics


def sample(text: str, name: str, **labels: str) -> float:
    found = [
        one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
        if one.name == name and labels.items() <= one.labels.items()
    ]
    return sum(found)


def test_requests_are_counted_by_route_and_stage(own_store: Path) -> None:
    """Errors too, with their reason; and nothing names a user or an item."""
    with serving(own_store) as running:
        for _ in range(3):
            running.post("/v1/rank", {"user_id": "secret-user", "item_ids": ["i1", "secret-item"]})
        running.post("/v1/rank", {"user_id": ""})
        running.http.get("/v1/nothing/secret-path")
        running.post("/v1/events", {"events": [{"user_id": "secret-user", "item_id": "i1", "type": "click"}, {}]})
        text = _metrics(running)
        bundle = running.host.current_id
    requests = "limerank_http_request_duration_seconds_count"
    assert sample(text, requests, route="/v1/rank", method="POST", code="200") == 3
    assert sample(text, requests, route="/v1/rank", method="POST", code="422") == 1
    assert sample(text, requests, route="other", code="404") == 1
    for stage in ("parse", "queue", "history", "user", "lookup", "interact", "select", "encode"):
        assert sample(text, "limerank_stage_duration_seconds_count", stage=stage) >= 3, stage
    assert sample(text, "limerank_requests_rejected_total", reason="invalid-value") == 1
    assert sample(text, "limerank_candidates_missing_total", policy="prior") == 3
    assert sample(text, "limerank_candidates_per_request_sum") == 6
    assert sample(text, "limerank_events_total", type="click", outcome="taken") == 1
    assert sample(text, "limerank_events_total", outcome="rejected") == 1
    assert sample(text, "limerank_user_states_total") == 3
    assert sample(text, "limerank_bundle_info", bundle=bundle, model="lime-mha") == 1
    assert sample(text, "limerank_history_store", what="events") == 1
    assert sample(text, "limerank_http_requests_in_flight") == 1  # this one
    assert sample(text, "limerank_ready") == 1
    assert "secret" not in text


def _metrics(running: RunningService) -> str:
    response = running.http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    return response.text


def test_only_so_many_types_of_events_have_names() -> None:
    """Callers choose them: they must not fill the memory of whoever collects metrics."""
    metrics = Metrics()
    for number in range(MOST_TYPES + 20):
        metrics.happened(f"type{number}", "taken")
    text = metrics.text().decode()
    assert sample(text, "limerank_events_total", type="other") == 20
    assert sample(text, "limerank_events_total") == MOST_TYPES + 20


def test_several_processes_are_added_up(tmp_path: Path) -> None:
    """With PROMETHEUS_MULTIPROC_DIR any process tells for all; a gauge of which there is one is not added up."""
    count = "from limerank.service.metrics import Metrics; m = Metrics(); m.answered('/v1/rank', 'POST', 200, 0.1, [])"
    ending = "; m.active('b', 'lime-mha', 5.0); import sys; sys.stdout.buffer.write(m.text())"
    environment = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "PYTHONPATH": ":".join(sys.path)}
    texts = [
        subprocess.run(
            [sys.executable, "-c", count + ending], env=environment, capture_output=True, check=True, text=True
        ).stdout
        for _ in range(2)
    ]
    assert sample(texts[1], "limerank_http_request_duration_seconds_count", route="/v1/rank") == 2
    assert sample(texts[1], "limerank_bundle_age_seconds") == 5
