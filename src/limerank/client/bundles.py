"""Calls about bundles and routing."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from limerank.client.archive import archived, pieces
from limerank.client.call import LONG_SECONDS, Call, GivenId, GivenTime, checked_ids, path_to, struct
from limerank.errors import ArgumentError
from limerank.wire.bundles import (
    ActivatedAnswer,
    ActivateRequest,
    BundleAnswer,
    BundlesAnswer,
    CollectedAnswer,
    CollectRequest,
    DiffAnswer,
    PublishedAnswer,
    Routing,
    RoutingAnswer,
    VerifiedAnswer,
)
from limerank.wire.inspection import CompareAnswer, CompareRequest

Archive = str | os.PathLike[str] | io.BufferedIOBase | Iterable[bytes]


def list_bundles() -> Call[BundlesAnswer]:
    """The bundles of the store, oldest first."""
    return Call("list_bundles", "GET", "/v1/bundles", BundlesAnswer)


def show_bundle(bundle_id: str) -> Call[BundleAnswer]:
    """One bundle, with what made it."""
    return Call("show_bundle", "GET", path_to("/v1/bundles/{bundle_id}", bundle_id=bundle_id), BundleAnswer)


def publish_bundle(archive: Archive, *, timeout: float = LONG_SECONDS) -> Call[PublishedAnswer]:
    """Send a bundle: its folder, a tar file (`limerank bundle save`), an open one, or its pieces.

    It is verified, and not active yet. The same bundle again changes nothing.
    """
    return Call(
        "publish_bundle",
        "POST",
        "/v1/bundles",
        PublishedAnswer,
        chunks=_chunks(archive),
        repeatable=isinstance(archive, str | os.PathLike),  # the others are read once
        seconds=timeout,
    )


def verify_bundle(bundle_id: str, *, timeout: float = LONG_SECONDS) -> Call[VerifiedAnswer]:
    """Check every file of a bundle."""
    path = path_to("/v1/bundles/{bundle_id}/verify", bundle_id=bundle_id)
    return Call("verify_bundle", "POST", path, VerifiedAnswer, seconds=timeout)


def activate_bundle(
    bundle_id: str, *, expected_current: str | None = None, timeout: float = LONG_SECONDS
) -> Call[ActivatedAnswer]:
    """Verify, warm up, and make active; a conflict if another bundle than `expected_current` is."""
    path = path_to("/v1/bundles/{bundle_id}/activate", bundle_id=bundle_id)
    body = ActivateRequest(expected_current=expected_current)
    return Call("activate_bundle", "POST", path, ActivatedAnswer, body, repeatable=False, seconds=timeout)


def roll_back(*, expected_current: str | None = None, timeout: float = LONG_SECONDS) -> Call[ActivatedAnswer]:
    """Make the previous bundle active again."""
    body = ActivateRequest(expected_current=expected_current)
    return Call("roll_back", "POST", "/v1/bundles/rollback", ActivatedAnswer, body, repeatable=False, seconds=timeout)


def diff_bundles(old: str, new: str, *, timeout: float = LONG_SECONDS) -> Call[DiffAnswer]:
    """How two bundles differ."""
    return Call("diff_bundles", "GET", "/v1/bundles/diff", DiffAnswer, query={"old": old, "new": new}, seconds=timeout)


def compare_bundles(
    new: str,
    old: str | None = None,
    *,
    user_ids: Iterable[GivenId] | None = None,
    sample: int = 50,
    seed: int = 0,
    limit: int = 100,
    by: str | None = None,
    context: Mapping[str, Any] | None = None,
    now: GivenTime | None = None,
    deadline_ms: float = 10_000,
    timeout: float = LONG_SECONDS,
) -> Call[CompareAnswer]:
    """How rankings of the same users, named or sampled, differ between two bundles; `old` None is the active one."""
    body = CompareRequest(
        new=new,
        old=old,
        user_ids=None if user_ids is None else checked_ids(user_ids, "user_ids"),
        sample=sample,
        seed=seed,
        limit=limit,
        by=by,
        context=dict(context or {}),
        now=now,
        deadline_ms=deadline_ms,
    )
    return Call("compare_bundles", "POST", "/v1/bundles/compare", CompareAnswer, body, seconds=timeout)


def show_report(bundle_id: str) -> Call[str]:
    """The report of the run that a bundle was exported from: a page, as text."""
    return Call("show_report", "GET", path_to("/v1/bundles/{bundle_id}/report", bundle_id=bundle_id), str)


def collect_bundles(keep: int = 3, *, timeout: float = LONG_SECONDS) -> Call[CollectedAnswer]:
    """Delete old bundles, all but the `keep` newest and those in use."""
    return Call(
        "collect_bundles",
        "POST",
        "/v1/bundles/gc",
        CollectedAnswer,
        CollectRequest(keep=keep),
        repeatable=False,
        seconds=timeout,
    )


def show_routing() -> Call[RoutingAnswer]:
    """The experiment that runs."""
    return Call("show_routing", "GET", "/v1/routing", RoutingAnswer)


def set_routing(routing: Routing | Mapping[str, Any]) -> Call[RoutingAnswer]:
    """Begin an experiment, or end it with `{}`."""
    body = struct(routing, Routing, "routing")
    return Call("set_routing", "PUT", "/v1/routing", RoutingAnswer, body, seconds=LONG_SECONDS)


def _chunks(archive: Archive) -> Callable[[], Iterator[bytes]]:
    if isinstance(archive, str | os.PathLike):
        path = Path(archive)
        if path.is_dir():
            return lambda: archived(path)
        if not path.is_file():
            raise ArgumentError(f"{path}: no such file or folder; pass the folder of a bundle, or a tar file of it")
        return lambda: pieces(path.open("rb"))
    if isinstance(archive, io.BufferedIOBase):
        return lambda: pieces(archive)
    return lambda: iter(archive)
