"""/v1/rank, /v1/rank/batch and /v1/recommend: a typed body, one lease of a bundle, one call of its engine."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
import numpy as np

from limerank.data.store.manifest import UNKNOWN_ROW
from limerank.serve.deadline import Deadline
from limerank.serve.engine import Engine
from limerank.serve.experiments.log import record_of
from limerank.serve.experiments.routing import Routing
from limerank.serve.hosting.leases import Lease
from limerank.serve.inspection.link_usage import BEST, Ranked
from limerank.serve.ranking import Ranking
from limerank.serve.retrieval.diversity import AtMost, Diversify, Mmr
from limerank.service.calls import ENCODER, Call, Reply, Service, handles
from limerank.service.problems import invalid, refusal_of
from limerank.service.routes.asking import (
    as_given,
    check_answered,
    check_candidates,
    leased,
    request_arguments,
    text_of,
    texts_of,
    unknown_items,
)
from limerank.wire.body import rfc3339
from limerank.wire.rankings import (
    BatchAnswer,
    BatchPart,
    BatchRequest,
    Diversity,
    RankAnswer,
    RankCounts,
    RankedItem,
    RankedUser,
    RankRequest,
    RecommendRequest,
)


@dataclass
class Found:
    """A ranking, and what the answer says beyond it."""

    ranking: Ranking
    task: int
    echo: Callable[[list[str]], list[str | int]]
    """Ids as the caller wrote them."""
    dropped: list[str] = field(default_factory=list)
    """Candidates that were left out because they are unknown."""


@handles("rank")
def rank(service: Service, call: Call) -> Reply:
    """Score given candidates, or the whole catalog, and return the best.

    An unknown user ranks with an empty history, an unknown item as one of which nothing is known; neither is an error.
    An item that is given twice is ranked twice.
    """
    return Reply(_ranked(service, call, call.body))


@handles("recommend")
def recommend(service: Service, call: Call) -> Reply:
    """Find candidates, rank them, leave out what the user has seen, diversify if asked to.

    Without `retrievers` the whole catalog is ranked, or, where it is large and has an index, what the index finds.
    """
    return Reply(_recommended(service, call, call.body))


@handles("rank_batch")
def rank_batch(service: Service, call: Call) -> Reply:
    """One ranking after the other; one that fails has a problem in its part, and does not touch the others.

    The time of all of them runs from the arrival of the call.
    """
    body: BatchRequest = call.body
    parts = []
    for number, one in enumerate(body.requests):
        milliseconds = one.options.deadline_ms or service.options.deadline_ms or math.inf
        part = Call(
            call.operation,
            f"{call.request_id}-{number}",
            call.arrived,
            call.arrived_at,
            {},
            {},
            one,
            Deadline(milliseconds, started=call.arrived),
            {"queue": call.since_arrival()},
            answered=call.answered,
        )
        try:
            parts.append(BatchPart(answer=cast(Any, msgspec.Raw(_ranked(service, part, one)))))
        except Exception as error:
            refusal = refusal_of(error)
            if refusal.kind == "internal":
                raise
            parts.append(BatchPart(problem=refusal.problem(f"requests[{number}]", part.request_id)))
        call.answered = part.answered
        for stage, milliseconds in part.stages.items():
            if stage not in ("queue", "total"):
                call.stages[stage] = call.stages.get(stage, 0.0) + milliseconds
        call.spans += part.spans
    started = call.since_arrival()
    content = ENCODER.encode(BatchAnswer(parts=parts))
    call.stages["total"] = call.took("encode", started)
    return Reply(content)


def _ranked(service: Service, call: Call, body: RankRequest) -> bytes:
    user_id, options = text_of(body.user_id), body.options
    given = body.item_ids
    if given is not None:
        check_candidates(len(given), service.options)
    with leased(service, call, user_id, body.bundle) as lease:
        engine = lease.engine
        arguments = request_arguments(engine.bundle, body, service.options, call.arrived_at)
        check_answered(call, min(body.limit, len(engine.catalog) if given is None else len(given)), service.options)
        texts = None if given is None else texts_of(given)
        echo = _same if given is None or texts is None else as_given(given, texts)
        dropped: list[str] = []
        if texts is not None and options.missing != "prior":
            texts, dropped = _known(engine, texts)
            if dropped and options.missing == "error":
                raise unknown_items(echo(dropped))
        arguments |= {"limit": body.limit, "exclude_seen": options.exclude_seen is True}

        def request(engine: Engine, deadline: Deadline | None = None) -> Ranking:
            return engine.answer(user_id, texts, deadline_ms=deadline, **arguments)

        started = call.since_arrival()
        ranking = request(engine, call.deadline)
        found = Found(ranking, _task(ranking, body.task), echo, dropped)
        if given is not None:
            service.metrics.missing.labels(options.missing).inc(len(dropped) + len(ranking.unknown_items))
        answer = _answer(service, call, lease, found, started, body.options.record)
        _look(service, lease, body, found, arguments)
    _record(service, call, lease.routing, body, ranking, request, "rank")
    return answer


def _recommended(service: Service, call: Call, body: RecommendRequest) -> bytes:
    user_id = text_of(body.user_id)
    if body.options.missing != "prior":
        raise invalid("options.missing", "options.missing: retrieved candidates are never unknown; leave it out")
    with leased(service, call, user_id, body.bundle) as lease:
        engine = lease.engine
        arguments = request_arguments(engine.bundle, body, service.options, call.arrived_at)
        check_answered(call, min(body.limit, len(engine.catalog)), service.options)
        arguments |= {
            "retriever": body.retrievers,
            "candidates": body.candidates,
            "filter_seen": body.options.exclude_seen is not False,
            "diversify": _diversify(body.diversify),
        }

        def request(engine: Engine, deadline: Deadline | None = None) -> Ranking:
            return engine.recommend(user_id, body.limit, deadline_ms=deadline, **arguments)

        started = call.since_arrival()
        ranking = request(engine, call.deadline)
        found = Found(ranking, _task(ranking, body.task), _same)
        answer = _answer(service, call, lease, found, started, body.options.record)
        _look(service, lease, body, found, arguments)
    _record(service, call, lease.routing, body, ranking, request, "recommend")
    return answer


def _record(
    service: Service,
    call: Call,
    routing: Routing,
    body: RankRequest | RecommendRequest,
    ranking: Ranking,
    request: Callable[[Engine], Ranking],
    kind: str,
) -> None:
    """While an experiment runs: log the ranking, and let shadows rank the request again."""
    if not routing.is_logged or not body.options.record:
        return
    user_id = text_of(body.user_id)
    record = record_of(
        ranking,
        request_id=call.request_id,
        user_id=user_id,
        routing=routing,
        kind=kind,
        named_bundle=body.bundle is not None,
        milliseconds=dict(call.stages),
    )
    service.host.log.record(record)
    if routing.shadows:
        service.shadows.consider(request, ranking, request_id=call.request_id, user_id=user_id)


def _look(
    service: Service, lease: Lease, body: RankRequest | RecommendRequest, found: Found, arguments: dict[str, Any]
) -> None:
    """Let what links added to this ranking be counted, unless it is no traffic."""
    if not body.options.record or arguments["left_out"] is not None or not found.ranking.item_ids:
        return

    def ranked() -> Ranked:
        return Ranked(
            bundle=lease.bundle_id,
            user_id=text_of(body.user_id),
            best=found.ranking.item_ids[:BEST],
            task=found.task,
            context=arguments["context"],
            events=arguments["events"],
            history=arguments["history"],
            now=arguments["now"],
        )

    service.links.consider(lease.engine, ranked)


def _known(engine: Engine, item_ids: list[str]) -> tuple[list[str], list[str]]:
    """Items that are in the catalog, and those that are not."""
    unknown = (engine.catalog.rows_of(item_ids) == UNKNOWN_ROW).tolist()
    kept = [item for item, one in zip(item_ids, unknown, strict=True) if not one]
    return kept, [item for item, one in zip(item_ids, unknown, strict=True) if one]


def _same(found: list[str]) -> list[str | int]:
    return cast("list[str | int]", found)


def _task(ranking: Ranking, task: str | None) -> int:
    return 0 if task is None else ranking.tasks.index(task)


def _diversify(asked: Diversity | None) -> Diversify | None:
    if asked is None:
        return None
    by_feature = asked.feature is not None and asked.at_most is not None
    if (asked.mmr is not None) == by_feature or (asked.feature is None) != (asked.at_most is None):
        raise invalid("diversify", "diversify: give either mmr, or feature and at_most")
    if asked.mmr is not None:
        return Mmr(asked.mmr)
    return AtMost(cast(str, asked.feature), cast(int, asked.at_most))


def _answer(service: Service, call: Call, lease: Lease, found: Found, started: float, record: bool) -> bytes:
    """The ranking as JSON; its items are encoded first, so that the answer can say how long that took."""
    ranking = found.ranking
    _note_stages(call, ranking, started)
    started = call.since_arrival()
    items = ENCODER.encode(_items(lease.engine, found))
    call.answered += len(ranking.item_ids)
    call.stages["total"] = call.took("encode", started)
    _count(service, ranking, lease.arm if record else None)
    answer = RankAnswer(
        request_id=call.request_id,
        bundle=ranking.bundle,
        arm=lease.arm,
        user=RankedUser(
            known=ranking.known_user,
            state=cast(Any, ranking.user_state),
            history_used=ranking.history_used,
            history_as_of=rfc3339(ranking.history_as_of),
            left_out=ranking.left_out,
        ),
        items=cast(Any, msgspec.Raw(items)),
        counts=RankCounts(
            requested=ranking.candidates + ranking.unscored + ranking.seen_items + len(found.dropped),
            scored=ranking.candidates,
            unknown=len(ranking.unknown_items) + len(found.dropped),
            excluded=ranking.seen_items + len(found.dropped),
            unscored=ranking.unscored,
            overlay=ranking.overlay_items,
        ),
        unknown_items=found.echo(found.dropped + ranking.unknown_items),
        degraded=ranking.degraded,
        path=ranking.path,
        timing_ms={stage: round(milliseconds, 3) for stage, milliseconds in call.stages.items()},
        retrieved_by=ranking.retrieved_by,
    )
    return ENCODER.encode(answer)


def _items(engine: Engine, found: Found) -> list[RankedItem]:
    ranking, ids = found.ranking, found.echo(found.ranking.item_ids)
    scores = ranking.probabilities[:, found.task].tolist()
    displays: list[str | None] = [None] * len(ids)
    if engine.bundle.manifest.display is not None:
        displays = engine.catalog.displays_of(ranking.item_ids)
    if len(ranking.tasks) == 1:
        listed = zip(ids, scores, displays, strict=True)
        return [RankedItem(id=item, score=score, display=display) for item, score, display in listed]
    by_task = ranking.probabilities.astype(np.float64).tolist()
    return [
        RankedItem(id=item, score=score, scores=dict(zip(ranking.tasks, row, strict=True)), display=display)
        for item, score, row, display in zip(ids, scores, by_task, displays, strict=True)
    ]


def _note_stages(call: Call, ranking: Ranking, started: float) -> None:
    """The engine's stages on the call's own time line, which began at its arrival."""
    for stage, milliseconds in ranking.milliseconds.items():
        if stage != "total":
            call.stages[stage] = call.stages.get(stage, 0.0) + milliseconds
    call.spans += [(span.stage, started + span.started_ms, started + span.ended_ms) for span in ranking.timeline]


def _count(service: Service, ranking: Ranking, arm: str | None) -> None:
    metrics = service.metrics
    metrics.candidates.observe(ranking.candidates)
    metrics.states.labels(ranking.user_state).inc()
    if arm is not None:
        metrics.arms.labels(arm).inc()
    if ranking.overlay_items:
        metrics.overlaid.inc(ranking.overlay_items)
    for line in ranking.degraded:
        metrics.degraded.labels(line.partition(":")[0]).inc()
