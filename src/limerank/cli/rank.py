"""`limerank rank`: candidates in order, with scores and the time of each stage, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from limerank.cli.common import (
    JsonOption,
    StoreArgument,
    WorkersOption,
    emit_json,
    emit_table,
    listed,
    say,
    use_threads,
)
from limerank.cli.items import ItemNames
from limerank.cli.links import attribute_text, profile_facts
from limerank.cli.request import (
    BundleOption,
    ContextOption,
    DeadlineOption,
    EventOption,
    NowOption,
    TaskOption,
    UserOption,
    parse_request,
)
from limerank.errors import UsageError

if TYPE_CHECKING:
    from limerank.serve.explanation.explain import CandidateExplanation, EventRead, Explanation
    from limerank.serve.explanation.link_profiles import LinkProfile
    from limerank.serve.ranking import Ranking

SHOWN_LINKS, SHOWN_EVENTS = 5, 3


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(epilog="Example: limerank rank stores/demo --user u42 --event item=i7,clicked=1,watched_fraction=0.9")(
        rank
    )


def rank(
    store: StoreArgument,
    user: UserOption,
    items: Annotated[
        str | None, typer.Option(help="Candidate ids, comma-separated; default: the whole catalog.")
    ] = None,
    exclude_seen: Annotated[
        bool, typer.Option("--exclude-seen", help="Leave out items that the user has events with, however long ago.")
    ] = False,
    context: ContextOption = "",
    event: EventOption = None,
    now: NowOption = None,
    limit: Annotated[int, typer.Option(min=1, help="How many to show.")] = 10,
    task: TaskOption = None,
    explain: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Also show why the first N stand where they do, link by link (LIME rankers only)."
        ),
    ] = None,
    layer: Annotated[
        Literal["first", "last"] | None,
        typer.Option(
            help="With --explain: whose reading of the history is shown, where links read it in several layers; "
            "default: first."
        ),
    ] = None,
    deadline_ms: DeadlineOption = None,
    bundle: BundleOption = None,
    threads: WorkersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Rank candidates for one user with a store's active bundle."""
    from limerank.serve.engine import Engine

    if layer is not None and explain is None:
        raise UsageError(f"--layer {layer}: says what --explain shows; add --explain N")
    use_threads(None)  # of torch, outside the engine
    engine = Engine.open(store, bundle, threads=threads)
    if explain is not None:
        from limerank.serve.explanation.link_profiles import lime_ranker

        lime_ranker(engine.bundle)
    chosen = [text.strip() for text in items.split(",") if text.strip()] if items is not None else None
    if chosen is not None and not chosen:
        raise UsageError("--items: names no candidate; give ids separated by commas, or leave it out for the catalog")
    request = parse_request(context, event, now, task)
    names = ItemNames(engine.catalog)
    for budget in (None, deadline_ms):  # the first call maps the rows and allocates
        ranking = engine.answer(user, chosen, limit=limit, exclude_seen=exclude_seen, deadline_ms=budget, **request)
    if explain is None:
        if as_json:
            emit_json(ranking_facts(ranking, names))
            return
        show_ranking(user, ranking, names)
        return
    from limerank.serve.explanation.explain import explain as explained
    from limerank.serve.explanation.link_profiles import link_profiles

    explanation = explained(engine, user, ranking.item_ids[:explain], layer=layer or "first", **request)
    profiles = link_profiles(engine.bundle)
    if as_json:
        emit_json({**ranking_facts(ranking, names), "explanation": explanation_facts(explanation, profiles, names)})
        return
    show_ranking(user, ranking, names)
    for rank, candidate in enumerate(explanation.candidates, 1):
        _show_why(rank, candidate, explanation, profiles, names)


