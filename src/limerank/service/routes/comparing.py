"""/v1/bundles/compare and /v1/bundles/{id}/report: two bundles on the same users, and what the run of one says."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from limerank import files
from limerank.errors import BundleError
from limerank.schema import Role
from limerank.serve.bundles.bundle import FIX, REPORT, read_manifest
from limerank.serve.deadline import Deadline
from limerank.serve.engine import Engine
from limerank.serve.inspection.comparing import Comparison, MovedItem, compare
from limerank.service.calls import Call, Reply, Service, handles
from limerank.service.problems import RefusalError
from limerank.service.routes.asking import checked_features, text_of, time_of_request
from limerank.service.routes.bundles import known_bundle
from limerank.wire import inspection
from limerank.wire.inspection import ChangeOfMany, ChangeOfSegment, ChangeOfUser, CompareAnswer, CompareRequest

HTML = b"text/html; charset=utf-8"
PAGE_POLICY = b"sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'"
"""Whoever may publish a bundle wrote this page: it may look like something, and do nothing."""
MOST_REPORT_BYTES = 32 * 2**20


@handles("compare_bundles")
def compare_bundles(service: Service, call: Call) -> Reply:
    """Rank the whole catalog for the same users by two bundles of the store, and say how the rankings differ.

    Users are named, or sampled from those that both know; the same seed samples the same. A bundle that is not served
    is verified and opened for this. Nothing is recorded.
    """
    body: CompareRequest = call.body
    old, new = known_bundle(service, body.old or service.host.current_id), known_bundle(service, body.new)

    def request(engine: Engine) -> dict[str, Any]:
        return {
            "context": checked_features(engine.bundle, Role.CONTEXT, body.context, "context"),
            "now": time_of_request(engine.bundle, body.now, call.arrived_at),
        }

    with service.host.engine_of(old) as before, service.host.engine_of(new) as after:
        found = compare(
            before,
            after,
            None if body.user_ids is None else [text_of(one) for one in body.user_ids],
            sample=body.sample,
            seed=body.seed,
            limit=body.limit,
            by=body.by,
            request=request,
            deadline=Deadline(body.deadline_ms, started=call.arrived),
        )
        user = _user(found, after)
    answer = CompareAnswer(
        old=old,
        new=new,
        task=found.task,
        asked=found.asked,
        compared=len(found.compared),
        seed=body.seed,
        limit=body.limit,
        by=body.by,
        all=ChangeOfMany(users=len(found.compared), **asdict(found.overall())),
        segments=[
            ChangeOfSegment(feature=one.feature, value=one.value, users=one.users, **asdict(one.change))
            for one in found.segments
        ],
        most_changed=[
            ChangeOfUser(user_id=one.user_id, history=one.history, **asdict(one.change)) for one in found.most_changed()
        ],
        user=user,
        took_ms=round(call.since_arrival(), 3),
    )
    return Reply.of(answer)


def _user(found: Comparison, engine: Engine) -> inspection.ComparedUser | None:
    """The lists of the one user that was named."""
    if found.items is None:
        return None
    displays: list[str | None] = [None] * len(found.items)
    if engine.bundle.manifest.display is not None:
        displays = engine.catalog.displays_of([one.id for one in found.items])
    items = [_moved(one, display) for one, display in zip(found.items, displays, strict=True)]
    return inspection.ComparedUser(user_id=found.compared[0].user_id, items=items)


def _moved(one: MovedItem, display: str | None) -> inspection.MovedItem:
    return inspection.MovedItem(**asdict(one), display=display)


@handles("show_report")
def show_report(service: Service, call: Call) -> Reply:
    """The page of the run that a bundle was exported from: curves, metrics, configuration; nothing in it runs."""
    bundle_id = known_bundle(service, call.parameters["bundle_id"])
    path = service.host.store.bundle_path(bundle_id)
    record = next((one for one in read_manifest(path).files if one.path == REPORT), None)
    if record is None:
        raise RefusalError(
            "no-report",
            f"bundle {bundle_id} brought no report along: its run had none, or an older limerank exported it; write "
            "one with `limerank runs report RUN`, then `limerank export RUN --store STORE`",
        )
    if record.bytes > MOST_REPORT_BYTES:
        raise RefusalError(
            "no-report", f"the report of bundle {bundle_id} has {record.bytes:,} bytes, which is no page"
        )
    files.check_files(path, [record], BundleError, FIX, hashes=True)
    return Reply((path / REPORT).read_bytes(), HTML, headers=[(b"content-security-policy", PAGE_POLICY)])
