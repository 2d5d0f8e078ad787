"""`limerank models`: the rankers side by side, with complexities measured on this machine's code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from limerank.cli.common import JsonOption, emit_json, emit_table, progress_for, say

if TYPE_CHECKING:
    from limerank.study.zoo import Sizes, Stage, ZooDetails, ZooRow


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(epilog="Example: limerank models lime-mha --history 2000 --links 16")(models)


def models(
    name: Annotated[str | None, typer.Argument(help="One ranker, with its options; default: all, a row each.")] = None,
    history: Annotated[int, typer.Option(min=1, help="N, the events of a history.")] = 1024,
    candidates: Annotated[int, typer.Option(min=1, help="M, the candidates of a request.")] = 10_000,
    links: Annotated[
        int, typer.Option(min=1, help="l, the links of LIME and what other rankers have for it (rank, recent, ...).")
    ] = 32,
    width: Annotated[int, typer.Option(min=1, help="d, the width of E and T.")] = 32,
    dataset: Annotated[
        Path | None,
        typer.Option(help="Count parameters for its features; default: a small built-in set. Written by --config."),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            "--config",
            metavar="NAME",
            help="Print the run configuration of a ranker or preset (kuairand, taobao-ad, industrial), to save and "
            "edit: limerank models --config lime-mha > lime-mha.yaml",
        ),
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table for a Markdown page.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Every ranker: parameters, bytes per item and per user, complexity of both stages (half a minute).

    Complexities are measured: the real stages run at a few sizes, their matrix products and elements are counted, and
    the polynomial through the counts is printed without its coefficients and without terms that another bounds (l is at
    most N). Counted is the path that can be trained; serving may take a cheaper equal one. The head is left out.
    """
    import torch

    from limerank.errors import UsageError

    if config is not None:
        if name is not None or markdown:
            raise UsageError("--config: prints one configuration; leave out the name before it and --markdown")
        _print_configuration(config, dataset, as_json)
        return
    from limerank.bench.made_up import BUILT_IN
    from limerank.study.zoo import Sizes, zoo_details, zoo_rows

    if name is not None and markdown:
        raise UsageError("--markdown: prints the table of all rankers; leave out the name")
    torch.set_num_threads(1)  # the sizes are small
    sizes = Sizes(history=history, candidates=candidates, links=links, width=width)
    space, tasks = BUILT_IN, 1
    if dataset is not None:
        from limerank.data.store.dataset import StoredDataset

        opened = StoredDataset.open(dataset)
        space, tasks = opened.encoders.space(), len(opened.schema.tasks)
    if name is not None:
        details = zoo_details(name, sizes, space, tasks)
        if as_json:
            emit_json({"sizes": sizes.model_dump(), **details.model_dump(mode="json")})
            return
        _show_one(details, sizes)
        return
    rows = zoo_rows(sizes, space, tasks, progress_for(as_json or markdown))
    if as_json:
        emit_json({"sizes": sizes.model_dump(), "rankers": [row.model_dump(mode="json") for row in rows]})
        return
    cells = [_cells(row) for row in rows]
    if markdown:
        for line in (COLUMNS, ["---"] * len(COLUMNS), *cells):
            typer.echo(f"| {' | '.join(line)} |")
        return
    emit_table(f"history N = {history:,}, candidates M = {candidates:,}, l = {links}, d = {width}", COLUMNS, cells)
    say("complexities are measured; bytes are those of fp16 item rows and fp32 user states")
    say("factorized: the interaction is a cached item row times a matrix of the user")


def _print_configuration(name: str, dataset: Path | None, as_json: bool) -> None:
    from limerank.training.configuration_text import PLACEHOLDER, render_configuration

    text = render_configuration(name, PLACEHOLDER if dataset is None else str(dataset))
    if as_json:
        emit_json({"name": name, "yaml": text})
    else:
        typer.echo(text, nl=False)


COLUMNS = [
    "ranker",
    "family",
    "parameters",
    "of them embeddings",
    "factorized",
    "user stage",
    "candidate stage",
    "bytes per item",
    "bytes per user",
]


def _cells(row: ZooRow) -> list[str]:
    return [
        row.name,
        row.family,
        f"{row.parameters:,}",
        f"{row.embedding_parameters:,}",
        _factorized(row),
        row.user_stage.complexity,
        row.candidate_stage.complexity,
        f"{row.item_bytes:,}",
        f"{row.user_bytes:,}",
    ]


def _factorized(row: ZooRow) -> str:
    return "no" if not row.factorized else "yes, folds" if row.foldable else "yes"


def _show_one(row: ZooDetails, sizes: Sizes) -> None:
    say(f"{row.name} ({row.family}): {row.summary}")
    facts = [
        ["parameters", f"{row.parameters:,}, of them {row.embedding_parameters:,} in embedding tables"],
        ["factorized", _factorized(row)],
        ["order of the history", "matters" if row.ordered else "matters only with an encoding"],
        ["l is", ", ".join(row.budget) or "no option of it"],
        ["user stage", _work(row.user_stage)],
        [
            "candidate stage",
            _work(row.candidate_stage),
        ],
        ["bytes per item", f"{row.item_bytes:,} (fp16)"],
        ["bytes per user", f"{row.user_bytes:,} (fp32)"],
        ["caches stay exact with", "encoding " + ", ".join(row.encodings_that_keep_caches)],
        ["documentation", row.page],
    ]
    letters = ", ".join(f"{letter} = {size:,}" for letter, size in sizes.letters().items())
    emit_table(letters, ["", ""], facts, wrap="")
    options = [[one.name, _default(one.default), one.description] for one in row.options]
    emit_table("options", ["option", "default", "meaning"], options, wrap="meaning")


def _work(stage: Stage) -> str:
    return f"{stage.complexity}; {stage.work / 1e6:,.2f} million operations"


def _default(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(str, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else str(value)
