"""The scorers of one bundle on Ray Serve: an application per shard, with replicas that Serve looks after.

Two steps make a bundle active on all shards or on none. First every replica of every shard maps its slice and verifies
it, beside the scorers of the bundle that serves; if one cannot, all of these are deleted again. Then whoever serves
lets requests go to the new scorers, by exchanging one reference. What a scorer serves is given to its constructor, so
one that Serve starts again serves the same.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from pathlib import Path

from limerank import files
from limerank.errors import BundleError, UnavailableError, UsageError
from limerank.serve.bundles.bundle import Bundle
from limerank.serve.engine import Missing
from limerank.serve.overlay.live import store_of
from limerank.serve.sharded.asking import Asking, Lost, Patience
from limerank.serve.sharded.cluster import RayCluster, ray_module, serve_module
from limerank.serve.sharded.explaining import explained, line_of
from limerank.serve.sharded.messages import Answer, Assignment, Facts, Question, weights_of
from limerank.serve.sharded.shard import ServedShard
from limerank.serve.sharded.slices import Slice, cut, digest, without

DEPLOYMENT = "shard"
START_SECONDS, POLL_SECONDS = 300.0, 0.1
SCORER_CPUS = 0.5
"""What a scorer reserves: it uses a core, and the scorers of the next bundle must fit beside it."""
HEALTH_SECONDS, HUNG_SECONDS = 1.0, 10.0
"""Between two looks of Serve at a scorer, and how long one may not answer before it is replaced."""
MOST_QUESTIONS = 64
"""At a scorer at a time; they wait there, not here."""
TRIES = 1
"""Of a constructor, before a slice is refused; a scorer that has served before is tried again and again."""
FACTS_SECONDS = 60.0
"""That a scorer which is ready may take to say what it is."""
MARGIN_FRACTION, LEAST_MARGIN_MS, LEAST_MS = 0.2, 5.0, 1.0
"""Of the time that an answer is waited for, what is kept for its way; and what a shard is given at least."""
SAID = re.compile(r"(?:limerank\.errors\.)?(\w*Error): (.+)")

log = logging.getLogger("limerank")


class DeployedShards:
    """The scorers of one bundle, from `deploy` to `close`."""

    def __init__(self, names: Sequence[str], slices: Sequence[Slice], replicas: int, patience: Patience) -> None:
        """Use `deploy`."""
        serve = serve_module()
        self.names, self.slices = list(names), list(slices)
        with explained("Ray Serve: did not give access to its scorers"):
            handles = [serve.get_app_handle(name) for name in names]

        async def call(number: int, question: Question) -> Answer:
            answer: Answer = await handles[number].answer.remote(question)
            return answer

        async def facts(number: int) -> Facts:
            said: Facts = await handles[number].facts.remote()
            return said

        self.asking: Asking[Question, Answer] = Asking(call, facts, patience, replicas=replicas)
        self._closed = False
        try:
            self.facts = [self._said(one, facts(one.number)) for one in slices]
        except BaseException:
            self.asking.close()
            raise

    def _said(self, one: Slice, facts: Coroutine[None, None, Facts]) -> Facts:
        with explained(f"{one.name}: its scorer is ready, but did not say what it is"):
            try:
                return self.asking.run(asyncio.wait_for(facts, FACTS_SECONDS))
            except TimeoutError:
                raise UnavailableError(
                    f"{one.name}: its scorer is ready, but did not answer in {FACTS_SECONDS:g} seconds; see its logs "
                    "with `ray logs`; no shard was changed"
                ) from None

    @classmethod
    def deploy(
        cls, cluster: RayCluster, bundle: Bundle, shards: int, replicas: int, patience: Patience
    ) -> DeployedShards:
        """Start scorers for every slice of a verified bundle; ready when this returns, or none of them is left."""
        serve = serve_module()

        if replicas < 1:
            raise UsageError(f"replicas must be at least 1, but are {replicas}")
        slices = cut(bundle.manifest.items, shards)
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        quiet = {"log_level": "ERROR", "enable_access_log": False}
        with explained(f"ray at {cluster.address}: Ray Serve did not start"):
            serve.start(proxy_location="Disabled", logging_config=quiet)
        token = f"{name_of_store(bundle)}-{bundle.manifest.id}-{secrets.token_hex(3)}"
        names = [f"{token}-{one.number + 1}" for one in slices]
        deployment = serve.deployment(
            ServedShard,
            name=DEPLOYMENT,
            num_replicas=replicas,
            ray_actor_options={"num_cpus": SCORER_CPUS},
            max_ongoing_requests=MOST_QUESTIONS,
            health_check_period_s=HEALTH_SECONDS,
            health_check_timeout_s=HUNG_SECONDS,
            graceful_shutdown_timeout_s=HEALTH_SECONDS,
            graceful_shutdown_wait_loop_s=POLL_SECONDS,
            max_constructor_retry_count=TRIES,
            logging_config=quiet,
        )
        targets = [
            serve.RunTarget(deployment.bind(assignment), name=name, route_prefix=None, logging_config=quiet)
            for name, assignment in zip(names, assignments(bundle, slices), strict=True)
        ]
        try:
            with explained(f"ray at {cluster.address}: Ray Serve did not take the shards"):
                serve.run_many(targets, wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)
            wait_until_ready(names, slices, bundle, cluster.address)
            return cls(names, slices, replicas, patience)
        except BaseException:
            end(names, wait=True)
            raise

    def ask(self, questions: dict[int, Question], milliseconds: float | None) -> dict[int, Answer | Lost]:
        """The answers by shard; one that gave none is lost.

        With a deadline shards stop earlier than they are waited for, so that what they have found until then arrives.
        """
        if milliseconds is not None:
            told = time_of_shard(min(milliseconds, self.asking.patience.patience_ms))
            questions = {number: replace(one, milliseconds=told) for number, one in questions.items()}
        return self.asking.ask(questions, milliseconds)

    def missing(self) -> Missing | None:
        """What requests are answered without right now."""
        lost, since = dict(self.asking.lost), dict(self.asking.lost_since)
        if not lost:
            return None
        said = f"{without(self.slices, lost)}; see `ray status`"
        if len(lost) < len(self.slices):
            return Missing(said)
        now = time.monotonic()
        seconds = min(now - since.get(number, now) for number in lost)
        return Missing(f"{said}; is the cluster's head gone, or another one there? start this service again", seconds)

    def close(self) -> None:
        """End the scorers; nobody asks them any more."""
        if not self._closed:
            self._closed = True
            self.asking.close()
            end(self.names, wait=False)


def time_of_shard(milliseconds: float) -> float:
    """What a shard may take whose answer is waited for so long."""
    return max(milliseconds - max(MARGIN_FRACTION * milliseconds, LEAST_MARGIN_MS), LEAST_MS)


def assignments(bundle: Bundle, slices: Sequence[Slice]) -> list[Assignment]:
    """What each shard is told; hashing the slices reads every row once."""
    manifest, weights = bundle.manifest, weights_of(bundle.ranker)
    return [
        Assignment(
            folder=str(bundle.path.resolve()),
            bundle=manifest.id,
            part=one,
            digest=digest(bundle.rows.between(one.first, one.last)),
            model=manifest.model,
            space=bundle.encoders.space(),
            tasks=len(manifest.tasks),
            weights=weights,
        )
        for one in slices
    ]


def wait_until_ready(names: Sequence[str], slices: Sequence[Slice], bundle: Bundle, address: str) -> None:
    """Wait for every replica of every shard; the first that cannot come up is the error."""
    serve = serve_module()
    end = time.monotonic() + START_SECONDS
    while True:
        with explained(f"ray at {address}: Ray Serve did not say whether the shards are ready"):
            applications = serve.status().applications
        found = [applications.get(name) for name in names]
        for one, status in zip(slices, found, strict=True):
            if status is not None and status.status in ("DEPLOY_FAILED", "UNHEALTHY"):
                said = [status.message, *(each.message for each in status.deployments.values())]
                raise BundleError(f"{one.name}: {reason_in(said)}; no shard was changed")
        if all(status is not None and status.status == "RUNNING" for status in found):
            return
        if time.monotonic() > end:
            late = next(
                one for one, status in zip(slices, found, strict=True) if getattr(status, "status", "") != "RUNNING"
            )
            raise UnavailableError(
                f"ray at {address}: {late.name} of bundle {bundle.manifest.id} was not ready after "
                f"{START_SECONDS:.0f} seconds; is there room for its scorers? see `ray status`; no shard was changed"
            )
        time.sleep(POLL_SECONDS)


def reason_in(messages: Sequence[str]) -> str:
    """What a constructor said, out of what Serve makes of it: a traceback with the error at its end."""
    for message in reversed(messages):
        lines = [found for line in message.replace("\\n", "\n").splitlines() if (found := SAID.search(line.strip()))]
        own = [found for found in lines if found[1] in ("BundleError", "DataError", "UsageError")] or lines
        if own:
            return own[-1][2].strip().rstrip("'\"")[:400]
    return " ".join(" ".join(messages).split())[:200]


def end(names: Sequence[str], *, wait: bool) -> None:
    """End scorers that nobody asks; what a Serve that does not answer leaves of them is no reason to fail."""
    try:
        delete(names, wait=wait)
    except Exception as error:
        log.warning("the scorers %s may not have ended (%s); see `ray status`", ", ".join(names), line_of(error))


def delete(names: Sequence[str], *, wait: bool) -> None:
    """End applications; Serve does it even if this process ends meanwhile."""
    if ray_module().is_initialized():
        for name in names:
            serve_module().delete(name, _blocking=wait)


def name_of_store(bundle: Bundle) -> str:
    """What the applications of a store's bundles begin with."""
    return prefix_of(store_of(bundle) or bundle.path)


def prefix_of(store: Path) -> str:
    """The same of its folder."""
    return f"limerank-{files.digest_of(str(store.resolve()))[:8]}"


def delete_leftovers(store: Path) -> None:
    """End scorers that a process which was killed has left behind; only who owns the store may do that."""
    serve = serve_module()
    prefix = f"{prefix_of(store)}-"
    with explained("Ray Serve: did not end scorers that an earlier service of this store left", "nothing is served"):
        try:
            applications = serve.status().applications
        except serve.exceptions.RayServeException:  # Serve was never started there
            return
        delete([name for name in applications if name.startswith(prefix)], wait=True)
