"""What Prometheus reads: requests and stages as histograms, and what there is as gauges; no user, no item, ever."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from threading import Lock

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from limerank.serve.experiments.agreement import Agreement
from limerank.service.watching.recent import Recent

BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
COUNTS = (1, 10, 100, 1_000, 5_000, 10_000, 20_000, 50_000, 100_000)
MOST_TYPES, OTHER = 50, "other"
MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"
CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"})


class Metrics:
    """The metrics of one process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.recent = Recent()
        """The last minutes, for /v1/status."""
        self._lock = Lock()
        self._types: set[str] = set()
        self.requests = Histogram(
            "limerank_http_request_duration_seconds",
            "From the arrival of a request to the end of its answer, errors included.",
            ["route", "method", "code"],
            buckets=BUCKETS,
            registry=self.registry,
        )
        self.stages = Histogram(
            "limerank_stage_duration_seconds",
            "By stage of a request.",
            ["stage"],
            buckets=BUCKETS,
            registry=self.registry,
        )
        self.candidates = Histogram(
            "limerank_candidates_per_request", "Candidates that were scored.", buckets=COUNTS, registry=self.registry
        )
        self.in_flight = self._gauge("http_requests_in_flight", "Requests that have arrived and are not answered.")
        self.queue = self._gauge("queue_depth", "Requests that wait for a free slot.")
        self.rejected = self._counter("requests_rejected", "Requests answered with a problem, by its kind.", ["reason"])
        self.early = self._counter("connections_refused", "Refused before there was a request, by why.", ["reason"])
        self.missing = self._counter("candidates_missing", "Candidates that are not in the catalog.", ["policy"])
        self.overlaid = self._counter("candidates_overlay", "Candidates scored by rows upserted since the export.")
        self.degraded = self._counter("degraded", "Answers that leave something out, by the stage.", ["reason"])
        self.states = self._counter("user_states", "User stages by how the state was found.", ["how"])
        self.arms = self._counter("rankings", "Rankings by the arm that answered.", ["arm"])
        self.events = self._counter("events", "Events by what became of them.", ["type", "outcome"])
        self.duplicates = self._counter("events_duplicate", "Events that were known already.")
        self.erased = self._counter("users_erased", "Users that were erased.")
        self.overlap = Histogram(
            "limerank_shadow_topk_overlap_ratio",
            "Which fraction of the best 10 a shadow has, too.",
            buckets=(0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
            registry=self.registry,
        )
        self.activations = Histogram(
            "limerank_activation_duration_seconds",
            "Activations of bundles: verify, warm up, flip.",
            buckets=(0.1, 0.5, 1, 2, 5, 10, 30, 60, 300),
            registry=self.registry,
        )
        self.bundle = self._told("bundle_info", "The active bundle.", ["bundle", "model"])
        self.age = self._told("bundle_age_seconds", "Since the active bundle was made.")
        self.overlay = self._told("overlay_items", "Items that were changed since the export.")
        self.kept = self._gauge("user_states_kept", "Users whose states are kept.")
        self.kept_bytes = self._gauge("user_states_kept_bytes", "Memory of kept states.")
        self.history = self._told("history_store", "What the history store holds.", ["what"])
        self.dropped = self._gauge("dropped", "Records of rankings and shadow rankings dropped for load.", ["what"])
        self.ready = self._told("ready", "1 while requests are taken.")
        self._active: tuple[str, str] | None = None

    def answered(self, route: str, method: str, status: int, seconds: float, reasons: Iterable[str]) -> None:
        """A request was answered; what names no route counts as one."""
        known = method if method in METHODS else OTHER
        self.requests.labels(route or OTHER, known, str(status)).observe(seconds)
        for reason in reasons:
            self.rejected.labels(reason).inc()

    def refused_early(self, reason: str) -> None:
        """Somebody was too slow, too many, or did not speak HTTP: that is no request yet."""
        self.early.labels(reason).inc()

    def staged(self, stages: Mapping[str, float]) -> None:
        """What the stages of a request took, in milliseconds."""
        for stage, milliseconds in stages.items():
            if stage != "total":
                self.stages.labels(stage).observe(milliseconds / 1000)

    def happened(self, kind: str, outcome: str, count: int = 1) -> None:
        """Events of a type; only so many types have a name of their own, for callers choose them."""
        if not count:
            return
        with self._lock:
            if len(self._types) < MOST_TYPES:
                self._types.add(kind)
            known = kind if kind in self._types else OTHER
        self.events.labels(known, outcome).inc(count)

    def active(self, bundle: str, model: str, age_seconds: float) -> None:
        """Which bundle is active."""
        with self._lock:
            before, self._active = self._active, (bundle, model)
        if before is not None and before != (bundle, model):
            self.bundle.labels(*before).set(0)
        self.bundle.labels(bundle, model).set(1)
        self.age.set(age_seconds)

    def agreed(self, bundle: str, agreement: Agreement, milliseconds: float) -> None:
        """A shadow ranked a request again."""
        if agreement.overlap_10 is not None:
            self.overlap.observe(agreement.overlap_10)
        self.stages.labels("shadow").observe(milliseconds / 1000)

    def rankings_by_arm(self) -> dict[str, int]:
        """Rankings since this process began."""
        return _by_label(self.arms)

    def states_by_how(self) -> dict[str, int]:
        """User stages since this process began, by how the state was found."""
        return _by_label(self.states)

    def degraded_by_reason(self) -> dict[str, int]:
        """Answers that left something out since this process began."""
        return _by_label(self.degraded)

    def text(self) -> bytes:
        """As Prometheus reads it; of all processes if there are several."""
        folder = os.environ.get(MULTIPROCESS)
        if not folder or not Path(folder).is_dir():
            return generate_latest(self.registry)
        gathered = CollectorRegistry()
        MultiProcessCollector(gathered, folder)  # type: ignore[no-untyped-call]
        return generate_latest(gathered)

    def _gauge(self, name: str, text: str, labels: Iterable[str] = ()) -> Gauge:
        """Of several processes the sum."""
        return Gauge(f"limerank_{name}", text, list(labels), registry=self.registry, multiprocess_mode="livesum")

    def _told(self, name: str, text: str, labels: Iterable[str] = ()) -> Gauge:
        """The same for all processes: what the last of them told."""
        return Gauge(f"limerank_{name}", text, list(labels), registry=self.registry, multiprocess_mode="livemostrecent")

    def _counter(self, name: str, text: str, labels: Iterable[str] = ()) -> Counter:
        return Counter(f"limerank_{name}", text, list(labels), registry=self.registry)


def _by_label(counter: Counter) -> dict[str, int]:
    """A counter with one label, by its values."""
    samples = [sample for family in counter.collect() for sample in family.samples]
    return {next(iter(one.labels.values())): int(one.value) for one in samples if one.name.endswith("_total")}
