"""What a service is told when it starts; each field is an option of `limerank serve`, and LIMERANK_SERVE_<FIELD>."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from ipaddress import ip_address
from typing import Any, TypeVar

from limerank.errors import UsageError

Value = TypeVar("Value")

ENVIRONMENT_PREFIX = "LIMERANK_SERVE_"


def _option(default: Value, told: str, least: float | None = None, most: float | None = None) -> Value:
    """A field with what `--help` says of it, and the smallest and largest value it may have."""
    made: Any = field(default=default, metadata={"help": told, "least": least, "most": most})
    return made  # type: ignore[no-any-return]


@dataclass(frozen=True)
class ServiceOptions:
    """Limits and addresses of a service; /v1/info shows the limits."""

    host: str = _option("127.0.0.1", "Address to listen on.")
    port: int = _option(8080, "Port to listen on; 0 takes a free one and says which.", 0, 65535)
    processes: int = _option(1, "Processes that answer on the one port.", 1, 64)
    threads: int | None = _option(
        None, "Workers of each process; default: one for each core it may use, divided among the processes.", 1
    )
    insecure: bool = _option(False, "Listen on other addresses than loopback although no key is needed.")
    body_bytes: int = _option(32 * 2**20, "Most bytes of a body; bundles may be larger.", 1024)
    candidates: int = _option(50_000, "Most candidates of a request.", 1)
    history_events: int = _option(4_096, "Most events in the body of a ranking request.", 0)
    events_per_call: int = _option(1_000, "Most events of a call that stores them.", 1)
    queue: int = _option(64, "Requests that may wait for a free slot; one more is answered with 429.", 0)
    concurrency: int | None = _option(None, "Requests worked on at a time, of each process; default: its workers.", 1)
    deadline_ms: float = _option(500.0, "Milliseconds for requests that name no deadline.", 1)
    grace_seconds: float = _option(30.0, "How long requests under way may take when the service is to end.", 0)
    header_seconds: float = _option(10.0, "How long a client may take to send the head of a request.", 0.1)
    body_seconds: float = _option(30.0, "How long it may take to send a body, besides a second for every 64 KiB.", 0.1)
    idle_seconds: float = _option(30.0, "How long a connection may stay open without a request.", 0.1)
    connections: int = _option(1_000, "Connections at a time, of each process; one more is answered with 503.", 1)
    states_mb: int = _option(256, "Megabytes of kept user states, of each process.", 0)
    warmup_requests: int = _option(32, "Requests that a bundle answers before anybody else may ask it.", 0)
    max_bundle_age_hours: float | None = _option(None, "A bundle older than that makes the service degraded.", 0)
    access_log: bool = _option(True, "One JSON line on standard error for each request.")
    log_users: bool = _option(False, "Write user ids into the access log, which has no personal data otherwise.")
    history_cap: int = _option(4_096, "Stored events of a user; the oldest go first.", 1)
    retention_days: float | None = _option(
        None, "Stored events older than that are deleted; default: kept up to the cap.", 0
    )
    histories: str | None = _option(
        None,
        "Where stored events are: a Redis, redis://USER@HOST:PORT/0 or rediss:// for TLS, its password in "
        "LIMERANK_REDIS_PASSWORD; default: in the store.",
    )

    shards: int | None = _option(
        None, "Split item rows over so many scorers on Ray; default: none, rows are scored in this process.", 1, 4096
    )
    replicas: int = _option(1, "Scorers of each shard.", 1, 64)
    ray: str | None = _option(None, "HOST:PORT of the Ray that scorers run on; default: one that is started here.")
    hedge_ms: float = _option(50.0, "Milliseconds after which a slow shard's replica is asked, too.", 0.1)
    patience_ms: float = _option(1_000.0, "Milliseconds after which a shard is lost, and the answer degraded.", 1)

    def __post_init__(self) -> None:
        for one in fields(self):
            value, least, most = getattr(self, one.name), one.metadata["least"], one.metadata["most"]
            if value is None or isinstance(value, str | bool):
                continue
            if not (least is None or value >= least) or not (most is None or value <= most):
                limits = f"at least {least:g}" if most is None else f"between {least:g} and {most:g}"
                raise UsageError(f"--{one.name.replace('_', '-')} {value}: must be {limits}")
        if self.shards is not None and self.processes > 1:
            raise UsageError(
                f"--processes {self.processes} --shards {self.shards}: with shards there is one process, for the "
                "user stage; leave --processes out"
            )
        if not self.host:
            raise UsageError("--host: is empty; name an address such as 127.0.0.1, or 0.0.0.0 for all")

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Whether a host, as people or Host headers write it, is this machine and nothing else."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
