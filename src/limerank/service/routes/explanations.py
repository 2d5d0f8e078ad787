"""/v1/explain and /v1/links: what each link added to a candidate's logit, what it read, and what it stands for."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from threading import Lock
from typing import Any, Generic, TypeVar

from limerank.errors import UsageError
from limerank.serve.bundles.bundle import Bundle
from limerank.serve.catalog import Catalog
from limerank.serve.explanation.explain import CandidateExplanation, EventRead, explain
from limerank.serve.explanation.link_profiles import LinkProfile, lime_ranker, link_profiles
from limerank.serve.inspection.link_map import DEAD, DUPLICATE, LinkMap, MappedLink, link_map
from limerank.serve.threads.workers import Workers
from limerank.service.calls import ENCODER, Call, Reply, Service, handles
from limerank.service.problems import RefusalError
from limerank.service.routes.asking import as_given, leased, request_arguments, text_of, texts_of
from limerank.wire.body import rfc3339
from limerank.wire.inspection import (
    LinkAttribute,
    LinkFacts,
    LinkItem,
    LinksAnswer,
    LinkThresholds,
    Spectrum,
    TrafficSeen,
)
from limerank.wire.rankings import ExplainAnswer, ExplainRequest

Made = TypeVar("Made")


class Kept(Generic[Made]):
    """What is known of the links of the bundles that were asked about last: that takes a walk through the catalog."""

    def __init__(self, make: Callable[[Bundle], Made], most: int = 4) -> None:
        self._make = make
        self._most = most
        self._lock = Lock()
        self._known: OrderedDict[str, Made] = OrderedDict()

    def of(self, bundle: Bundle) -> Made:
        """What is known of a bundle."""
        with self._lock:
            if bundle.manifest.id not in self._known:
                self._known[bundle.manifest.id] = self._make(bundle)
            self._known.move_to_end(bundle.manifest.id)
            while len(self._known) > self._most:
                self._known.popitem(last=False)
            return self._known[bundle.manifest.id]


PROFILES: Kept[list[LinkProfile]] = Kept(link_profiles)


def _mapped(bundle: Bundle) -> LinkMap:
    """The map of a bundle's links, made by a worker of its own: those of the engine have requests to answer."""
    with Workers(1) as aside:
        return aside.run(lambda: link_map(bundle, PROFILES.of(bundle)))


MAPS: Kept[LinkMap] = Kept(_mapped)
USAGE = (
    "Of rankings that were looked at again: which part of all that links added to the logits of the ten best items, "
    "whatever its sign, was this link's."
)


@handles("explain")
def explain_ranking(service: Service, call: Call) -> Reply:
    """What each link added to a candidate's logit, what it read of the history, and what it attracts in the catalog.

    LIME rankers only. Cheap, but not as cheap as a ranking: ask for a few candidates.
    """
    body: ExplainRequest = call.body
    user_id, texts = text_of(body.user_id), texts_of(body.item_ids)
    with leased(service, call, user_id, body.bundle) as lease:
        engine = lease.engine
        _check_links(engine.bundle)
        arguments = request_arguments(engine.bundle, body, service.options, call.arrived_at)
        started = call.since_arrival()

        def work() -> tuple[Any, list[LinkProfile]]:
            explained = explain(engine, user_id, texts, layer=body.layer, top_events=body.top_events, **arguments)
            return explained, PROFILES.of(engine.bundle)

        explanation, profiles = engine.workers.run(work)
        started = call.took("explain", started)
        catalog, echo = engine.catalog, as_given(body.item_ids, texts)
        shown = _displays(catalog, texts)
        candidates = [
            {"id": item, **_candidate(one), **_called(display)}
            for item, one, display in zip(echo(texts), explanation.candidates, shown, strict=True)
        ]
        links = [
            _link(number, profile, events, catalog)
            for number, (profile, events) in enumerate(zip(profiles, explanation.events, strict=True))
        ]
        call.stages["total"] = call.took("encode", started)
        answer = ExplainAnswer(
            request_id=call.request_id,
            bundle=lease.bundle_id,
            arm=lease.arm,
            task=explanation.task,
            history_used=explanation.history_used,
            candidates=candidates,
            links=links,
            timing_ms={stage: round(milliseconds, 3) for stage, milliseconds in call.stages.items()},
        )
        return Reply(ENCODER.encode(answer))


