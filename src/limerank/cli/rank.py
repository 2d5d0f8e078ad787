"""`limerank rank`: candidates in order, with scores and the time of each stage, and why."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from limerank.cli.common import (
    JsonOption,
    StoreArgument,
    ThreadsOption,
    emit_json,
    emit_table,
    parse_pairs,
    say,
    use_threads,
)
from limerank.cli.links import attribute_text, profile_facts
from limerank.errors import UsageError

if TYPE_CHECKING:
    from limerank.serve.engine import Event, Ranking
    from limerank.serve.explain import CandidateExplanation, Explanation
    from limerank.serve.link_profiles import LinkProfile

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SHOWN_LINKS, SHOWN_EVENTS = 5, 3


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(epilog="Example: limerank rank stores/demo --user u42 --event item=i7,clicked=1,watched_fraction=0.9")(
        rank
    )


def rank(
    store: StoreArgument,
    user: Annotated[str, typer.Option(help="User id; an unknown one ranks with an empty history.")],
    items: Annotated[
        str | None, typer.Option(help="Candidate ids, comma-separated; default: the whole catalog.")
    ] = None,
    context: Annotated[str, typer.Option(help="Context features, for example device=phone,hour=20.")] = "",
    event: Annotated[
        list[str] | None,
        typer.Option(
            help="Something the user did since, for example item=i7,clicked=1; time=... says when, default: --now. "
            "Repeatable, in order; not stored."
        ),
    ] = None,
    now: Annotated[
        str | None,
        typer.Option(
            help="The moment of the request: 2026-01-31T12:00:00Z or milliseconds since 1970; default: the latest time "
            "the bundle or an event knows."
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many to show.")] = 10,
    task: Annotated[str | None, typer.Option(help="Task to order by; default: the first.")] = None,
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
    bundle: Annotated[str | None, typer.Option(help="Bundle id; default: the active one.")] = None,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Rank candidates for one user with a store's active bundle."""
    from limerank.serve.engine import Engine

    if layer is not None and explain is None:
        raise UsageError(f"--layer {layer}: says what --explain shows; add --explain N")
    use_threads(threads)
    engine = Engine.open(store, bundle)
    if explain is not None:
        from limerank.serve.link_profiles import lime_ranker

        lime_ranker(engine.bundle)
    chosen = [text for text in items.split(",") if text] if items is not None else None
    if chosen is not None and not chosen:
        raise UsageError("--items: names no candidate; give ids separated by commas, or leave it out for the catalog")
    request: dict[str, Any] = {
        "context": parse_pairs(context, "--context"),
        "events": [_event(text) for text in event or ()],
        "now": None if now is None else _milliseconds(now, f"--now {now}"),
        "limit": limit,
        "task": task,
    }
    engine.rank(user, chosen, **request)  # warm-up: the first call maps the rows and allocates
    ranking = engine.rank(user, chosen, **request)
    if explain is None:
        if as_json:
            emit_json(ranking_facts(ranking))
            return
        _show(user, ranking)
        return
    from limerank.serve.explain import explain as explained
    from limerank.serve.link_profiles import link_profiles

    del request["limit"]
    explanation = explained(engine, user, ranking.item_ids[:explain], layer=layer or "first", **request)
    profiles = link_profiles(engine.bundle)
    if as_json:
        emit_json({**ranking_facts(ranking), "explanation": explanation_facts(explanation, profiles)})
        return
    _show(user, ranking)
    for place, candidate in enumerate(explanation.candidates, 1):
        _show_why(place, candidate, explanation, profiles)


def ranking_facts(ranking: Ranking) -> dict[str, Any]:
    """A ranking as one JSON object."""
    return {
        "bundle": ranking.bundle,
        "user": {"known": ranking.known_user, "history_used": ranking.history_used},
        "candidates": ranking.candidates,
        "unknown_items": ranking.unknown_items,
        "items": [
            {"id": item, **{task: round(float(p), 6) for task, p in zip(ranking.tasks, row, strict=True)}}
            for item, row in zip(ranking.item_ids, ranking.probabilities, strict=True)
        ],
        "path": ranking.path,
        "milliseconds": {stage: round(value, 4) for stage, value in ranking.milliseconds.items()},
    }


def explanation_facts(explanation: Explanation, profiles: list[LinkProfile]) -> dict[str, Any]:
    """An explanation as one JSON object: candidates by link, and per link what it read and what it attracts."""
    return {
        "task": explanation.task,
        "candidates": [asdict(candidate) for candidate in explanation.candidates],
        "links": [
            {**profile_facts(profile), "events": [asdict(event) for event in events]}
            for profile, events in zip(profiles, explanation.events, strict=True)
        ],
    }


def _event(text: str) -> Event:
    from limerank.serve.engine import Event

    pairs = parse_pairs(text, "--event")
    if "item" not in pairs:
        raise UsageError(f"--event {text}: needs item=ID")
    features: dict[str, Any] = dict(pairs)
    item, time = features.pop("item"), features.pop("time", None)
    return Event(item, features, None if time is None else _milliseconds(time, f"--event {text}"))


def _milliseconds(text: str, option: str) -> int:
    """Milliseconds since 1970, from just that or from an ISO 8601 time; UTC where it names no zone, as in logs."""
    try:
        if text.isascii() and text.isdigit():
            return int(text)
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"{option}: '{text}' is not a time; write 2026-01-31T12:00:00Z, or milliseconds since 1970"
        ) from None
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (aware - EPOCH) // timedelta(milliseconds=1)


def _show(user: str, ranking: Ranking) -> None:
    emit_table(
        "",
        ["rank", "item", *ranking.tasks],
        [
            [place, item, *(f"{probability:.4f}" for probability in row)]
            for place, (item, row) in enumerate(zip(ranking.item_ids, ranking.probabilities, strict=True), 1)
        ],
    )
    whose = f"user {user}" if ranking.known_user else f"unknown user {user}"
    say(f"{ranking.candidates:,} candidates for {whose}, {ranking.history_used} events of history, {ranking.path} path")
    say("  ".join(f"{stage} {value:.2f} ms" for stage, value in ranking.milliseconds.items()))
    if ranking.unknown_items:
        say(f"unknown items, scored as such: {', '.join(ranking.unknown_items[:10])}")


def _show_why(
    place: int, candidate: CandidateExplanation, explanation: Explanation, profiles: list[LinkProfile]
) -> None:
    say("")
    parts = {
        "links": candidate.from_links,
        "item": candidate.from_item,
        "user and context": candidate.from_user,
        "constant": candidate.constant,
    }
    terms = ", ".join(f"{name} {value:+.3f}" for name, value in parts.items())
    say(f"{place}. {candidate.item}: logit of {explanation.task} {candidate.logit:+.3f} = {terms}")
    rows = []
    for part in candidate.links[:SHOWN_LINKS]:
        profile, events = profiles[part.link], explanation.events[part.link][:SHOWN_EVENTS]
        rows.append(
            [
                profile.name,
                f"{part.weight:.3f}",
                f"{part.contribution:+.3f}",
                ", ".join(f"{event.item} {event.share:.0%}" for event in events) or "-",
                ", ".join(map(attribute_text, profile.attributes[:1])) or "-",
            ]
        )
    emit_table("", ["link", "weight", "contribution", "read most of", "attracts"], rows)
