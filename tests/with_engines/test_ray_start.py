"""A Ray that does not come up in time: another is started, and where none does that is told in a line.

In processes of their own: what Ray reads from the environment, it may read once.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from calling import python
from engines import need

from limerank.api.run import Run

NO_PATIENCE = {"RAY_gcs_server_port_wait_time_s": "0"}

SECOND_TRY = """
import logging, os, ray
from limerank.serve.bundles.on_ray.connection import connected

class Patience(logging.Handler):
    def emit(self, record):
        print(record.getMessage())
        os.environ["RAY_gcs_server_port_wait_time_s"] = "60"

logging.getLogger("limerank").addHandler(Patience())
with connected(None, 1):
    print(ray.get(ray.remote(lambda: 6 * 7).remote()))
print(ray.is_initialized())
"""

OWN_RAY = """
import os
from limerank.serve.bundles.on_ray.connection import connected, why_not_joined

with connected(None, 1):
    import ray
    address = ray.get_runtime_context().gcs_address
    print(ray.get(ray.remote(lambda: 6 * 7).remote()))
    print(os.environ["RAY_AUTH_MODE"])
    os.environ["RAY_AUTH_MODE"] = "disabled"  # as somebody else on the network, who has no token
    for name in ("RAY_AUTH_TOKEN", "RAY_gcs_server_port_wait_time_s"):
        os.environ.pop(name, None)
    print(why_not_joined(address))
"""


UNSERVED_CLIENT = """
import ray
from limerank.errors import UnavailableError
from limerank.serve.bundles.on_ray import connection

def init(**given):
    global fails
    fails -= 1
    if fails >= 0:
        raise ConnectionAbortedError("From server:\\nRuntimeError: Starting Ray client server failed. See its log")

ray.init, ray.shutdown = init, lambda: None
for fails in (2, 3):
    try:
        with connection._joined("ray://somewhere:1"):
            print("joined")
    except UnavailableError as error:
        print(error)
"""


@pytest.fixture(autouse=True)
def _with_ray() -> None:
    need("ray", "ray")


def test_a_ray_that_is_too_slow_is_given_up_for_another() -> None:
    done = python("-c", SECOND_TRY, variables=NO_PATIENCE)
    assert done.returncode == 0, done.stderr
    told, answer, still_there = done.stdout.splitlines()
    assert told.startswith("Ray did not start on this machine (Timed out waiting for file")
    assert told.endswith("; trying again")
    assert (answer, still_there) == ("42", "False")


def test_a_client_for_which_the_cluster_starts_no_process_tries_again() -> None:
    """Twice; then it is a line."""
    done = python("-c", UNSERVED_CLIENT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "joined",
        "engine 'ray:ray://somewhere:1': Starting Ray client server failed, 3 times; see ray_client_server_*.err in "
        "the logs of that machine",
    ]


@pytest.mark.parametrize(
    ("own", "mode", "said"), [(None, "token", "the cluster wants a token"), ("disabled",) * 2 + ("",)]
)
def test_the_ray_of_an_export_asks_for_a_token(
    own: str | None, mode: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless somebody has said otherwise."""
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    done = python("-c", OWN_RAY, variables={"RAY_AUTH_MODE": own} if own else {})
    assert done.returncode == 0, done.stderr
    answer, found, refused = done.stdout.splitlines()
    assert (answer, found) == ("42", mode)
    assert refused.startswith(said)
    assert bool(refused) == bool(said)


def test_an_export_for_which_none_starts_is_a_line_and_makes_nothing(runs: dict[str, Run], tmp_path: Path) -> None:
    store, folders = tmp_path / "store", tmp_path / "tmp"
    folders.mkdir()
    export = ("-m", "limerank", "export", runs["lime-mha"].path, "--store", store, "--engine", "ray")
    done = python(*export, variables={**NO_PATIENCE, "TMPDIR": str(folders)})
    assert done.returncode == 6
    assert "error: Ray did not start on this machine (Timed out waiting for file" in done.stderr
    assert done.stderr.splitlines()[-1].endswith("; tried 3 times")
    assert "Traceback" not in done.stderr
    assert not store.exists()
    assert not any(folders.iterdir())
