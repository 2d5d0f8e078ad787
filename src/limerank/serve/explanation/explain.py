"""Why a candidate has its score: the links it reads, what each adds to the logit, and what each read of the history.

Three facts per link, which together lead from a candidate to events:

    weight        w_(c,i), how much of the link the candidate takes; the same for every user
    contribution  what that adds to this candidate's logit (`limerank.serve.explanation.contributions`)
    events        what the link read of this user's history; the same for every candidate

What a link stands for in the catalog is in `limerank.serve.explanation.link_profiles`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from limerank.batch import History, UserInputs
from limerank.data.store.manifest import UNKNOWN_ROW
from limerank.errors import UsageError, did_you_mean
from limerank.models import ItemState
from limerank.models.lime import ReadingLayer
from limerank.schema import UNKNOWN_INDEX, Kind
from limerank.serve.bundles.bundle import Bundle
from limerank.serve.engine import Engine
from limerank.serve.explanation.contributions import Contributions, contributions
from limerank.serve.explanation.link_profiles import lime_ranker
from limerank.serve.histories.of_request import RequestHistory
from limerank.serve.histories.past import Event, LeftOut
from limerank.serve.requests import Asked


@dataclass(frozen=True)
class EventRead:
    """An event of the history, as a link read it."""

    item: str
    position: int
    """1 is the most recent event."""
    fraction: float
    """Of all the link read: |weight|, averaged over heads; over the whole history these sum to 1."""
    weights: list[float]
    """phi per head; with SiLU it may be negative."""
    features: dict[str, str]
    """What happened, by event feature."""
    time: int | None


@dataclass(frozen=True)
class LinkPart:
    """A link's part in one candidate's logit."""

    link: int
    weight: float
    """The mean over heads."""
    contribution: float
    """The sum over heads."""
    head_weights: list[float]
    head_contributions: list[float]


@dataclass(frozen=True)
class CandidateExplanation:
    """logit = the contributions of all links + item + user + constant."""

    item: str
    score: float
    """The probability that a ranking gives this candidate; 1 / (1 + exp(-logit)) but for rounding."""
    logit: float
    links: list[LinkPart]
    """All of them, the largest contribution (of either sign) first."""
    from_links: float
    from_item: float
    from_user: float
    constant: float


@dataclass(frozen=True)
class Explanation:
    """One request: its candidates, in the order asked for, and what each link read of its history."""

    task: str
    candidates: list[CandidateExplanation]
    events: list[list[EventRead]]
    """By link: what it read most first, of equal ones the more recent; empty for a link that read nothing."""
    history_used: int


def explain(
    engine: Engine,
    user_id: str,
    item_ids: Sequence[str],
    *,
    context: dict[str, Any] | None = None,
    events: Sequence[Event] = (),
    now: int | None = None,
    task: str | None = None,
    layer: ReadingLayer = "first",
    top_events: int = 5,
    history: Sequence[Event] | None = None,
    left_out: LeftOut | None = None,
) -> Explanation:
    """Explain the logits that `engine.rank` gives these candidates for the same request.

    `layer` says whose reading of the history is shown where links read it several times: that of the first layer, whose
    rows are single events, or that of the last.
    """
    ranker, bundle = lime_ranker(engine.bundle), engine.bundle
    tasks = bundle.manifest.tasks
    if task is not None and task not in tasks:
        raise UsageError(f"no task '{task}'{did_you_mean(task, tasks)}")
    if top_events < 0:
        raise UsageError(f"top_events must not be negative, but is {top_events}")
    user = RequestHistory(engine.histories, user_id, events, history, left_out=left_out)
    asked, inputs, parts = terms(engine, user, item_ids, context, now)
    with torch.inference_mode():
        reads = ranker.history_attention(inputs, layer)
    names = user.item_names(engine.requests, asked, lambda row: item_name(bundle, row))
    chosen = tasks.index(task) if task else 0
    request: dict[str, Any] = {"context": context, "events": events, "now": now}
    encoded = engine.encode_user(user_id, **request, history=history, left_out=left_out)
    scores = engine.score(encoded, item_ids)[:, chosen].tolist()
    return Explanation(
        task=tasks[chosen],
        candidates=[_candidate(item, scores[row], parts, row, chosen) for row, item in enumerate(item_ids)],
        events=_most_read(bundle, reads, names, inputs.history, top_events),
        history_used=len(names),
    )


def terms(
    engine: Engine, user: RequestHistory, item_ids: Sequence[str], context: dict[str, Any] | None, now: int | None
) -> tuple[Asked, UserInputs, Contributions]:
    """A request of a user, what the user stage reads for it, and the terms of its candidates' logits."""
    ranker, catalog = lime_ranker(engine.bundle), engine.catalog
    asked = user.ask(engine.requests, context, now, catalog)
    inputs = engine.requests.inputs(asked)
    rows, head_part = catalog.widened(catalog.rows_of(item_ids))
    with torch.inference_mode():
        return asked, inputs, contributions(ranker, ranker.encode_user(inputs), ItemState(rows, head_part))


