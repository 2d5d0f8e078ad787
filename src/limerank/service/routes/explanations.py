"""/v1/explain: what each link added to a candidate's logit, and what it read of the history."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import asdict
from threading import Lock
from typing import Any

from limerank.serve.bundles.bundle import Bundle
from limerank.serve.catalog import Catalog
from limerank.serve.explanation.explain import CandidateExplanation, EventRead, explain
from limerank.serve.explanation.link_profiles import LinkProfile, link_profiles
from limerank.service.calls import ENCODER, Call, Reply, Service, handles
from limerank.service.routes.asking import as_given, leased, request_arguments, text_of, texts_of
from limerank.wire.body import rfc3339
from limerank.wire.rankings import ExplainAnswer, ExplainRequest


class Profiles:
    """What links stand for, of the bundles that were asked about last: that takes a walk through the catalog."""

    def __init__(self, most: int = 4) -> None:
        self._most = most
        self._lock = Lock()
        self._known: OrderedDict[str, list[LinkProfile]] = OrderedDict()

    def of(self, bundle: Bundle) -> list[LinkProfile]:
        """The links of a bundle, in their order."""
        with self._lock:
            if bundle.manifest.id not in self._known:
                self._known[bundle.manifest.id] = link_profiles(bundle)
            self._known.move_to_end(bundle.manifest.id)
            while len(self._known) > self._most:
                self._known.popitem(last=False)
            return self._known[bundle.manifest.id]


PROFILES = Profiles()


@handles("explain")
def explain_ranking(service: Service, call: Call) -> Reply:
    """What each link added to a candidate's logit, what it read of the history, and what it attracts in the catalog.

    LIME rankers only. Cheap, but not as cheap as a ranking: ask for a few candidates.
    """
    body: ExplainRequest = call.body
    user_id, texts = text_of(body.user_id), texts_of(body.item_ids)
    with leased(service, call, user_id, body.bundle) as lease:
        engine = lease.engine
        arguments = request_arguments(engine.bundle, body, service.options, call.arrived_at)
        started = call.since_arrival()

        def work() -> tuple[Any, list[LinkProfile]]:
            explained = explain(engine, user_id, texts, layer=body.layer, top_events=body.top_events, **arguments)
            return explained, PROFILES.of(engine.bundle)

        explanation, profiles = engine.workers.run(work)
        started = call.took("explain", started)
        catalog, echo = engine.catalog, as_given(body.item_ids, texts)
        candidates = [
            {"id": item, **_candidate(one)} for item, one in zip(echo(texts), explanation.candidates, strict=True)
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


def _candidate(one: CandidateExplanation) -> dict[str, Any]:
    facts = asdict(one)
    del facts["item"]
    return facts


def _link(number: int, profile: LinkProfile, events: Iterable[EventRead], catalog: Catalog) -> dict[str, Any]:
    """What a link read of this history, and what it attracts in the catalog."""
    facts = asdict(profile)
    items = [item for item, _ in profile.items]
    displays = catalog.displays_of(items) if catalog.bundle.manifest.display is not None else [None] * len(items)
    facts["items"] = [
        {"id": item, "weight": weight, **({} if display is None else {"display": display})}
        for (item, weight), display in zip(profile.items, displays, strict=True)
    ]
    read = [{**asdict(event), "time": rfc3339(event.time)} for event in events]
    return {"link": number, **facts, "events": read}