@handles("list_links")
def list_links(service: Service, call: Call) -> Reply:
    """Every link of a served bundle: what it attracts, how much traffic uses it, whether it is dead or a duplicate.

    LIME rankers only. The first call for a bundle reads its catalog, which takes seconds for a million items.
    """
    with leased(service, call, bundle=call.query.get("bundle")) as lease:
        engine = lease.engine
        _check_links(engine.bundle)
        found, used = MAPS.of(engine.bundle), service.links.of(lease.bundle_id)
        usage = None if used is None else used.fractions()
        of_weights, of_links = found.effective_ranks
        answer = LinksAnswer(
            bundle=lease.bundle_id,
            model=engine.ranker.name,
            items=found.items,
            items_read=found.items_compared,
            heads=found.heads,
            links=[
                _link_facts(one, None if usage is None else usage[number], engine.catalog)
                for number, one in enumerate(found.links)
            ],
            thresholds=LinkThresholds(dead=DEAD, duplicate=DUPLICATE),
            spectrum=Spectrum(
                weights=found.weights_spectrum,
                links=found.links_spectrum,
                effective_rank={"weights": of_weights, "links": of_links},
            ),
            usage=TrafficSeen(
                rankings=0 if used is None else used.rankings,
                offered=service.links.offered,
                since=datetime.fromtimestamp(service.links.since / 1000, UTC),
                pid=os.getpid(),
                means=USAGE,
            ),
        )
    return Reply.of(answer)


def _link_facts(one: MappedLink, usage: float | None, catalog: Catalog) -> LinkFacts:
    profile = one.profile
    displays = _displays(catalog, [item for item, _ in profile.items])
    return LinkFacts(
        link=profile.link,
        level=profile.level,
        parent=profile.parent,
        weight=profile.weight,
        items=[
            LinkItem(id=item, weight=weight, display=display)
            for (item, weight), display in zip(profile.items, displays, strict=True)
        ],
        attributes=[LinkAttribute(**asdict(attribute)) for attribute in profile.attributes],
        spread=one.spread,
        dead=one.dead,
        similar_to=one.similar_to,
        similarity=one.similarity,
        duplicate_of=one.duplicate_of,
        usage=usage,
    )


def _check_links(bundle: Bundle) -> None:
    """Refuse bundles whose rankers have no links."""
    try:
        lime_ranker(bundle)
    except UsageError as none:
        raise RefusalError("no-links", str(none)) from None


def _displays(catalog: Catalog, items: list[str]) -> list[str | None]:
    return catalog.displays_of(items) if catalog.bundle.manifest.display is not None else [None] * len(items)


def _called(display: str | None) -> dict[str, str]:
    return {} if display is None else {"display": display}


def _candidate(one: CandidateExplanation) -> dict[str, Any]:
    facts = asdict(one)
    del facts["item"]
    return facts


def _link(number: int, profile: LinkProfile, events: Iterable[EventRead], catalog: Catalog) -> dict[str, Any]:
    """What a link read of this history, and what it attracts in the catalog."""
    facts = asdict(profile)
    displays = _displays(catalog, [item for item, _ in profile.items])
    facts["items"] = [
        {"id": item, "weight": weight, **_called(display)}
        for (item, weight), display in zip(profile.items, displays, strict=True)
    ]
    listed = list(events)
    read = [
        {**asdict(event), "time": rfc3339(event.time), **_called(display)}
        for event, display in zip(listed, _displays(catalog, [event.item for event in listed]), strict=True)
    ]
    return {"link": number, **facts, "events": read}
