"""A Ray cluster to compute on: one of our own that ends with the work, or one that is there already.

Ray waits for minutes for an address that does not answer, and writes what it tries to standard error. So the port is
tried first, and then whether Ray connects, in a process that can be ended.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from limerank.errors import ConflictError, UnavailableError, require_extra
from limerank.serve.bundles.on_ray.address import AUTO, CLIENT, host_and_port, same_cluster
from limerank.serve.bundles.on_ray.starting import guard_own_ray, ray_folder, start_ray
from limerank.threads import available_cores

PORT_SECONDS = 5.0
"""How long a machine may take to accept a connection."""
JOIN_SECONDS = 60.0
"""How long Ray may take to join a cluster; on an idle machine it is one or two."""
FEW_TRIES = {"RAY_NUM_REDIS_GET_RETRIES": "3"}
"""How often Ray asks a cluster that refuses; 20 times otherwise."""
CLIENT_TRIES, CLIENT_NOT_SERVED = 3, "Starting Ray client server failed"
"""A cluster starts a process for each client; now and then one ends before it has begun, and the next one does not."""
HERE = "Ray on this machine"
SCHEDULING = {"RAY_task_oom_retries": "3", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
"""Read when Ray is loaded, unless somebody set them: shards of workers that Ray ends for want of memory are given to
others as often as those of workers that die (Ray would go on for ever), and what Ray would warn of. Not so where
somebody else has called `ray.init`: the process that owns a task decides, and tasks have no option for it."""

_TRIAL = """
import json, sys
import ray
try:
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level="CRITICAL")
    said = ""
except Exception as error:
    said = f"{type(error).__name__}: {error}"
print("\\n" + json.dumps(said))
sys.stdout.flush()
"""


@contextmanager
def connected(address: str | None, cores: int | None = None) -> Iterator[str]:
    """Ray in this process until the block ends; yields what to call it in messages.

    Without an address it is started with so many cores, by default all that this process may use. A process that is
    connected already stays so: `address` must be None then, or the one it is connected to.
    """
    require_extra("ray", "ray")
    if "ray" in sys.modules and sys.modules["ray"].is_initialized():
        yield _own_connection(address)
        return
    if address is not None:
        if address != AUTO:
            _check_port(address)
        if reason := why_not_joined(address):
            raise UnavailableError(f"engine 'ray:{address}': {reason}")
    for name, value in SCHEDULING.items():
        os.environ.setdefault(name, value)
    with _joined(address) if address is not None else _started(cores or available_cores()):
        yield HERE if address is None else f"Ray at {address}"


@contextmanager
def _joined(address: str) -> Iterator[None]:
    import ray

    try:
        for left in reversed(range(CLIENT_TRIES)):
            try:
                ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL)
                break
            except Exception as error:  # Ray raises whatever it likes; the cluster could be joined a moment ago
                if not left or CLIENT_NOT_SERVED not in str(error):
                    raise UnavailableError(f"engine 'ray:{address}': {_reason(str(error), '')}") from error
        yield
    finally:
        ray.shutdown()


@contextmanager
def _started(cores: int) -> Iterator[None]:
    guard_own_ray()
    import ray

    with ray_folder() as folder:
        try:
            start_ray(folder, cores, logging_level=logging.CRITICAL)
            yield
        finally:
            ray.shutdown()


def _own_connection(address: str | None) -> str:
    import ray

    joined = str(ray.get_runtime_context().gcs_address)
    if address is not None and not same_cluster(address, joined, f"engine 'ray:{address}'"):
        raise ConflictError(
            f"engine 'ray:{address}': this process is connected to Ray at {joined} already; call ray.shutdown() first, "
            "or export with engine 'ray' to use that"
        )
    return f"Ray at {joined}"


def _check_port(address: str) -> None:
    """Refuse an address at which nobody listens."""
    host, port = host_and_port(address, f"engine 'ray:{address}'", client=True)
    try:
        socket.create_connection((host, port), timeout=PORT_SECONDS).close()
    except (OSError, UnicodeError) as refused:
        said = getattr(refused, "strerror", None) or refused
        raise UnavailableError(
            f"engine 'ray:{address}': nothing answers at {address.removeprefix(CLIENT)} ({said}); start Ray "
            "there (`ray start --head`), or export without --engine"
        ) from None


def why_not_joined(address: str) -> str:
    """Why Ray cannot join the cluster at an address, in a line; empty if it can."""
    for _ in range(CLIENT_TRIES):
        reason = _tried(address)
        if CLIENT_NOT_SERVED not in reason:
            break
    return reason


def _tried(address: str) -> str:
    """The same of one try, in a process that can be ended."""
    try:
        tried = subprocess.run(  # noqa: S603 (our own program)
            [sys.executable, "-c", _TRIAL, address],
            env={**os.environ, **FEW_TRIES},
            capture_output=True,
            text=True,
            timeout=JOIN_SECONDS,
        )
        said = json.loads(tried.stdout.splitlines()[-1]) if tried.stdout.strip() else _last_line(tried.stderr)
        noise = tried.stderr
    except subprocess.TimeoutExpired as late:
        said = f"no answer in {JOIN_SECONDS:.0f} s"
        noise = (late.stderr or b"").decode(errors="replace")
    return _reason(said, noise) if said else ""


def _reason(said: str, noise: str) -> str:
    """What Ray said, in a line."""
    if "Version mismatch" in said:
        return f"the cluster is of another version; install the same on both: {' '.join(said.split())}"
    if "AuthToken" in noise or "AuthenticationError" in said:
        return (
            "the cluster wants a token; set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH, "
            "as on the machine it was started on"
        )
    if CLIENT_NOT_SERVED in said:  # behind a traceback of the cluster's
        return f"{CLIENT_NOT_SERVED}, {CLIENT_TRIES} times; see ray_client_server_*.err in the logs of that machine"
    if "ray client connection timeout" in said:  # of a client without a token nobody says more
        return (
            "no Ray Client server took this process in; is that the port of `ray start --ray-client-server-port`, and "
            "does the cluster want a token (RAY_AUTH_MODE=token and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH)?"
        )
    return f"Ray did not join a cluster there ({' '.join(said.split())[:300]}); see that it runs with `ray status`"


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it ended without a word"])[-1]
