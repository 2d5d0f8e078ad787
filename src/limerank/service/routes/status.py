"""/v1/status: how this process is, for somebody who looks at it every second."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime

from limerank.service.calls import Call, Reply, Service, handles
from limerank.service.problems import KINDS
from limerank.service.routes.asking import leased
from limerank.service.watching.recent import WINDOW, Problem, Second, quantile
from limerank.wire import status as wire
from limerank.wire.status import (
    Quantiles,
    RecentProblem,
    StatusAnswer,
    StatusBundle,
    StatusQueue,
    StatusRequests,
    StatusStates,
)

MEGABYTE = 2**20
HITS = ("cached", "appended")


@handles("status")
def status(service: Service, call: Call) -> Reply:
    """Latency by stage, the queue, kept states, what was left out and why, and the last problems.

    Of the process that answers: where several do, each has numbers of its own, and `/metrics` adds them up. It names no
    user and no item.
    """
    told, metrics, host = service.metrics.recent.told(), service.metrics, service.host
    reasons = host.reasons() if service.status == "ok" else []
    with leased(service, call) as lease:
        manifest = lease.engine.bundle.manifest
        bundle = StatusBundle(
            id=manifest.id, model=manifest.model.get("name", ""), age_seconds=round(manifest.age_seconds(), 1)
        )
    answer = StatusAnswer(
        time=datetime.now(UTC),
        pid=os.getpid(),
        processes=service.options.processes,
        uptime_seconds=round(time.monotonic() - service.started, 1),
        status="degraded" if reasons else service.status,
        reasons=reasons,
        bundle=bundle,
        previous=host.previous_id,
        window_seconds=WINDOW,
        stages={stage: _quantiles(values) for stage, values in told.stages.items()},
        requests=StatusRequests(
            per_second=round(told.per_second, 3),
            in_flight=metrics.recent.in_flight,
            by_status={str(code): count for code, count in told.by_status.items()},
        ),
        queue=_queue(service),
        states=_states(service),
        degraded=metrics.degraded_by_reason(),
        rankings_by_arm=metrics.rankings_by_arm(),
        dropped={"log": host.log.dropped, "shadow": service.shadows.dropped},
        errors=[_problem(one) for one in told.problems],
        series=[_second(one) for one in told.seconds],
    )
    return Reply.of(answer)


def _quantiles(ascending: list[float]) -> Quantiles:
    p50, p95, p99 = (round(quantile(ascending, fraction), 3) for fraction in (0.5, 0.95, 0.99))
    return Quantiles(count=len(ascending), p50=p50, p95=p95, p99=p99, max=round(ascending[-1], 3))


def _queue(service: Service) -> StatusQueue:
    admission = service.admission
    counts = admission.counts
    return StatusQueue(
        waiting=admission.waiting,
        running=admission.running,
        slots=admission.slots,
        limit=admission.queue,
        admitted=counts.admitted,
        refused=counts.refused,
        expired=counts.expired,
        abandoned=counts.abandoned,
        mean_ms=round(admission.mean_seconds * 1000, 3),
    )


def _states(service: Service) -> StatusStates:
    by_how = service.metrics.states_by_how()
    total = sum(by_how.values())
    kept = None if service.host.states is None else service.host.states.counts()
    return StatusStates(
        by_how=by_how,
        hit_rate=sum(by_how.get(how, 0) for how in HITS) / total if total else None,
        users=0 if kept is None else kept.users,
        bytes=0 if kept is None else kept.bytes,
        limit_bytes=service.options.states_mb * MEGABYTE,
    )


def _problem(one: Problem) -> RecentProblem:
    kind = KINDS.get(one.kind)
    return RecentProblem(
        time=datetime.fromtimestamp(one.time / 1000, UTC),
        status=one.status,
        type=f"/problems/{one.kind}",
        title=one.kind if kind is None else kind.title,
        method=one.method,
        route=one.route,
        request_id=one.request_id,
    )


def _second(one: Second) -> wire.Second:
    took = sorted(one.milliseconds)
    return wire.Second(
        time=datetime.fromtimestamp(one.second, UTC),
        requests=one.requests,
        failed=one.failed,
        p50=round(quantile(took, 0.5), 3) if took else None,
        p95=round(quantile(took, 0.95), 3) if took else None,
        waiting=one.waiting,
    )