def ranking_facts(ranking: Ranking, names: ItemNames) -> dict[str, Any]:
    """A ranking as one JSON object."""
    shown = zip(ranking.item_ids, names.facts(ranking.item_ids), ranking.probabilities, strict=True)
    return {
        "bundle": ranking.bundle,
        "user": {"known": ranking.known_user, "history_used": ranking.history_used},
        "candidates": ranking.candidates,
        "unknown_items": ranking.unknown_items,
        "repeated_items": ranking.repeated_items,
        "seen_items": ranking.seen_items,
        "overlay_items": ranking.overlay_items,
        "items": [
            {"id": item, **display, **{task: round(float(p), 6) for task, p in zip(ranking.tasks, row, strict=True)}}
            for item, display, row in shown
        ],
        "path": ranking.path,
        "milliseconds": {stage: round(value, 4) for stage, value in ranking.milliseconds.items()},
        "timeline": [asdict(span) for span in ranking.timeline],
        "degraded": ranking.degraded,
        "unscored": ranking.unscored,
    }


def explanation_facts(explanation: Explanation, profiles: list[LinkProfile], names: ItemNames) -> dict[str, Any]:
    """An explanation as one JSON object: candidates by link, and per link what it read and what it attracts."""
    return {
        "task": explanation.task,
        "candidates": _with_displays(explanation.candidates, names),
        "links": [
            {**profile_facts(profile, names), "events": _with_displays(events, names)}
            for profile, events in zip(profiles, explanation.events, strict=True)
        ],
    }


def _with_displays(entries: Sequence[CandidateExplanation | EventRead], names: ItemNames) -> list[dict[str, Any]]:
    displays = names.facts([entry.item for entry in entries])
    return [{**asdict(entry), **display} for entry, display in zip(entries, displays, strict=True)]


def show_ranking(user: str, ranking: Ranking, names: ItemNames) -> None:
    """A ranking for people: a table, then how it came about."""
    shown = zip(ranking.item_ids, names.cells(ranking.item_ids), ranking.probabilities, strict=True)
    emit_table(
        "",
        ["rank", "item", *names.columns(), *ranking.tasks],
        [
            [rank, item, *display, *(f"{probability:.4f}" for probability in row)]
            for rank, (item, display, row) in enumerate(shown, 1)
        ],
    )
    whose = f"user {user}" if ranking.known_user else f"unknown user {user}"
    say(f"{ranking.candidates:,} candidates for {whose}, {ranking.history_used} events of history, {ranking.path} path")
    say("  ".join(f"{stage} {value:.2f} ms" for stage, value in ranking.milliseconds.items()))
    if ranking.unknown_items:
        say(f"unknown items, scored as such: {listed(ranking.unknown_items)}")
    if ranking.repeated_items:
        say(f"named more than once, and ranked as often: {listed(ranking.repeated_items)}")
    if ranking.overlay_items:
        say(f"upserted since the bundle was exported: {ranking.overlay_items:,} of the candidates")
    if ranking.seen_items:
        say(f"left out because the user has events with them: {ranking.seen_items:,} items")
    for reason in ranking.degraded:
        say(f"degraded, for want of time: {reason}")


def _show_why(
    rank: int,
    candidate: CandidateExplanation,
    explanation: Explanation,
    profiles: list[LinkProfile],
    names: ItemNames,
) -> None:
    say("")
    parts = {
        "links": candidate.from_links,
        "item": candidate.from_item,
        "user and context": candidate.from_user,
        "constant": candidate.constant,
    }
    terms = ", ".join(f"{name} {value:+.3f}" for name, value in parts.items())
    (called,) = names.joined([candidate.item])
    say(f"{rank}. {called}: logit of {explanation.task} {candidate.logit:+.3f} = {terms}")
    rows = []
    for part in candidate.links[:SHOWN_LINKS]:
        profile, events = profiles[part.link], explanation.events[part.link][:SHOWN_EVENTS]
        rows.append(
            [
                profile.name,
                f"{part.weight:.3f}",
                f"{part.contribution:+.3f}",
                _most_read(events, names) or "-",
                ", ".join(map(attribute_text, profile.attributes[:1])) or "-",
            ]
        )
    emit_table("", ["link", "weight", "contribution", "read most of", "attracts"], rows)


def _most_read(events: Sequence[EventRead], names: ItemNames) -> str:
    called = names.joined([event.item for event in events])
    return ", ".join(f"{item} {event.fraction:.0%}" for item, event in zip(called, events, strict=True))
