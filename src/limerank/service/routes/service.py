"""/v1/info, the probes, metrics, and the interface's own description."""

from __future__ import annotations

import os
import time
from contextlib import suppress

from limerank import __version__
from limerank.data.store.encoders import Encoder
from limerank.data.store.manifest import UNKNOWN_ROW
from limerank.errors import UnavailableError
from limerank.models.lime import LimeRanker
from limerank.serve.bundles.bundle import Bundle
from limerank.serve.engine import Engine
from limerank.serve.histories.past import StoredHistories
from limerank.service.calls import ENCODER, Call, Reply, Service, handles
from limerank.service.metrics import CONTENT_TYPE
from limerank.service.openapi import document
from limerank.service.page import page
from limerank.service.routes.asking import leased, reads_log_clock
from limerank.times import iso_time
from limerank.wire.inspection import FeatureFacts
from limerank.wire.service import InfoAnswer, Limits, ProbeAnswer, Served

SHOWN = 50
"""Values of a feature that are listed."""
LOOKED_AT, TRIED = 1_000, 20
CSP = b"default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


@handles("info")
def info(service: Service, call: Call) -> Reply:
    """What runs here, and what requests may say."""
    options = service.options
    with leased(service, call) as lease:
        engine = lease.engine
        answer = InfoAnswer(
            version=__version__,
            api="v1",
            pid=os.getpid(),
            processes=options.processes,
            threads=service.admission.slots,
            uptime_seconds=round(time.monotonic() - service.started, 1),
            served=_served(engine, call, service.host.histories),
            limits=Limits(
                body_bytes=options.body_bytes,
                candidates=options.candidates,
                history_events=options.history_events,
                events_per_call=options.events_per_call,
                queue=options.queue,
                deadline_ms=options.deadline_ms,
                grace_seconds=options.grace_seconds,
            ),
            overlay_items=len(engine.catalog.overlay.entries),
            events=service.host.histories.counts(),
            authenticated=service.authenticated(),
            scopes=list(call.scopes),
        )
    return Reply.of(answer)


def _served(engine: Engine, call: Call, histories: StoredHistories) -> Served:
    manifest, encoders = engine.bundle.manifest, engine.bundle.encoders
    return Served(
        bundle=manifest.id,
        model=manifest.model.get("name", ""),
        tasks=manifest.tasks,
        items=len(engine.catalog),
        users=max(0, manifest.users - 1),
        age_seconds=round(manifest.age_seconds(), 1),
        watermark=None if manifest.watermark is None else iso_time(manifest.watermark),
        clock="log" if reads_log_clock(engine.bundle, call.arrived_at) else "arrival",
        max_history=manifest.max_history,
        context_features=_names(encoders.context),
        event_features=_names(encoders.event),
        item_features=_names(encoders.item),
        context=[_feature(encoder) for encoder in encoders.context],
        event=[_feature(encoder) for encoder in encoders.event],
        user_features=_names(encoders.user),
        links=engine.ranker.options.all_links if isinstance(engine.ranker, LimeRanker) else 0,
        has_times=manifest.watermark is not None,
        display=manifest.display,
        example_user=_user_with_history(engine.bundle, histories) if "admin" in call.scopes else None,
    )


def _feature(encoder: Encoder) -> FeatureFacts:
    known: tuple[str, ...] | tuple[float, ...] = encoder.vocabulary or encoder.boundaries
    return FeatureFacts(name=encoder.name, kind=encoder.kind.value, values=list(known[:SHOWN]), more=len(known) > SHOWN)


def _user_with_history(bundle: Bundle, histories: StoredHistories) -> str | None:
    """A user of the bundle who has events and was not erased, if one of the first is such."""
    offsets = bundle.histories["offsets"][: LOOKED_AT + 1].tolist()
    rows = [row for row in range(UNKNOWN_ROW + 1, len(offsets) - 1) if offsets[row + 1] > offsets[row]]
    names = bundle.user_ids.names_of(rows[:TRIED])
    stored = histories.stored_users(names)
    return next((name for name in names if name not in stored or stored[name].erased_at is None), None)


def _names(encoders: tuple[Encoder, ...]) -> list[str]:
    return [encoder.name for encoder in encoders]


@handles("live")
def live(service: Service, call: Call) -> Reply:
    """The process lives: it could answer this."""
    return Reply.of(ProbeAnswer(status="ok"))


@handles("ready")
def ready(service: Service, call: Call) -> Reply:
    """Whether to send requests here."""
    if service.status != "ok":
        return Reply.of(ProbeAnswer(status=service.status), status=503)
    bundle = service.host.current_id
    if (missing := all_missing(service)) is not None:
        return Reply.of(ProbeAnswer(status="degraded", reasons=[missing], bundle=bundle), status=503)
    return Reply.of(ProbeAnswer(status="ok", bundle=bundle))


def all_missing(service: Service) -> str | None:
    """Why no item of the active bundle can be ranked: another service may have some."""
    missing = service.host.missing()
    return missing.said if missing is not None and missing.all_for is not None else None


@handles("health")
def health(service: Service, call: Call) -> Reply:
    """200 as long as requests are answered; `degraded` and why, if not everything is as it should be."""
    if service.status != "ok":
        return ready(service, call)
    reasons = service.host.reasons()
    bundle = service.host.current_id
    return Reply.of(ProbeAnswer(status="degraded" if reasons else "ok", reasons=reasons, bundle=bundle))


@handles("metrics")
def metrics(service: Service, call: Call) -> Reply:
    """As Prometheus reads them."""
    gauges = service.metrics
    gauges.queue.set(service.admission.waiting)
    gauges.ready.set(1 if service.status == "ok" and all_missing(service) is None else 0)
    if service.status == "ok":
        with leased(service, call) as lease:
            engine = lease.engine
            manifest = engine.bundle.manifest
            gauges.active(manifest.id, manifest.model.get("name", ""), manifest.age_seconds())
            gauges.overlay.set(len(engine.catalog.overlay.entries))
            if engine.states is not None:
                counts = engine.states.counts()
                gauges.kept.set(counts.users)
                gauges.kept_bytes.set(counts.bytes)
        gauges.dropped.labels("log").set(service.host.log.dropped)
        gauges.dropped.labels("shadow").set(service.shadows.dropped)
        with suppress(UnavailableError):  # a Redis that is away: what was counted last stays, and health says why
            for what, count in service.host.histories.counts().items():
                gauges.history.labels(what).set(count)
    return Reply(gauges.text(), CONTENT_TYPE)


@handles("openapi")
def openapi(service: Service, call: Call) -> Reply:
    """This interface, as OpenAPI 3.1."""
    return Reply(ENCODER.encode(document()))


@handles("docs")
def docs(service: Service, call: Call) -> Reply:
    """This interface, as a page."""
    headers = [(b"content-security-policy", CSP), (b"referrer-policy", b"no-referrer"), (b"x-frame-options", b"DENY")]
    return Reply(page(document()).encode(), b"text/html; charset=utf-8", headers=headers)
