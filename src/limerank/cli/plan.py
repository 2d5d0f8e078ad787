"""`limerank plan`: from rates measured on this machine and your numbers to machines, with the formulas."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from limerank.cli.common import JsonOption, emit_json, progress_for, say
from limerank.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from limerank.bench.rates.sizes import Scale
    from limerank.planning.rates import RankerRates, Rates
    from limerank.planning.workload import Machines, Workload

EPILOG = (
    "Example: limerank plan --preset industrial --items 1e8 --users 1e7 --events-per-day 1e9 "
    "--requests-per-second 2000 --candidates 10000 --history 1024 --latency-ms 50"
)
QUICK_HISTORY, QUICK_CANDIDATES, QUICK_REPEATS = 64, 128, 3
NEEDED = ("items", "users", "events_per_day", "requests_per_second")


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(epilog=EPILOG)(plan)


def _number(about: str) -> Any:
    return typer.Option(help=about, show_default=False)


def plan(
    items: Annotated[float | None, _number("Items of the catalog, such as 1e6.")] = None,
    users: Annotated[float | None, _number("Users with a history.")] = None,
    events_per_day: Annotated[float | None, _number("Events of all users in a day.")] = None,
    requests_per_second: Annotated[float | None, _number("Rankings asked for at the peak.")] = None,
    candidates: Annotated[float | None, _number("Items to score in a request. Default: 1000.")] = None,
    history: Annotated[float | None, _number("Events of a history that are read. Default: 256.")] = None,
    latency_ms: Annotated[float | None, _number("Goal for the mean time of a ranking. Default: 100.")] = None,
    retrieval: Annotated[
        str | None, _number("elsewhere: candidates are given; scan: the whole catalog is scored. Default: elsewhere.")
    ] = None,
    ranker: Annotated[
        str, typer.Option(help="The ranker; with --measure and no workload several, separated by commas.")
    ] = "lime-mha",
    preset: Annotated[str | None, typer.Option(help="Its sizes: industrial, kuairand or taobao-ad.")] = None,
    options: Annotated[
        list[str] | None, typer.Option("--set", help="One option of the ranker, for example width=64. Repeatable.")
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="PATH", help="Take the ranker from a run, or from a store's active bundle."),
    ] = None,
    workload: Annotated[
        list[str] | None,
        typer.Option(
            "--assume", help="Another number, for example train_hours=6 or days=3; `--json` lists all. Repeatable."
        ),
    ] = None,
    cores: Annotated[float | None, _number("Cores of one machine. Default: those of the machine measured.")] = None,
    memory_gb: Annotated[float | None, _number("Memory of one machine. Default: that of the one measured.")] = None,
    disk_gb: Annotated[float | None, _number("Disk of one machine. Default: 1000.")] = None,
    utilization: Annotated[
        float | None, _number("Fraction of a core's time that requests may take. Default: 0.6.")
    ] = None,
    spare: Annotated[float | None, _number("Machines of each group that may fail. Default: 1.")] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure rates now (about a minute) and keep them.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Measure, predict other sizes, measure those, compare (some minutes).")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="With --measure or --check: tiny sizes, to show that it works.")
    ] = False,
    rates: Annotated[
        Path | None, typer.Option(help="Rates of an earlier --measure. Default: limerank-rates.json, if it is there.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Write the JSON object to this file: the plan, the check, or with --measure rates."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Machines, memory, disk, network and cost drivers of a deployment, with every formula, from measured rates.

    With `--measure` or `--check` and no numbers of a workload it ends when the rates are there.
    """
    from limerank.cli.plan_tables import show_check, show_plan, show_rates
    from limerank.files import write_json

    rankers = [_ranker(name, preset, options or [], source) for name in ranker.split(",")]
    model, known = rankers[0]
    scale = _scale(known.get("history") if history is None else history, candidates, quick)
    numbers = {
        "items": items,
        "users": users,
        "events_per_day": events_per_day,
        "requests_per_second": requests_per_second,
        "candidates": candidates,
        "history": history,
        "latency_ms": latency_ms,
        "retrieval": retrieval,
    }
    asked = {**known, **_assumed(workload or []), **{name: v for name, v in numbers.items() if v is not None}}
    if check:
        from limerank.bench.rates.check import check_rates

        result = check_rates(progress_for(as_json), model, scale)
        if out is not None:
            write_json(out, result.model_dump(mode="json"))
        emit_json(result.model_dump(mode="json")) if as_json else show_check(result)
        return
    wanted = _workload(asked) if not measure or set(NEEDED) <= set(asked) else None
    if len(rankers) > 1 and wanted is not None:
        raise UsageError(f"--ranker {ranker}: a plan is of one ranker")
    for one, _ in rankers:
        found, where = _rates(one, rates, out if measure and wanted is None else None, scale, measure, as_json)
    if wanted is None:
        emit_json(found.model_dump(mode="json")) if as_json else show_rates(found, where)
        return
    machines = _machines(found, cores=cores, memory_gb=memory_gb, disk_gb=disk_gb, utilization=utilization, spare=spare)
    made = _plan(found, found.of(model, str(where)), wanted, machines)
    if out is not None:
        write_json(out, made.model_dump(mode="json"))
    if as_json:
        emit_json(made.model_dump(mode="json"))
        return
    show_plan(made)
    say(f"rates: {where}, of {found.machine}, measured {found.measured_at}")


