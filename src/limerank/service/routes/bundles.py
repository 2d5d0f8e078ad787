"""/v1/bundles: the bundles of the store, and how the active one is exchanged."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from limerank.errors import BundleError
from limerank.serve.bundles.bundle import BundleManifest
from limerank.service.calls import Call, Reply, Service, handles
from limerank.service.problems import RefusalError, invalid
from limerank.times import iso_time
from limerank.wire.bundles import (
    ActivatedAnswer,
    ActivateRequest,
    BundleAnswer,
    BundleFacts,
    BundlesAnswer,
    CollectedAnswer,
    CollectRequest,
    DiffAnswer,
    PublishedAnswer,
    VerifiedAnswer,
)

if TYPE_CHECKING:
    from limerank.serve.hosting.said import Activation


@handles("list_bundles")
def list_bundles(service: Service, call: Call) -> Reply:
    """The bundles of the store, oldest first; broken ones too."""
    host = service.host
    states = _states(service)
    listed = [
        BundleFacts(id=bundle_id, state="broken", note=str(found))
        if isinstance(found, BundleError)
        else BundleFacts(**_facts(found, states.get(bundle_id, "")))
        for bundle_id, found in host.store.manifests().items()
    ]
    return Reply.of(BundlesAnswer(current=host.current_id, previous=host.previous_id, bundles=listed))


@handles("show_bundle")
def show_bundle(service: Service, call: Call) -> Reply:
    """One bundle, with what made it."""
    bundle_id = known_bundle(service, call.parameters["bundle_id"])
    found = service.host.store.manifests()[bundle_id]
    if isinstance(found, BundleError):
        return Reply.of(BundleAnswer(id=bundle_id, state="broken", note=str(found)))
    answer = BundleAnswer(
        **_facts(found, _states(service).get(bundle_id, "")),
        tasks=found.tasks,
        metrics=found.metrics,
        options=found.model,
        data_fingerprint=found.data_fingerprint,
        row_fingerprint=found.row_fingerprint,
        watermark=None if found.watermark is None else iso_time(found.watermark),
    )
    return Reply.of(answer)


@handles("verify_bundle")
def verify_bundle(service: Service, call: Call) -> Reply:
    """Check every length and hash, that rows are those of the weights, and that ids find their rows."""
    verified = service.host.verify(known_bundle(service, call.parameters["bundle_id"]))
    return Reply.of(VerifiedAnswer(**asdict(verified)))


@handles("activate_bundle")
def activate_bundle(service: Service, call: Call) -> Reply:
    """Verify a bundle, open it, warm it up beside the one that serves, then make it active.

    Requests under way end with the bundle they began with. Whatever fails leaves everything as it was.
    """
    body: ActivateRequest = call.body
    bundle_id = known_bundle(service, call.parameters["bundle_id"])
    return _activated(service, service.host.activate(bundle_id, body.expected_current))


@handles("roll_back")
def roll_back(service: Service, call: Call) -> Reply:
    """A previous bundle that is still open takes no warm-up; with shards, or after a restart, it is opened first."""
    body: ActivateRequest = call.body
    return _activated(service, service.host.roll_back(body.expected_current))


@handles("collect_bundles")
def collect_bundles(service: Service, call: Call) -> Reply:
    """All but the newest, and never one that is active, previous, an arm, a shadow or in use."""
    body: CollectRequest = call.body
    return Reply.of(CollectedAnswer(removed=service.host.collect(body.keep)))


@handles("publish_bundle")
def publish_bundle(service: Service, call: Call) -> Reply:
    """Receive a bundle as a tar file, verify it, and put it into the store; it is not active yet."""
    received = service.host.receive(call.pieces)
    return Reply.of(PublishedAnswer(**asdict(received)))


@handles("diff_bundles")
def diff_bundles(service: Service, call: Call) -> Reply:
    """How two bundles differ; `old` is the active one unless it is named."""
    new = call.query.get("new")
    if new is None:
        raise invalid("new", "new: name a bundle: /v1/bundles/diff?new=ID, and old=ID unless it is the active one")
    old = known_bundle(service, call.query.get("old", service.host.current_id))
    return Reply.of(DiffAnswer(**asdict(service.host.diff(old, known_bundle(service, new)))))


def _activated(service: Service, activation: Activation) -> Reply:
    service.metrics.activations.observe(activation.took_ms / 1000)
    return Reply.of(ActivatedAnswer(**asdict(activation)))


def known_bundle(service: Service, bundle_id: str) -> str:
    """The id, if the store has such a bundle."""
    try:
        service.host.store.bundle_path(bundle_id)
    except BundleError as unknown:
        raise RefusalError("unknown-bundle", str(unknown)) from None
    return bundle_id


def _states(service: Service) -> dict[str, str]:
    """What bundles are in use for, by id."""
    host, routing = service.host, service.host.routing
    states = {shadow.bundle: "shadow" for shadow in routing.shadows} | {arm.bundle: "arm" for arm in routing.arms}
    if host.previous_id is not None:
        states.setdefault(host.previous_id, "previous")
    return {**states, host.current_id: "active"}


def _facts(manifest: BundleManifest, state: str) -> dict[str, Any]:
    return {
        "id": manifest.id,
        "state": state,
        "model": manifest.model.get("name", ""),
        "items": max(0, manifest.items - 1),
        "users": max(0, manifest.users - 1),
        "created_at": manifest.created_at,
        "age_seconds": round(manifest.age_seconds(), 1),
        "row_type": manifest.row_type,
        "bytes": sum(record.bytes for record in manifest.files),
        "has_report": manifest.has_report,
    }
