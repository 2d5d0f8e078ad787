"""The head of a Ray cluster is killed while shards on it serve: nothing is wrong, nothing hangs, and it is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from calling import refusal
from engines import need
from processes import process, serving, until
from tied_world import tied_bundle, tied_dataset

from limerank.serve.engine import Engine
from with_engines.ray_cluster import free_address, own_environment, ray_head

need("ray", "ray")
pytestmark = pytest.mark.filterwarnings("ignore")  # of Ray and what it brings
SECONDS = 240.0
"""No wait takes so long; a test that waits longer has failed."""
SOONER = """
from limerank.cli import main
from limerank.service.running import loading
loading.HOPELESS_SECONDS = 30.0
main()
"""
"""The command, which does not wait as long as usual before it ends."""
NOT_RAYS_MINUTE = {"RAY_gcs_rpc_server_reconnect_timeout_s": "600"}
"""Ray itself ends a process that did not reach the head for a minute, which a busy machine might meet at any line."""


def test_a_head_that_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers without what is lost, until nothing is left of them; then it is not ready, and ends.

    A head that comes in place of the killed one knows nothing of these scorers: a service that is started again does.
    """
    bundle = tied_bundle(tied_dataset(tmp_path / "dataset", 9_000), tmp_path / "store", name="lime-mha")
    with Engine(bundle, threads=1) as engine:
        truth, other = engine.answer("u7").item_ids, engine.answer("u8", limit=12).item_ids
    for name, value in own_environment().items():
        monkeypatch.setenv(name, value)
    address, clients = free_address(), f"--ray-client-server-port={free_address().partition(':')[2]}"
    joining = ("--shards", "2", "--ray", address, "--warmup-requests", "1")
    command = ("-c", SOONER, "serve", str(tmp_path / "store"), "--port", "0", "--json", *joining)
    hasty = ("--patience-ms", "2000", "--deadline-ms", "3000")
    with (
        ray_head(address, {}, clients) as kill,
        process([*command, *hasty], environment=NOT_RAYS_MINUTE) as served,
        served.client() as client,
    ):
        until(lambda: ranked(client)["degraded"] == [], SECONDS)
        assert client.get("/readyz").status_code == 200
        kill()

        def nothing_is_left() -> bool:
            found = ranked(client)
            order = iter(truth)
            items = [item["id"] for item in found["items"]]
            assert all(item in order for item in items), "in the order of the truth"
            assert found["degraded"] or items == truth[:12]
            return found["degraded"][:1] != [] and "100.0% of the catalog is missing" in found["degraded"][0]

        until(nothing_is_left, SECONDS)
        until(lambda: client.get("/readyz").status_code == 503, SECONDS)  # a deadline may have come before patience
        ready, health = (client.get(path).json() for path in ("/readyz", "/healthz"))
        assert ready["status"] == health["status"] == "degraded"
        assert ready["reasons"] == health["reasons"]
        assert "start this service again" in ready["reasons"][0]
        assert client.get("/livez").status_code == 200
        event = {"user_id": "u7", "item_id": "i3", "features": {"clicked": 1}}
        kept = client.post("/v1/events", json={"events": [event]}).raise_for_status().json()
        assert (kept["accepted"], kept["durable"]) == (1, True)
        assert client.delete("/v1/users/u9").raise_for_status().json()
        assert "does not answer" in refusal(6, "serve", tmp_path / "store", *joining, "--port", "0")
        with ray_head(address, {}, clients):
            assert served.process.wait(SECONDS) == 6
            assert served.errors.count("so this process ends: shards: 100.0% of the catalog is missing") == 1
            patient = ("--patience-ms", "20000", "--deadline-ms", "20000")
            with serving(tmp_path / "store", *joining, *patient) as again, again.client() as asking:
                found = ranked(asking, "u8")
                assert ([item["id"] for item in found["items"]], found["degraded"]) == (other, [])
                again.ask_to_end()
                assert again.wait() == 0, again.errors


def ranked(client: httpx.Client, user: str = "u7") -> dict[str, Any]:
    """An answer; none is an error."""
    answer: dict[str, Any] = client.post("/v1/rank", json={"user_id": user, "limit": 12}).raise_for_status().json()
    return answer