def _plan(found: Rates, ranker: RankerRates, wanted: Workload, machines: Machines) -> Any:
    from limerank.planning.plan import make_plan
    from limerank.planning.rates import this_machine

    made, here = make_plan(found, ranker, wanted, machines), this_machine()
    if found.machine.differs(here):
        said = f"rates were measured on another machine ({found.machine}); this one is {here}"
        made = made.model_copy(update={"warnings": [said, *made.warnings]})
    return made


def _ranker(
    name: str, preset: str | None, options: list[str], source: Path | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The model section with every option, and what its origin says of the workload."""
    from limerank.config import parse_override
    from limerank.models import check_model, complete_model
    from limerank.models.presets import PRESETS

    if source is not None:
        if preset or options or name != "lime-mha":
            raise UsageError("--from: takes the ranker with its options; leave --ranker, --preset and --set out")
        return _of_source(source)
    kind, _ = check_model({"name": name}, "--ranker")
    model: dict[str, Any] = {"name": name}
    known: dict[str, Any] = {}
    if preset is not None:
        if preset not in PRESETS:
            raise UsageError(f"--preset: unknown value '{preset}'{did_you_mean(preset, PRESETS)}")
        model |= PRESETS[preset].model(kind.options_type)
        trained = PRESETS[preset]
        known = {"history": trained.max_history, "batch_requests": trained.batch_requests, "epochs": trained.epochs}
    model |= dict(parse_override(option) for option in options)
    return complete_model(model, "--set"), known


def _of_source(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    from limerank.models import complete_model
    from limerank.serve.bundles.store import BUNDLES, BundleStore
    from limerank.training.run import FinishedRun

    if not (path / BUNDLES).is_dir():
        return complete_model(FinishedRun.open(path).config.model, str(path)), {}
    manifest = BundleStore.open(path).open_bundle().manifest
    known = {
        "items": manifest.items - 1,
        "users": max(1, manifest.users - 1),
        "tasks": len(manifest.tasks),
        "row_type": manifest.row_type,
    }
    return complete_model(manifest.model, str(path)), known


def _assumed(pairs: list[str]) -> dict[str, Any]:
    """Numbers of `--assume`, by the names that a plan has for them."""
    from limerank.planning.workload import Workload

    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or name not in Workload.model_fields:
            raise UsageError(f"--assume {pair}: must look like days=3{did_you_mean(name, Workload.model_fields)}")
        found[name] = value
    return found


def _workload(asked: dict[str, Any]) -> Workload:
    from limerank.planning.workload import Workload
    from limerank.typed import validate

    missing = [f"--{name.replace('_', '-')}" for name in NEEDED if name not in asked]
    if missing:
        raise UsageError(f"{', '.join(missing)}: needed for a plan; see `limerank plan --help`")
    return validate(Workload, asked, "plan")


def _machines(found: Rates, **numbers: float | None) -> Machines:
    from limerank.planning.workload import Machines
    from limerank.typed import validate

    own = {"cores": found.machine.cores, "memory_gb": found.machine.memory_bytes / 1e9}
    return validate(Machines, {**own, **{name: v for name, v in numbers.items() if v is not None}}, "machine")


def _scale(history: float | None, candidates: float | None, quick: bool) -> Scale:
    from limerank.bench.rates.sizes import Scale

    if quick:
        return Scale(QUICK_HISTORY, QUICK_CANDIDATES, quick=True, repeats=QUICK_REPEATS)
    usual = Scale()
    return Scale(
        usual.history if history is None else max(64, int(history)),
        usual.candidates if candidates is None else max(64, int(candidates)),
    )


def _rates(
    model: dict[str, Any], path: Path | None, out: Path | None, scale: Scale, measure: bool, as_json: bool
) -> tuple[Rates, Path]:
    """Rates from a file, or measured now and kept in one, beside those of other rankers of this machine."""
    from limerank.planning.rates import FILE, read_rates, this_machine, write_rates

    where = path or FILE
    if not measure and (path is not None or where.exists()):
        found = read_rates(where)
        if path is None and found.machine.differs(this_machine()):
            raise UsageError(
                f"{where}: was measured on another machine ({found.machine}); measure here with --measure, or name the "
                f"file to plan with it all the same: --rates {where}"
            )
        return found, where
    from limerank.bench.rates.run import measure_rates

    where = out or where
    found = measure_rates(progress_for(as_json), model, scale)
    if where.exists() and not read_rates(where).machine.differs(found.machine):
        found = found.beside(read_rates(where))
    write_rates(where, found)
    return found, where
