"""`limerank serve`: a store over HTTP. Its options are the fields of ServiceOptions, and come from there."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import Field, asdict, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from limerank.cli.common import JsonOption, StoreArgument, emit_json, emit_table, say
from limerank.errors import require_extra

NEEDED = ("fastapi", "uvicorn", "msgspec", "prometheus_client")
SOURCES = {"COMMANDLINE": "command line", "ENVIRONMENT": "environment"}


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(epilog="Example: limerank serve stores/demo --port 8080", name="serve")(_with_options(serve))


def serve(ctx: typer.Context, store: Path, print_config: bool, as_json: bool, **given: Any) -> None:
    """Answer requests over HTTP with a store's active bundle, until Ctrl-C or SIGTERM."""
    from limerank.service.options import ENVIRONMENT_PREFIX, ServiceOptions

    if given["histories"] is not None:
        from limerank.serve.histories.in_redis.address import password_moved

        given["histories"] = password_moved(given["histories"])  # out of what is printed and handed to processes
    options = ServiceOptions(**given)
    if print_config:
        sources = {name: SOURCES.get(getattr(ctx.get_parameter_source(name), "name", ""), "default") for name in given}
        if as_json:
            emit_json({"options": asdict(options), "sources": sources})
            return
        rows = [
            [name, "" if value is None else value, sources[name], f"{ENVIRONMENT_PREFIX}{name.upper()}"]
            for name, value in asdict(options).items()
        ]
        emit_table("", ["option", "value", "from", "variable"], rows)
        return
    for module in NEEDED:
        require_extra(module, "serve")
    from limerank.service.running.server import run
    from limerank.service.running.started import told

    def announce(facts: dict[str, Any]) -> None:
        if as_json:
            emit_json(facts)
        else:
            say(told(facts, options))

    raise typer.Exit(run(store, options, announce))


def _with_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option for every field of ServiceOptions in its signature, as typer reads it."""
    from limerank.service.options import ServiceOptions

    hints = get_type_hints(ServiceOptions)
    parameters = [
        _parameter("ctx", typer.Context, inspect.Parameter.empty),
        _parameter("store", StoreArgument, inspect.Parameter.empty),
        *(_parameter(one.name, _annotation(one, hints[one.name]), one.default) for one in fields(ServiceOptions)),
        _parameter(
            "print_config",
            Annotated[bool, typer.Option("--print-config", help="Show every option and where it comes from, and end.")],
            False,
        ),
        _parameter("as_json", JsonOption, False),
    ]

    def serve(**given: Any) -> None:
        command(**given)

    serve.__doc__ = command.__doc__
    serve.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    serve.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return serve


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _annotation(one: Field[Any], hint: Any) -> Any:
    from limerank.service.options import ENVIRONMENT_PREFIX

    flag = f"--{one.name.replace('_', '-')}"
    names = [f"{flag}/--no-{flag[2:]}" if one.default is True else flag]
    option = typer.Option(
        *names,
        help=one.metadata["help"],
        envvar=f"{ENVIRONMENT_PREFIX}{one.name.upper()}",
        min=one.metadata["least"],
        max=one.metadata["most"],
        show_envvar=False,
    )
    return Annotated[hint, option]
