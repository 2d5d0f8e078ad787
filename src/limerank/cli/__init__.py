"""The command line: one small file per command group, joined here."""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from limerank import __version__
from limerank.cli import (
    ab,
    bench,
    bundle,
    catalog,
    data,
    evaluation,
    events,
    init,
    keys,
    links,
    models,
    plan,
    prediction,
    quickstart,
    rank,
    recommend,
    report,
    routing,
    runs,
    serve,
    study,
    training,
    tuning,
)
from limerank.cli.common import report_error
from limerank.cli.prepare import prepare_app
from limerank.errors import InterruptionError, LimerankError, UnavailableError, UsageError

READ_ONLY = {"describe", "models", "evaluate", "runs", "rank", "recommend", "links", "ab", "bench"}


class Commands(TyperGroup):
    """The commands; Ctrl-C ends each with a line that says what is there, from where the work was if it knows more."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stopped:
            kept = "nothing was written" if ctx.invoked_subcommand in READ_ONLY else "what was finished before is kept"
            raise InterruptionError(str(stopped) or f"interrupted; {kept}") from None


app = typer.Typer(
    name="limerank",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Rank tens of thousands of candidates per request, near the accuracy of cross-attention, at a cost per "
    "candidate that does not grow with the history.",
    epilog="Start with `limerank quickstart`: it takes about a minute and needs nothing.",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"limerank {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    ctx: typer.Context,
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    several = "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"
    if several and ctx.invoked_subcommand not in (None, "train"):
        _fail_once(UsageError(f"torchrun starts `limerank train` only; start {ctx.invoked_subcommand} without it"))


quickstart.register(app)
init.register(app)
app.add_typer(prepare_app, name="prepare")
data.register(app)
models.register(app)
training.register(app)
prediction.register(app)
app.add_typer(runs.app, name="runs")
tuning.register(app)
evaluation.register(app)
rank.register(app)
recommend.register(app)
links.register(app)
serve.register(app)
app.add_typer(keys.app, name="keys")
app.add_typer(bundle.app, name="bundle")
app.add_typer(catalog.app, name="items")
app.add_typer(routing.app, name="routing")
ab.register(app)
app.add_typer(events.app, name="events")
app.add_typer(study.app, name="study")
report.register(app)
app.add_typer(bench.app, name="bench")
plan.register(app)


def main() -> None:
    """Run a command; an error a user can act on is one line and an exit code, never a traceback."""
    try:
        _check_system()
        code = app(prog_name="limerank", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except LimerankError as error:
        _fail(error)
    except OSError as refused:
        where = f"{refused.filename}: " if refused.filename else ""
        _fail(
            UnavailableError(
                f"{where}{refused.strerror or refused}; check that the place exists, has room and is yours"
            )
        )
    except Exception as error:
        if not hasattr(error, "format_message"):  # what the parser of the command line raises
            raise
        if not error.format_message():  # no arguments at all: the help was shown
            sys.exit(UsageError.exit_code)
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "limerank"
        _fail_once(UsageError(f"{error.format_message().rstrip('.')}; see `{command} --help`"))


def _check_system() -> None:
    if sys.platform == "win32":
        raise UnavailableError("limerank does not run on Windows; install WSL with `wsl --install` and run it there")


def _fail_once(error: LimerankError) -> NoReturn:
    """Of several processes that all see the same mistake the first one says it."""
    if os.environ.get("RANK", "0") != "0":
        sys.exit(error.exit_code)
    _fail(error)


def _fail(error: LimerankError) -> NoReturn:
    report_error(error, as_json="--json" in sys.argv)
    sys.exit(error.exit_code)
