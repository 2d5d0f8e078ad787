"""`limerank report`: results of several studies as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from limerank.cli.common import JsonOption, emit_json, say


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(
        epilog="Example: limerank report studies/accuracy/accuracy.json studies/latency/latency.json --out report.html"
    )(report)


def report(
    results: Annotated[
        list[Path], typer.Argument(help="JSON files of studies, in the order of their chapters.", show_default=False)
    ],
    out: Annotated[Path, typer.Option("--out", help="The page, written over one that is there.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option("--title", help="The page's title.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Join results of studies into one page that needs nothing else: contents, charts, tables, how each was made."""
    from limerank import files
    from limerank.errors import UsageError
    from limerank.study.pages import join, open_result

    if out.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"--out {out}: must end in .html, so that it is never one of the results")
    if out.is_dir():
        raise UsageError(f"--out {out}: is a folder; name the file, for example {out / 'report.html'}")
    twice = next((path for number, path in enumerate(results) if path in results[:number]), None)
    if twice is not None:
        raise UsageError(f"{twice}: was named twice")
    files.check_writable(out.parent, "--out")
    opened = [open_result(path) for path in results]
    page = join(opened, title)
    files.write_text(out, page.html())
    if as_json:
        joined = [
            {
                "file": str(one.path),
                "study": one.study.name,
                "title": one.study.title(),
                "quick": one.result.made.quick,
                "started": one.result.made.started,
                "revision": one.result.made.revision,
            }
            for one in opened
        ]
        emit_json({"report": str(out), "title": page.title, "joined": joined})
        return
    for one in opened:
        say(f"{one.path}: {one.study.title()}{' (quick mode)' if one.result.made.quick else ''}")
    say(f"report: {out}")
