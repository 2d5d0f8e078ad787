"""OpenTelemetry, where it is installed and asked for: a span per request, and below it one per stage.

Spans name routes, stages, bundles and arms; no user, no item.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from limerank.errors import require_extra
from limerank.service.operations import Operation
from limerank.service.problems import refusal_of

if TYPE_CHECKING:
    from opentelemetry.trace import Span, TracerProvider

ASKED_BY = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_TRACES_EXPORTER")
SERVER_ERROR = 500


class Traced(Protocol):
    """What tracing looks at of a call."""

    operation: Operation
    request_id: str
    spans: list[tuple[str, float, float]]
    said: dict[str, Any]

    def since_arrival(self) -> float:
        """Milliseconds."""


class Tracing:
    """Traces requests with a provider; without one it does nothing."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._tracer = None if provider is None else provider.get_tracer("limerank")
        self._provider: Any = provider

    @classmethod
    def configured(cls, asked: bool = False) -> Tracing:
        """As the environment says: OTEL_* variables, or an option, ask for it; the SDK reads all the others."""
        wanted = asked or any(os.environ.get(name, "none") != "none" for name in ASKED_BY)
        if not wanted or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
            return cls()
        if asked:
            require_extra("opentelemetry.sdk" if find_spec("opentelemetry") else "opentelemetry", "otel")
        elif find_spec("opentelemetry") is None or find_spec("opentelemetry.sdk") is None:
            return cls()
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        named = {} if "OTEL_SERVICE_NAME" in os.environ else {SERVICE_NAME: "limerank"}
        provider = TracerProvider(resource=Resource.create(named))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        return cls(provider)

    @contextmanager
    def request(self, call: Traced, headers: Sequence[tuple[bytes, bytes]]) -> Iterator[None]:
        """Around the work on one request, whose arrival began its span."""
        if self._tracer is None:
            yield
            return
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in headers
            if name in (b"traceparent", b"tracestate")
        }
        operation = call.operation
        began = time.time_ns() - round(call.since_arrival() * 1_000_000)
        span = self._tracer.start_span(
            f"{operation.method} {operation.path}",
            context=TraceContextTextMapPropagator().extract(carrier),
            kind=SpanKind.SERVER,
            start_time=began,
            attributes={"http.request.method": operation.method, "http.route": operation.path},
        )
        status = 200
        try:
            yield
        except Exception as error:
            status = refusal_of(error).status
            raise
        finally:
            self._end(span, call, began, status)

    def _end(self, span: Span, call: Traced, began: int, status: int) -> None:
        from opentelemetry.trace import StatusCode, set_span_in_context

        span.set_attribute("http.response.status_code", status)
        span.set_attribute("limerank.request_id", call.request_id)
        for name in ("bundle", "arm"):
            if name in call.said:
                span.set_attribute(f"limerank.{name}", call.said[name])
        if status >= SERVER_ERROR:
            span.set_status(StatusCode.ERROR)
        if self._tracer is not None and span.is_recording():
            below = set_span_in_context(span)
            for stage, started_ms, ended_ms in call.spans:
                start = began + round(started_ms * 1_000_000)
                self._tracer.start_span(stage, context=below, start_time=start).end(began + round(ended_ms * 1_000_000))
        span.end()

    def close(self) -> None:
        """Send what is left."""
        if self._provider is not None and hasattr(self._provider, "shutdown"):
            self._provider.shutdown()
