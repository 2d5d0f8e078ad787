"""OpenTelemetry: a span per request, one below it per stage, and the caller's trace goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from engines import need
from serving import serving

from limerank.service.tracing import Tracing


def test_a_request_is_a_span_with_its_stages_below(own_store: Path) -> None:
    """Times of stages lie inside the request's, the trace is the caller's, and nobody's id is in it."""
    need("opentelemetry.sdk", "otel")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace = "0af7651916cd43dd8448eb211c80319c"
    with serving(own_store, tracing=Tracing(provider)) as running:
        parent = {"traceparent": f"00-{trace}-b7ad6b7169203331-01"}
        answer = running.http.post("/v1/rank", json={"user_id": "u1", "item_ids": ["i1"]}, headers=parent)
        assert answer.status_code == 200
        assert running.http.post("/v1/rank", json={"user_id": ""}).status_code == 422
    request, refused = [span for span in exporter.get_finished_spans() if span.name == "POST /v1/rank"]
    assert request.context is not None
    assert f"{request.context.trace_id:032x}" == trace
    assert request.attributes is not None
    assert request.attributes["limerank.bundle"] == answer.json()["bundle"]
    assert request.attributes["http.response.status_code"] == 200
    assert refused.attributes is not None
    assert refused.attributes["http.response.status_code"] == 422
    stages = [s for s in exporter.get_finished_spans() if s.parent and s.parent.span_id == request.context.span_id]
    assert {span.name for span in stages} >= {"parse", "queue", "user", "lookup", "interact", "select", "encode"}
    for span in stages:
        assert request.start_time is not None
        assert request.end_time is not None
        assert span.start_time is not None
        assert span.end_time is not None
        assert request.start_time <= span.start_time <= span.end_time <= request.end_time
    assert "u1" not in str([span.attributes for span in exporter.get_finished_spans()])


def test_nothing_is_traced_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """No environment, no option: no provider."""
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_TRACES_EXPORTER"):
        monkeypatch.delenv(name, raising=False)
    assert Tracing.configured()._provider is None
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    assert Tracing.configured()._provider is None