def _candidate(item: str, score: float, parts: Contributions, row: int, task: int) -> CandidateExplanation:
    links, weights = parts.links[row, task], parts.weights[row]
    added, taken = links.sum(0), weights.mean(0)
    return CandidateExplanation(
        item=item,
        score=score,
        logit=float(parts.total[row, task]),
        links=[
            LinkPart(link, float(taken[link]), float(added[link]), weights[:, link].tolist(), links[:, link].tolist())
            for link in added.abs().argsort(descending=True, stable=True).tolist()
        ],
        from_links=float(links.sum()),
        from_item=float(parts.item[row, task]),
        from_user=float(parts.user[row, task]),
        constant=float(parts.constant[row, task]),
    )


def read_fractions(reads: Tensor) -> Tensor:
    """|phi| of one request's events [n, links, H], averaged over heads, as fractions [n, links] of what each link read.

    A softmax's are its weights. Heads write to different places: a negative weight in one cancels nothing in another.
    """
    size = reads.abs().mean(2)
    return size / size.sum(0).clamp(min=torch.finfo(size.dtype).tiny)


def _most_read(
    bundle: Bundle, reads: Tensor, names: Sequence[str], history: History, top: int
) -> list[list[EventRead]]:
    if not names:
        return [[] for _ in range(reads.shape[1])]
    fractions = read_fractions(reads)
    # equal events stand at different places of a product and may differ in the last digit, which must not order them
    largest = fractions.amax(0).clamp(min=torch.finfo(fractions.dtype).tiny)
    sizes = torch.round(fractions / largest, decimals=4)
    newest_first = sizes.flip(0).argsort(dim=0, descending=True, stable=True)[:top]
    happened = history.events.indices
    last = len(names) - 1

    def event(link: int, position: int) -> EventRead:
        row = last - position
        return EventRead(
            item=names[row],
            position=position + 1,
            fraction=float(fractions[row, link]),
            weights=reads[row, link].tolist(),
            features={
                encoder.name: encoder.decode(int(index))
                for encoder, index in zip(bundle.encoders.event, happened[row], strict=True)
            },
            time=None if history.times is None else int(history.times[row]),
        )

    return [
        [
            event(link, position)
            for position in newest_first[:, link].tolist()
            if float(fractions[last - position, link])
        ]
        for link in range(reads.shape[1])
    ]


def item_name(bundle: Bundle, row: int) -> str:
    """The id of a catalog item; what ready-made histories know of others."""
    if row < bundle.manifest.items:
        return "unknown" if row == UNKNOWN_ROW else bundle.item_ids.names_of([row])[0]
    single = [encoder for encoder in bundle.encoders.item if encoder.kind not in (Kind.MULTI_VALUED, Kind.VECTOR)]
    known = [
        f"{encoder.name}={encoder.decode(index)}"
        for encoder, index in zip(single, bundle.item_table.indices[row].tolist(), strict=True)
        if index > UNKNOWN_INDEX
    ]
    return " ".join(known) or "unknown"
