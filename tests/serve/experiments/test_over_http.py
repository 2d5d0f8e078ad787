"""An experiment over real sockets: begun by PUT, clicks with the request ids of answers, read from a shell."""

from __future__ import annotations

from pathlib import Path

from calling import answer
from serving import serving

from limerank.api.run import Run
from limerank.serve.experiments.routing import CONTROL, assign, read_routing

USERS = [f"u{number}" for number in range(40)]


def test_an_experiment_over_http(own_store: Path, runs: dict[str, Run]) -> None:
    """Every answer says its arm and bundle, as assigned; `limerank ab` counts what was asked, clicked and erased."""
    new = runs["ttsn"].publish(own_store, activate=False, quiet=True).manifest.id
    with serving(own_store) as service:
        old = service.host.current_id
        body = {"experiment": "exp7", "arms": [{"name": "new", "bundle": new, "percent": 50}]}
        shadows = [{"bundle": new, "sample": 1.0}]
        assert service.http.put("/v1/routing", json=body | {"shadows": shadows}).status_code == 200
        routing = read_routing(own_store)
        arms = {user: assign(routing, user) for user in USERS}
        for user in USERS:
            said = service.post("/v1/rank", {"user_id": user, "limit": 20}).json()
            assert (said["arm"], said["bundle"]) == (arms[user], old if arms[user] == CONTROL else new)
            click = {
                "user_id": user,
                "item_id": said["items"][0]["id"],
                "type": "click",
                "request_id": said["request_id"],
            }
            assert service.post("/v1/events", {"events": [click]}).json()["accepted"] == 1
        service.post("/v1/rank", {"user_id": "u1", "limit": 5, "bundle": new})  # named: no part of the experiment
        assert service.service.shadows.flush()
        assert service.host.log.flush()
        result = answer("ab", own_store)
        counted = {
            arm["name"]: (arm["users"], arm["rankings"], arm["events"]["click"]["joined"]) for arm in result["arms"]
        }
        sizes = {name: list(arms.values()).count(name) for name in (CONTROL, "new")}
        assert counted == {name: (size, size, size) for name, size in sizes.items()}
        assert {"queue", "user", "interact", "total"} <= set(result["arms"][0]["milliseconds"])
        (shadow,) = result["shadows"]
        assert (shadow["bundle"], shadow["answered_by"]) == (new, old)
        assert shadow["rankings"] + service.service.shadows.dropped == sizes[CONTROL]
        user = next(user for user in USERS if user != "u1" and arms[user] == "new")
        assert service.http.delete(f"/v1/users/{user}").json()["deleted"]["rankings"] == 1
        assert answer("ab", own_store)["arms"][1]["users"] == sizes["new"] - 1
        assert service.http.put("/v1/routing", json={}).status_code == 200
    assert answer("ab", own_store)["running"] is False
