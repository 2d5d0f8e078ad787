"""Writes the tables of docs/how-to/plan-a-deployment.md from docs/results/plan-*.json.

    python benchmarks/plan_tables.py               # from the files as they are
    python benchmarks/plan_tables.py --measure     # measure rates, check them, plan, then write: some minutes, quiet

`tests/test_docs_plan.py` compares them, and computes the plans again from the rates.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

import results
from service_tables import section
from study_tables import table

from limerank.cli.plan_tables import amount, in_bytes, short
from limerank.planning.plan import Plan

PAGE = results.ROOT / "docs/how-to/plan-a-deployment.md"
SHOWN = (
    "train_work",
    "rows_bytes",
    "user_work",
    "interaction_work",
    "shards",
    "response_seconds",
    "request_bytes",
    "rows_instead",
)
"""Figures whose formulas stand on the page; the others are in the file."""
MADE_HERE = ("plan-rates", "plan-check", "plan-paper", "plan-billion")


def result(name: str) -> dict[str, Any]:
    """A file of docs/results."""
    found: dict[str, Any] = json.loads((results.RESULTS / f"{name}.json").read_text())
    return found


def plan_of(name: str) -> Plan:
    """A plan of docs/results."""
    return Plan.model_validate(result(name))


def check_table() -> str:
    """Predictions beside measurements, with the verdict above them."""
    found = result("plan-check")
    rates = found["rates"]
    machine, load = rates["machine"], rates["load_average"]
    rows = [
        [
            row["stage"],
            f"{row['size']:,} {row['of']}",
            f"{row['fitted_up_to']:,}",
            amount(row["stage"], row["predicted"]),
            amount(row["stage"], row["measured"]),
            f"{100 * row['error']:+.0f} %",
        ]
        for row in found["rows"]
    ]
    said = (
        f"{found['good']} of {len(rows)} predictions are within {100 * found['goal']:.0f} %, the worst is off by "
        f"{100 * found['worst']:.0f} %. One core of {machine['processor']} ({machine['cores']} cores); load average of "
        f"the machine {load[0]:.1f} before and {load[3]:.1f} after."
    )
    return f"{said}\n\n" + table(["stage", "size", "fitted up to", "predicted", "measured", "error"], rows)


def stages_table(name: str) -> Callable[[], str]:
    """What every stage asks for."""

    def written() -> str:
        plan = plan_of(name)
        rows = [
            [
                stage.name,
                short(stage.core_hours_per_day),
                short(stage.cores),
                in_bytes(stage.memory_bytes),
                in_bytes(stage.disk_bytes),
                in_bytes(stage.network_bytes_per_second, "/s"),
                short(stage.machines),
            ]
            for stage in plan.stages
        ]
        columns = ["stage", "core-hours a day", "cores at the peak", "memory", "disk", "network", "machines"]
        return table(columns, rows)

    return written


def figures_table(name: str) -> Callable[[], str]:
    """Some figures with their formulas."""

    def written() -> str:
        plan = plan_of(name)
        figures = [plan.figure(one) for one in SHOWN]
        return table(
            ["figure", "formula", "value"],
            [
                [f"`{one.name}`", f"`{one.formula}`", f"{short(one.value)} {one.unit}".removesuffix(" 1")]
                for one in figures
            ],
        )

    return written


def drivers_table(name: str) -> Callable[[], str]:
    """What one number doubled does."""

    def written() -> str:
        rows = [
            [
                f"`{one.number}`",
                f"x {one.core_hours_times:.2f}",
                f"x {one.memory_times:.2f}",
                f"{one.machines_more:+,.0f}",
            ]
            for one in plan_of(name).drivers
        ]
        return table(["doubled", "core-hours", "memory", "machines"], rows)

    return written


def verdict(name: str) -> Callable[[], str]:
    """In all, and what does not fit."""

    def written() -> str:
        plan = plan_of(name)
        response = plan.figure("response_seconds").value
        machine = f"{plan.machine.cores:,.0f} cores and {plan.machine.memory_gb:,.0f} GB"
        lines = [
            f"In all {plan.machines:,.0f} machines of {machine}, {short(plan.core_hours_per_day)} core-hours a day; "
            f"a ranking takes {1000 * response:,.3g} ms in the mean, the goal is {plan.workload.latency_ms:,.0f} ms."
        ]
        lines += [f"- Does not fit: {problem}." for problem in plan.problems]
        lines += [f"- A guess: {warning}." for warning in plan.warnings if "another machine" not in warning]
        return "\n\n".join([lines[0], "\n".join(lines[1:])]).strip()

    return written


WRITERS: dict[str, Callable[[], str]] = {
    "plan-check": check_table,
    **{
        f"{name}: {what}": write(name)
        for name in ("plan-paper", "plan-billion")
        for what, write in {
            "verdict": verdict,
            "stages": stages_table,
            "figures": figures_table,
            "drivers": drivers_table,
        }.items()
    },
}


def written(page: str, name: str) -> str:
    """The page with one table as the results have it."""
    old = section(page, name)
    return page[: old.start(2)] + WRITERS[name]() + page[old.end(2) :]


def main() -> None:
    """Write all tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="measure, check and plan before")
    if parser.parse_args().measure:
        (results.RESULTS / "plan-rates.json").unlink(missing_ok=True)  # rankers of another day do not stay
        for name in MADE_HERE:
            results.make(name)
    for name in WRITERS:
        PAGE.write_text(written(PAGE.read_text(), name))


if __name__ == "__main__":
    main()
