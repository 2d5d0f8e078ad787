"""Every operation of the service: what it is called, who may call it, what goes in and what comes out.

Routes, the gate that checks keys, the OpenAPI document and the tests that try every route all read this table: an
operation that is not in it cannot be reached.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from limerank.wire import bundles, events, inspection, items, rankings, service, status

Scope = Literal["public", "metrics", "rank", "write", "admin"]
"""`public`: anybody; `metrics`: anybody on loopback, else any key; the others: a key that has the scope."""


@dataclass(frozen=True)
class Operation:
    """One method of one path."""

    name: str
    method: str
    path: str
    scope: Scope
    summary: str
    answer: Any
    body: Any = None
    queued: bool = False
    """It computes: it waits for a slot, and is refused with 429 when too many wait."""
    read_as: Any = None
    """What its body is decoded as, where the handler reads parts of it one by one."""

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """What a decoded path must be, whole: ids of users and items may hold anything, slashes too."""
        return re.compile(rf"\A{PARAMETER.sub(lambda found: f'(?P<{found[1]}>{_rule(found[1])})', self.path)}\Z")


PARAMETER = re.compile(r"{(\w+)}")
ANY_TEXT = ("user_id", "item_id")
"""Parameters of paths that are ids of logs, which nobody can forbid to hold a slash or a line break."""


def _rule(parameter: str) -> str:
    return r"[\s\S]*" if parameter in ANY_TEXT else "[^/]+"


OPERATIONS = (
    Operation(
        "rank",
        "POST",
        "/v1/rank",
        "rank",
        "Order candidates for a user.",
        rankings.RankAnswer,
        rankings.RankRequest,
        True,
    ),
    Operation(
        "rank_batch",
        "POST",
        "/v1/rank/batch",
        "rank",
        "Several rankings in one call.",
        rankings.BatchAnswer,
        rankings.BatchRequest,
        True,
    ),
    Operation(
        "recommend",
        "POST",
        "/v1/recommend",
        "rank",
        "Retrieve, then rank.",
        rankings.RankAnswer,
        rankings.RecommendRequest,
        True,
    ),
    Operation(
        "explain",
        "POST",
        "/v1/explain",
        "rank",
        "Why candidates have their scores.",
        rankings.ExplainAnswer,
        rankings.ExplainRequest,
        True,
    ),
    Operation(
        "add_events",
        "POST",
        "/v1/events",
        "write",
        "Store what happened.",
        events.EventsAnswer,
        events.EventsRequest,
        read_as=events.RawEvents,
    ),
    Operation(
        "find_users", "GET", "/v1/users", "admin", "Users by the beginning of their ids.", inspection.UsersAnswer
    ),
    Operation("show_user", "GET", "/v1/users/{user_id}", "admin", "What is known of a user.", events.UserAnswer),
    Operation(
        "erase_user", "DELETE", "/v1/users/{user_id}", "admin", "Forget a user, everywhere.", events.ErasedAnswer
    ),
    Operation(
        "find_items",
        "GET",
        "/v1/items",
        "rank",
        "Items by the beginning of their ids or names.",
        inspection.FoundItemsAnswer,
    ),
    Operation(
        "upsert_items", "PUT", "/v1/items", "write", "Add or replace items.", items.ItemsAnswer, items.ItemsRequest
    ),
    Operation(
        "delete_items",
        "POST",
        "/v1/items/delete",
        "write",
        "Delete items.",
        items.ItemsAnswer,
        items.ItemsDeleteRequest,
    ),
    Operation("show_item", "GET", "/v1/items/{item_id}", "rank", "Where an item's row comes from.", items.ItemAnswer),
    Operation("list_links", "GET", "/v1/links", "rank", "What links stand for.", inspection.LinksAnswer),
    Operation("list_bundles", "GET", "/v1/bundles", "admin", "The bundles of the store.", bundles.BundlesAnswer),
    Operation(
        "publish_bundle",
        "POST",
        "/v1/bundles",
        "admin",
        "Receive a bundle as a tar file.",
        bundles.PublishedAnswer,
        bytes,
    ),
    Operation("diff_bundles", "GET", "/v1/bundles/diff", "admin", "How two bundles differ.", bundles.DiffAnswer),
    Operation(
        "compare_bundles",
        "POST",
        "/v1/bundles/compare",
        "admin",
        "Two bundles on the same users.",
        inspection.CompareAnswer,
        inspection.CompareRequest,
    ),
    Operation(
        "roll_back",
        "POST",
        "/v1/bundles/rollback",
        "admin",
        "Make the previous bundle active again.",
        bundles.ActivatedAnswer,
        bundles.ActivateRequest,
    ),
    Operation(
        "collect_bundles",
        "POST",
        "/v1/bundles/gc",
        "admin",
        "Delete old bundles.",
        bundles.CollectedAnswer,
        bundles.CollectRequest,
    ),
    Operation("show_bundle", "GET", "/v1/bundles/{bundle_id}", "admin", "One bundle.", bundles.BundleAnswer),
    Operation("show_report", "GET", "/v1/bundles/{bundle_id}/report", "admin", "The report of a bundle's run.", str),
    Operation(
        "verify_bundle",
        "POST",
        "/v1/bundles/{bundle_id}/verify",
        "admin",
        "Check every file of a bundle.",
        bundles.VerifiedAnswer,
    ),
    Operation(
        "activate_bundle",
        "POST",
        "/v1/bundles/{bundle_id}/activate",
        "admin",
        "Verify, warm up, and make active.",
        bundles.ActivatedAnswer,
        bundles.ActivateRequest,
    ),
    Operation("show_routing", "GET", "/v1/routing", "admin", "The experiment that runs.", bundles.RoutingAnswer),
    Operation(
        "set_routing",
        "PUT",
        "/v1/routing",
        "admin",
        "Begin or end an experiment.",
        bundles.RoutingAnswer,
        bundles.Routing,
    ),
    Operation(
        "status",
        "GET",
        "/v1/status",
        "rank",
        "Latencies, queue, problems, as of now.",
        status.StatusAnswer,
    ),
    Operation("info", "GET", "/v1/info", "rank", "Version, limits, and what requests may say.", service.InfoAnswer),
    Operation("live", "GET", "/livez", "public", "Whether the process lives.", service.ProbeAnswer),
    Operation("ready", "GET", "/readyz", "public", "Whether it takes requests.", service.ProbeAnswer),
    Operation("health", "GET", "/healthz", "public", "Ready, and nothing is degraded.", service.ProbeAnswer),
    Operation("metrics", "GET", "/metrics", "metrics", "Prometheus metrics.", str),
    Operation("openapi", "GET", "/openapi.json", "public", "This interface, as OpenAPI 3.1.", dict),
    Operation("docs", "GET", "/docs", "public", "This interface, as a page.", str),
    Operation("inspector", "GET", "/ui", "public", "The inspector: look into rankings in a browser.", str),
    Operation("inspector_file", "GET", "/ui/{version}/{file}", "public", "Scripts and styles of the inspector.", str),
)


def find_operation(method: str, path: str) -> tuple[Operation, Mapping[str, str]] | None:
    """The operation that a request reaches, with the parameters in its (decoded) path; the gate and routes agree on it.

    HEAD is GET without its body. Of several the first in the table is meant.
    """
    wanted = "GET" if method == "HEAD" else method
    for operation in OPERATIONS:
        if operation.method == wanted and (found := operation.pattern.match(path)):
            return operation, found.groupdict()
    return None


def allowed_methods(path: str) -> list[str]:
    """The methods that a path can be called with; none if there is no such path."""
    found = {operation.method for operation in OPERATIONS if operation.pattern.match(path)}
    return sorted(found | ({"HEAD"} if "GET" in found else set()))
