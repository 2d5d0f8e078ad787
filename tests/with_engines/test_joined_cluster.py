"""Shards on a Ray that is there already: joined with its token, left as it was found."""

from __future__ import annotations

from pathlib import Path

import pytest
from calling import refusal
from engines import need
from processes import serving
from tied_world import tied_bundle, tied_dataset

from limerank.serve.engine import Engine
from with_engines.ray_cluster import ray_cluster

need("ray", "ray")
pytestmark = pytest.mark.filterwarnings("ignore")  # of Ray and what it brings
SECRETS = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")


def test_the_command_joins_a_cluster_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--ray ADDRESS`: the answers of one machine, twice, so the first left nothing behind; no token is an error."""
    bundle = tied_bundle(tied_dataset(tmp_path / "dataset", 9_000), tmp_path / "store", name="lime-mha")
    with Engine(bundle, threads=1) as engine:
        expected = engine.answer("u7", limit=12).item_ids
    with ray_cluster() as cluster:
        joining = ("--shards", "2", "--ray", cluster.address)
        for name in SECRETS:
            monkeypatch.delenv(name, raising=False)
        refused = refusal(6, "serve", tmp_path / "store", *joining, "--port", "0")
        assert f"ray at {cluster.address}: the cluster wants a token" in refused
        for name in SECRETS:
            monkeypatch.setenv(name, cluster.environment[name])
        patient = ("--warmup-requests", "1", "--patience-ms", "20000", "--deadline-ms", "20000")
        for _ in range(2):
            with serving(tmp_path / "store", *joining, *patient) as served, served.client() as client:
                found = client.post("/v1/rank", json={"user_id": "u7", "limit": 12}).raise_for_status().json()
                assert ([item["id"] for item in found["items"]], found["degraded"]) == (expected, [])
                served.ask_to_end()
                assert served.wait() == 0, served.errors
