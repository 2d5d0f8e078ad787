"""An experiment on a real host: routed, answered, shadowed, logged, clicked, read, erased."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from limerank.api.run import Run
from limerank.serve.engine import Engine
from limerank.serve.experiments.agreement import Agreement
from limerank.serve.experiments.log import record_of
from limerank.serve.experiments.outcome.analysis import analyse
from limerank.serve.experiments.routing import CONTROL, Arm, Routing, Shadow, assign, write_routing
from limerank.serve.experiments.shadow import Shadows
from limerank.serve.histories.past import Happened
from limerank.serve.hosting.host import Host
from limerank.serve.ranking import Ranking

USERS = [f"u{number}" for number in range(60)]


@pytest.fixture
def shop(store: Path, runs: dict[str, Run], tmp_path: Path) -> tuple[Path, str]:
    """A store with two bundles; the second is not active."""
    path = Path(shutil.copytree(store, tmp_path / "store"))
    return path, runs["ttsn"].publish(path, activate=False, quiet=True).manifest.id


def asked(host: Host, shadows: Shadows, user: str, bundle: str | None = None) -> Ranking:
    """A request, as a service handles it."""

    def again(engine: Engine) -> Ranking:
        return engine.answer(user, limit=20)

    with host.lease(user, bundle) as lease:
        ranking = again(lease.engine)
    if lease.routing.is_logged:
        request, named = f"r-{user}", bundle is not None
        host.log.record(record_of(ranking, request_id=request, user_id=user, routing=lease.routing, named_bundle=named))
        shadows.consider(again, ranking, request_id=request, user_id=user)
    return ranking


def test_from_a_request_to_a_result(shop: tuple[Path, str]) -> None:
    """Bundles by arm, one record a request, clicks joined, shadows compared; a running host follows the file."""
    path, new = shop
    told: list[tuple[str, Agreement, float]] = []
    with Host.open(path, threads=1, warmup_requests=1, follow=False) as host:
        old = host.current_id
        shadows = Shadows(host, host.log, on_agreement=lambda *values: told.append(values))
        asked(host, shadows, "u1")
        assert not (path / "rankings").exists()  # nothing runs
        arms = (Arm(name="new", bundle=new, percent=50.0),)
        routing = write_routing(path, Routing(experiment="exp7", arms=arms, shadows=(Shadow(bundle=new, sample=1.0),)))
        host.look()
        assert host.routing == routing
        for user in USERS:
            answered = asked(host, shadows, user)
            assert answered.bundle == (old if assign(routing, user) == CONTROL else new)
            assert shadows.flush()
        asked(host, shadows, "u1", bundle=new)
        clicks = [
            Happened(user, "i1", (routing.since or 0) + 1000, type="click", request_id=f"r-{user}") for user in USERS
        ]
        host.histories.add(clicks)
        assert host.log.flush()
        result = analyse(path, host.histories.events)
        assert {arm.name: arm.bundles for arm in result.arms} == {
            arm: {bundle: sum(assign(routing, user) == arm for user in USERS)}
            for arm, bundle in ((CONTROL, old), ("new", new))
        }
        assert [arm.events["click"].joined for arm in result.arms] == [arm.users for arm in result.arms]
        (shadow,) = result.shadows
        assert (shadow.bundle, shadow.answered_by, shadow.rankings) == (new, old, result.arms[0].users)
        assert len(told) == shadows.ranked == shadow.rankings
        assert host.log.written == len(USERS) + 1 + shadow.rankings
        assert (host.log.problem, shadows.problem) == (None, None)
        user = next(user for user in USERS if user != "u1" and assign(routing, user) == CONTROL)
        erased = host.erase_user(user)
        assert erased.deleted["rankings"] == 2  # a ranking, and the shadow's
        after = analyse(path, host.histories.events)
        assert after.arms[0].users == result.arms[0].users - 1
        shadows.close()
