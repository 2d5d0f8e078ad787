"""Calls that rank: rank, rank_batch, recommend, explain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from msgspec.structs import replace

from limerank.client.call import Call, GivenId, GivenTime, checked_id, checked_ids, struct, structs
from limerank.wire.rankings import (
    BatchAnswer,
    BatchRequest,
    Diversity,
    ExplainAnswer,
    ExplainRequest,
    HistoryEvent,
    Options,
    RankAnswer,
    RankRequest,
    RecommendRequest,
    UnwantedEvent,
)

GivenEvent = HistoryEvent | Mapping[str, Any]
GivenUnwanted = UnwantedEvent | Mapping[str, Any]
Missing = Literal["prior", "drop", "error"]
Retriever = Literal["exact", "faiss", "popular"]


def rank(
    user_id: GivenId,
    item_ids: Iterable[GivenId] | None = None,
    *,
    limit: int = 100,
    context: Mapping[str, Any] | None = None,
    history: Iterable[GivenEvent] | None = None,
    events: Iterable[GivenEvent] = (),
    without: Iterable[GivenUnwanted] = (),
    until: GivenTime | None = None,
    now: GivenTime | None = None,
    task: str | None = None,
    bundle: str | None = None,
    exclude_seen: bool = False,
    missing: Missing = "prior",
    deadline_ms: float | None = None,
    record: bool = True,
    request_id: str | None = None,
) -> Call[RankAnswer]:
    """Order candidates for a user, the best `limit` of them; without `item_ids` the whole catalog.

    `history` None is what the service has stored; a list, oldest first, is this and nothing else. `events` follow it
    and are not stored. `without` and `until` leave out stored events, to see what the ranking would be without them;
    `record=False` is for such looks: no experiment counts them. `deadline_ms` is for all attempts together.
    """
    body = RankRequest(
        user_id=checked_id(user_id, "user_id"),
        item_ids=None if item_ids is None else checked_ids(item_ids, "item_ids"),
        limit=limit,
        context=dict(context or {}),
        history=None if history is None else structs(history, HistoryEvent, "history"),
        events=structs(events, HistoryEvent, "events"),
        without=structs(without, UnwantedEvent, "without"),
        until=until,
        now=now,
        task=task,
        bundle=bundle,
        options=Options(exclude_seen=exclude_seen, missing=missing, record=record),
    )
    return Call(
        "rank", "POST", "/v1/rank", RankAnswer, body, timed=_within, deadline_ms=deadline_ms, request_id=request_id
    )


def rank_batch(
    requests: Sequence[RankRequest | Mapping[str, Any]],
    *,
    deadline_ms: float | None = None,
    request_id: str | None = None,
) -> Call[BatchAnswer]:
    """Several rankings in one call; each part of the answer is a ranking, or the problem that there was."""
    body = BatchRequest(requests=structs(requests, RankRequest, "requests"))
    return Call(
        "rank_batch",
        "POST",
        "/v1/rank/batch",
        BatchAnswer,
        body,
        timed=_all_within,
        deadline_ms=deadline_ms,
        request_id=request_id,
    )


def recommend(
    user_id: GivenId,
    limit: int = 10,
    *,
    retrievers: Sequence[Retriever] | None = None,
    candidates: int | None = None,
    diversify: Diversity | Mapping[str, Any] | None = None,
    context: Mapping[str, Any] | None = None,
    history: Iterable[GivenEvent] | None = None,
    events: Iterable[GivenEvent] = (),
    without: Iterable[GivenUnwanted] = (),
    until: GivenTime | None = None,
    now: GivenTime | None = None,
    task: str | None = None,
    bundle: str | None = None,
    exclude_seen: bool = True,
    deadline_ms: float | None = None,
    record: bool = True,
    request_id: str | None = None,
) -> Call[RankAnswer]:
    """Retrieve, then rank; without what the user has seen, unless `exclude_seen` is False."""
    body = RecommendRequest(
        user_id=checked_id(user_id, "user_id"),
        limit=limit,
        retrievers=None if retrievers is None else list(retrievers),
        candidates=candidates,
        diversify=None if diversify is None else struct(diversify, Diversity, "diversify"),
        context=dict(context or {}),
        history=None if history is None else structs(history, HistoryEvent, "history"),
        events=structs(events, HistoryEvent, "events"),
        without=structs(without, UnwantedEvent, "without"),
        until=until,
        now=now,
        task=task,
        bundle=bundle,
        options=Options(exclude_seen=exclude_seen, record=record),
    )
    return Call(
        "recommend",
        "POST",
        "/v1/recommend",
        RankAnswer,
        body,
        timed=_within,
        deadline_ms=deadline_ms,
        request_id=request_id,
    )


def explain(
    user_id: GivenId,
    item_ids: Iterable[GivenId],
    *,
    context: Mapping[str, Any] | None = None,
    history: Iterable[GivenEvent] | None = None,
    events: Iterable[GivenEvent] = (),
    without: Iterable[GivenUnwanted] = (),
    until: GivenTime | None = None,
    now: GivenTime | None = None,
    task: str | None = None,
    bundle: str | None = None,
    layer: Literal["first", "last"] = "first",
    top_events: int = 5,
    deadline_ms: float | None = None,
    request_id: str | None = None,
) -> Call[ExplainAnswer]:
    """Why a few candidates have their scores: links, what they read of the history, what they attract."""
    body = ExplainRequest(
        user_id=checked_id(user_id, "user_id"),
        item_ids=checked_ids(item_ids, "item_ids"),
        context=dict(context or {}),
        history=None if history is None else structs(history, HistoryEvent, "history"),
        events=structs(events, HistoryEvent, "events"),
        without=structs(without, UnwantedEvent, "without"),
        until=until,
        now=now,
        task=task,
        bundle=bundle,
        layer=layer,
        top_events=top_events,
    )
    return Call("explain", "POST", "/v1/explain", ExplainAnswer, body, deadline_ms=deadline_ms, request_id=request_id)


def _within(body: RankRequest | RecommendRequest, left_ms: float) -> RankRequest | RecommendRequest:
    own = body.options.deadline_ms
    return replace(body, options=replace(body.options, deadline_ms=left_ms if own is None else min(own, left_ms)))


def _all_within(body: BatchRequest, left_ms: float) -> BatchRequest:
    return replace(body, requests=[_within(request, left_ms) for request in body.requests])
