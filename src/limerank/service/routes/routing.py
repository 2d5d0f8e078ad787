"""/v1/routing: which bundle answers whom."""

from __future__ import annotations

import msgspec

from limerank.errors import BundleError
from limerank.serve.experiments.routing import Routing as StoredRouting
from limerank.serve.experiments.routing import check_bundles
from limerank.service.calls import Call, Reply, Service, handles
from limerank.service.problems import RefusalError
from limerank.times import iso_time
from limerank.typed import validate
from limerank.wire.bundles import Arm, Routing, RoutingAnswer, Shadow


@handles("show_routing")
def show_routing(service: Service, call: Call) -> Reply:
    """The experiment that runs, if one does."""
    return Reply.of(_answer(service))


@handles("set_routing")
def set_routing(service: Service, call: Call) -> Reply:
    """Begin, change or end an experiment; all of its bundles are served when this returns."""
    routing = validate(StoredRouting, msgspec.to_builtins(call.body), "routing")
    try:
        check_bundles(service.host.store, routing)
    except BundleError as unknown:
        raise RefusalError("unknown-bundle", str(unknown)) from None
    service.host.set_routing(routing)
    return Reply.of(_answer(service))


def _answer(service: Service) -> RoutingAnswer:
    routing = service.host.routing
    return RoutingAnswer(
        routing=Routing(
            experiment=routing.experiment,
            arms=[Arm(name=arm.name, bundle=arm.bundle, percent=arm.percent) for arm in routing.arms],
            shadows=[Shadow(bundle=one.bundle, sample=one.sample) for one in routing.shadows],
        ),
        control=service.host.current_id,
        since=None if routing.since is None else iso_time(routing.since),
        counts=service.metrics.rankings_by_arm(),
    )
