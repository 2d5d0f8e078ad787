"""What `limerank plan` shows: stages as a table, then every formula with its inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from limerank.cli.common import emit_table, say, say_checked

if TYPE_CHECKING:
    from pathlib import Path

    from limerank.bench.rates.check import PlanCheck
    from limerank.planning.plan import Plan
    from limerank.planning.rates import Rates

BYTES = ("B", "kB", "MB", "GB", "TB", "PB")


def show_plan(plan: Plan) -> None:
    """Stages, drivers, formulas, then what to doubt."""
    emit_table(
        f"{plan.ranker}; machines of {plan.machine.cores:,.0f} cores and {plan.machine.memory_gb:,.0f} GB",
        ["stage", "core-hours a day", "of all", "cores at the peak", "memory", "disk", "network", "machines"],
        [
            [
                stage.name,
                short(stage.core_hours_per_day),
                "-" if stage.fraction_of_core_hours is None else f"{stage.fraction_of_core_hours:.0%}",
                short(stage.cores),
                in_bytes(stage.memory_bytes),
                in_bytes(stage.disk_bytes),
                in_bytes(stage.network_bytes_per_second, "/s"),
                short(stage.machines),
            ]
            for stage in plan.stages
        ],
    )
    response = plan.figure("response_seconds")
    say(
        f"{plan.machines:,.0f} machines: serving, history store, and the largest job beside them; "
        f"a ranking takes {1000 * response.value:,.3g} ms in the mean, goal {plan.workload.latency_ms:,.3g} ms"
    )
    emit_table(
        "what drives it: one number doubled",
        ["number", "core-hours", "memory", "machines"],
        [
            [one.number, f"x {one.core_hours_times:.2f}", f"x {one.memory_times:.2f}", f"{one.machines_more:+,.0f}"]
            for one in plan.drivers
        ],
    )
    for stage in plan.stages:
        emit_table(
            f"{stage.name}: {stage.about}",
            ["figure", "value", "unit", "formula"],
            [[one.name, short(one.value), one.unit, one.formula] for one in stage.figures],
            wrap="formula",
        )
    read = {name for stage in plan.stages for one in stage.figures for name in one.inputs}
    emit_table(
        "what formulas read",
        ["name", "value", "unit", "is"],
        [[name, short(one.value), one.unit, one.about] for name, one in plan.given.items() if name in read],
        wrap="is",
    )
    for limit in plan.limits:
        say(f"- {limit}")
    if plan.rates_quick:
        say_checked("WARN", "rates are of the quick mode: they show that it works, nothing else")
    for warning in plan.warnings:
        say_checked("WARN", warning)
    for problem in plan.problems:
        say_checked("FAIL", problem)


def show_rates(rates: Rates, where: Path) -> None:
    """What was measured, as lines."""
    lines = [
        ("prepare", rates.prepare, "event"),
        ("history store, a transaction", rates.store_add, "event"),
        ("history store, reading a user", rates.store_read, "event"),
    ]
    for ranker in rates.rankers:
        lines += [
            (f"{ranker.name}: export", ranker.export, "item"),
            (f"{ranker.name}: user stage", ranker.user, "event"),
            (f"{ranker.name}: user stage, events computed", ranker.user_computed, "event"),
            (f"{ranker.name}: interaction", ranker.interaction, "candidate"),
            (f"{ranker.name}: scan", ranker.scan, "item"),
        ]
    emit_table(
        f"rates of one core of {rates.machine}",
        ["stage", "fixed ms", "us more", "for each", "measured at"],
        [
            [name, f"{1e3 * line.fixed:.3g}", f"{1e6 * line.slope:.3g}", each, ", ".join(f"{n:,}" for n in line.sizes)]
            for name, line, each in lines
        ],
    )
    say(f"written to {where}; plan with it: limerank plan --items 1e6 --users 1e5 --events-per-day 1e7 ...")


def show_check(result: PlanCheck) -> None:
    """Predictions beside measurements."""
    emit_table(
        "sizes that rates were not fitted on, one core",
        ["stage", "size", "of", "fitted up to", "predicted", "measured", "error", f"within {result.goal:.0%}"],
        [
            [
                row.stage,
                f"{row.size:,}",
                row.of,
                f"{row.fitted_up_to:,}",
                amount(row.stage, row.predicted),
                amount(row.stage, row.measured),
                f"{row.error:+.0%}",
                "yes" if row.good else "NO",
            ]
            for row in result.rows
        ],
    )
    say(
        f"{result.good} of {len(result.rows)} within {result.goal:.0%}, the worst is off by {result.worst:.0%}; "
        f"load of the machine {', '.join(f'{one:.1f}' for one in result.rates.load_average)}"
    )


def amount(stage: str, value: float) -> str:
    """Milliseconds, or bytes."""
    return in_bytes(value) if stage.endswith("bytes") else f"{short(1e3 * value)} ms"


def in_bytes(value: float | None, each: str = "") -> str:
    """In the unit that people read."""
    if value is None:
        return "-"
    power = 0
    while value >= 1000 and power < len(BYTES) - 1:
        value, power = value / 1000, power + 1
    return f"{value:,.3g} {BYTES[power]}{each}"


def short(value: float | None) -> str:
    """With three digits that count, or all of a whole number."""
    if value is None:
        return "-"
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:,.0f}" if value == round(value) or abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:.3g}"
