"""`limerank ab`: what came of an experiment, from the ranking log and the stored events."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from limerank.cli.ab_tables import MEANING, SHOWN, headline, sample_ratio_line, tables_of
from limerank.cli.common import JsonOption, StoreArgument, emit_json, emit_table, say, say_checked
from limerank.cli.request import parse_time

if TYPE_CHECKING:
    from limerank.serve.experiments.outcome.result import AbResult


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog="Example: limerank ab stores/demo --type click --report ab.html")(ab)


def ab(
    store: StoreArgument,
    experiment: Annotated[
        str | None, typer.Option(help="Which one; default: the one that runs, else the newest in the log.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            help="Rankings from this time on: ISO 8601, or milliseconds since 1970. Default: since the arms were last "
            "changed."
        ),
    ] = None,
    until: Annotated[str | None, typer.Option(help="Rankings and events before this time. Default: all.")] = None,
    type: Annotated[list[str] | None, typer.Option(help="Only events of this type; repeat it. Default: all.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write a page to this HTML file, too.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Per arm users, rankings, events, latency; differences to control with intervals by user; what to doubt."""
    from limerank.serve.bundles.store import BundleStore
    from limerank.serve.experiments.outcome.analysis import analyse
    from limerank.serve.histories.store import HistoryStore

    BundleStore.open(store)
    with HistoryStore.open(store) as histories:
        result = analyse(
            store,
            histories.events,
            experiment=experiment,
            since=None if since is None else parse_time(since, "--since"),
            until=None if until is None else parse_time(until, "--until"),
            types=type or (),
        )
    if report is not None:
        _write_report(result, report)
    if as_json:
        emit_json({**result.model_dump(), "report": None if report is None else str(report)})
        return
    _show(result)
    if report is not None:
        say(f"the same as a page: {report}")


def _show(result: AbResult) -> None:
    say(headline(result))
    for warning in result.warnings:
        say_checked("WARN", warning)
    for table in tables_of(result):
        say("")
        emit_table(table.title, table.columns, table.rows)
    say("")
    for line in filter(None, [sample_ratio_line(result), SHOWN if result.shown else ""]):
        say(line)
    say(f"Rule: {result.rule}.")
    if result.comparisons:
        say(MEANING)


def _write_report(result: AbResult, path: Path) -> None:
    from limerank.files import write_text
    from limerank.report.page import Page

    page = Page(f"Experiment {result.experiment}" if result.experiment else "Shadows")
    page.paragraph(headline(result), "lead")
    for warning in result.warnings:
        page.paragraph(warning, "warning")
    for table in tables_of(result):
        page.heading(table.title[0].upper() + table.title[1:])
        page.table(table.columns, table.rows)
    page.heading("What it means")
    for text in filter(None, [sample_ratio_line(result), SHOWN if result.shown else "", f"Rule: {result.rule}."]):
        page.paragraph(text)
    if result.comparisons:
        page.paragraph(MEANING)
    write_text(path, page.html())
