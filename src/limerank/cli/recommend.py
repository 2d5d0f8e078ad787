"""`limerank recommend`: the items to show a user: retrieved, ranked, without what was seen, diversified if asked to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from limerank.cli.common import (
    JsonOption,
    StoreArgument,
    WorkersOption,
    emit_json,
    emit_table,
    parse_pairs,
    say,
    use_threads,
)
from limerank.cli.items import ItemNames
from limerank.cli.rank import ranking_facts, show_ranking
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
    from limerank.serve.retrieval.diversity import Diversify


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(epilog="Example: limerank recommend stores/demo --user u42 --limit 10 --at-most topic=2")(recommend)


def recommend(
    store: StoreArgument,
    user: UserOption,
    limit: Annotated[int, typer.Option(min=1, help="How many to recommend.")] = 10,
    retriever: Annotated[
        list[str] | None,
        typer.Option(
            help="Where candidates come from: exact (the whole catalog), faiss (an index of its rows), popular. "
            "Repeatable; default: the whole catalog, or its index if it has one and is large."
        ),
    ] = None,
    candidates: Annotated[
        int | None,
        typer.Option(
            min=1, help="How many each retriever finds; default: 1000, of large catalogs one in 250; exact finds all."
        ),
    ] = None,
    seen_too: Annotated[bool, typer.Option("--seen-too", help="Also what the user has events with.")] = False,
    diversify: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Weight of being unlike what stands above (MMR over item rows), 0 to 1."),
    ] = None,
    at_most: Annotated[
        str | None, typer.Option(help="At most so many items of each value of a feature, for example topic=2.")
    ] = None,
    context: ContextOption = "",
    event: EventOption = None,
    now: NowOption = None,
    task: TaskOption = None,
    deadline_ms: DeadlineOption = None,
    bundle: BundleOption = None,
    threads: WorkersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Recommend items to one user with a store's active bundle."""
    from limerank.serve.engine import Engine

    use_threads(None)  # of torch, outside the engine
    chosen = _diversify(diversify, at_most)
    engine = Engine.open(store, bundle, threads=threads)
    request = parse_request(context, event, now, task)
    for budget in (None, deadline_ms):  # the first call maps the rows and allocates
        ranking = engine.recommend(
            user,
            limit,
            retriever=retriever,
            candidates=candidates,
            filter_seen=not seen_too,
            diversify=chosen,
            deadline_ms=budget,
            **request,
        )
    names = ItemNames(engine.catalog)
    if as_json:
        emit_json({**ranking_facts(ranking, names), "retrieved_by": ranking.retrieved_by})
        return
    show_ranking(user, ranking, names)
    say(f"candidates from: {', '.join(ranking.retrieved_by)}")
    emit_table(
        "",
        ["stage", "from ms", "to ms", "thread"],
        [[s.stage, f"{s.started_ms:.2f}", f"{s.ended_ms:.2f}", s.thread] for s in ranking.timeline],
    )


def _diversify(weight: float | None, at_most: str | None) -> Diversify | None:
    from limerank.serve.retrieval.diversity import AtMost, Mmr

    if weight is not None and at_most is not None:
        raise UsageError("--diversify and --at-most: choose one")
    if weight is not None:
        return Mmr(weight)
    if at_most is None:
        return None
    pairs = list(parse_pairs(at_most, "--at-most").items())
    if len(pairs) != 1 or not pairs[0][1].isdigit():
        raise UsageError(f"--at-most {at_most}: must look like feature=number, for example topic=2")
    return AtMost(pairs[0][0], int(pairs[0][1]))
