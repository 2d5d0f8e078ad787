"""Writes the tables on the service from docs/results/bench-serve.json and soak.json: those of
docs/reference/benchmarks.md, and the sizes of docs/how-to/operate-a-service.md.

    python benchmarks/service_tables.py

`tests/test_docs_benchmarks.py` compares them: after a new run, run this.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/reference/benchmarks.md"
GUIDE = ROOT / "docs/how-to/operate-a-service.md"
FILES = {"bench-serve": "bench-serve", "soak": "soak", "soak-hour": "soak-hour", "sizes": "bench-serve"}
RESULTS = {name: ROOT / f"docs/results/{file}.json" for name, file in FILES.items()}


def serve_tables(found: dict[str, Any]) -> str:
    """Goals, latency, HTTP against the engine, the knee, events, starts."""
    parts = [_machine(found), _goals(found["goals"])]
    for model in dict.fromkeys(row["model"] for row in found["rows"]):
        rows = [row for row in found["rows"] if row["model"] == model]
        parts += [_latency(model, rows), _overhead(found, model)]
    parts += [_knee(knee) for knee in found["knees"]]
    parts.append("\n".join(f"- {line}" for line in _lines(found)))
    return "\n\n".join(parts)


def _machine(found: dict[str, Any]) -> str:
    before, after = found["load_average"][0], found["load_average"][3]
    return (
        f"The machine: {found['cores']} cores, load average {before:.1f} before and {after:.1f} after; a GEMM of the "
        f"measuring process ran at {found['gemm_gflops']:.0f} GFLOP/s and copies at "
        f"{found['copy_gbytes_per_second']:.0f} GB/s. "
        f"{found['items']:,} items, {found['seconds']:g} seconds a row."
    )


def _goals(goals: list[dict[str, Any]]) -> str:
    lines = ["| goal | measured | |", "|---|---|---|"]
    for goal in goals:
        verdict = "reached" if goal["reached"] else "**not reached**"
        lines.append(f"| {goal['name']}: {goal['goal']} | {goal['measured']} | {verdict} |")
    return "\n".join(lines)


def _latency(model: str, rows: list[dict[str, Any]]) -> str:
    columns = list(dict.fromkeys((row["history"], row["user_state"]) for row in rows))
    names = [f"{history:,}" if state == "computed" else f"{history:,}, {state}" for history, state in columns]
    lines = [
        f"`{model}`: p50 / p99 in ms, by candidates (down) and length of history (across):",
        "",
        f"| | {' | '.join(names)} |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for count in dict.fromkeys(row["candidates"] for row in rows):
        cells = {(row["history"], row["user_state"]): row for row in rows if row["candidates"] == count}
        lines.append(f"| {count:,} candidates | {' | '.join(_cell(cells.get(column)) for column in columns)} |")
    stages = [row for row in rows if row["user_state"] == "computed"]
    chosen = max(stages, key=lambda row: (row["candidates"], row["history"]))
    medians = ", ".join(f"{name} {value:.2f}" for name, value in chosen["stage_ms"].items())
    lines += [
        "",
        f"Stages at {chosen['candidates']:,} candidates and history {chosen['history']:,}, medians in ms: {medians}.",
    ]
    failed = sum(row["errors"] + row["refused"] + row["degraded"] for row in rows)
    lines.append(f"Of {sum(row['requests'] for row in rows):,} requests {failed} failed, were refused or degraded.")
    return "\n".join(lines)


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return "-"
    late = "\\*" if row["generator_late"] else ""
    return f"{row['p50_ms']:.1f} / {row['p99_ms']:.1f}{late}"


def _overhead(found: dict[str, Any], model: str) -> str:
    lines = ["| | user state | engine, ms | HTTP, ms | times |", "|---|---|---|---|---|"]
    for row in found["overhead"]:
        if row["model"] == model:
            times = f"{row['engine_ms']['median']:.2f} | {row['http_ms']['median']:.2f} | {row['http_overhead']:.2f}"
            lines.append(f"| {row['candidates']:,} candidates | {row['user_state']} | {times} |")
    return "\n".join(lines)


def _knee(knee: dict[str, Any]) -> str:
    at = knee["at_70"]
    searches = ", ".join(f"{rate:.0f}" for rate in knee["rates"])
    return (
        f"The knee of `{knee['model']}` at {knee['candidates']:,} candidates, history {knee['history']:,}, user states "
        f"{knee['user_state']}: {knee['rate']:.0f} requests per second (searches: {searches}). At 70 % of it p50 is "
        f"{at['p50_ms']:.1f} ms and p99 {at['p99_ms']:.1f} ms."
    )


def _lines(found: dict[str, Any]) -> list[str]:
    lines = [
        f"`{one['model']}`: storing an event takes {one['event_ms']['median']:.1f} ms; a ranking of "
        f"{one['candidates']:,} that must see it, {one['rank_after_ms']['median']:.1f} ms instead of "
        f"{one['rank_ms']['median']:.1f} ms; {one['added_ms']:.1f} ms are added in all"
        for one in found["event_then_rank"]
    ]
    lines += [
        f"events in calls of {one['events_per_call']}: {one['events_per_second']:,.0f} per second, a call p50 "
        f"{one['call_p50_ms']:.1f} ms and p99 {one['call_p99_ms']:.1f} ms, every call on disk before it is answered"
        for one in found["event_rates"]
    ]
    lines += [
        f"a start with {one['states_mb']} MB for user states: ready after {one['ready_seconds']:.1f} s; the first "
        f"request took {one['first_ms']:.1f} ms, later ones {one['warm_ms']:.1f} ms"
        for one in found["starts"]
    ]
    return lines


def soak_tables(found: dict[str, Any]) -> str:
    """What was judged, part by part."""
    lines = ["| part | what | wanted | measured | |", "|---|---|---|---|---|"]
    for part in found["parts"]:
        for one in part["verdicts"]:
            verdict = "held" if one["reached"] else "**missed**"
            load = " to ".join(f"{value:.0f}" for value in part["load_average"])
            took = f"{part['name']}, {part['seconds'] / 60:.1f} min at load {load}"
            cells = (took, one["name"], one["goal"], one["measured"], verdict)
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def sizes(found: dict[str, Any]) -> str:
    """What a service of the benchmark's size needs, and how much it can do."""
    lines = ["| | |", "|---|---|"]
    lines.append(f"| catalog | {found['items']:,} items, d = 32, 64 weights an item |")
    for one in found["starts"][:2]:
        kept = f"{one['states_mb']} MB for user states" if one["states_mb"] else "no user states kept"
        size = f"{one['resident_mb']:.0f} MB after warm-up, of a bundle of {one['bundle_mb']:.0f} MB"
        lines.append(f"| memory, {kept} | {size}; ready after {one['ready_seconds']:.1f} s |")
    for knee in found["knees"]:
        what = (
            f"`{knee['model']}`, {knee['candidates']:,} candidates, history {knee['history']:,}, {knee['user_state']}"
        )
        at = knee["at_70"]
        lines.append(
            f"| {what} | up to {knee['rate']:.0f} requests per second; at 70 % of that p50 {at['p50_ms']:.1f} ms, "
            f"p99 {at['p99_ms']:.1f} ms |"
        )
    for row in found["overhead"]:
        if row["user_state"] == "computed":
            said = f"`{row['model']}`, one caller, {row['candidates']:,} candidates"
            lines.append(f"| {said} | {row['http_ms']['median']:.1f} ms |")
    rate = found["event_rates"][0]
    lines.append(f"| events, in calls of {rate['events_per_call']} | {rate['events_per_second']:,.0f} per second |")
    return "\n".join(lines)


WRITERS = {
    "bench-serve": (PAGE, serve_tables),
    "soak": (PAGE, soak_tables),
    "soak-hour": (PAGE, soak_tables),
    "sizes": (GUIDE, sizes),
}


def section(page: str, name: str) -> re.Match[str]:
    """What a page has between the marks of a result."""
    found = re.search(f"(<!-- {name} -->\n)(.*?)(\n<!-- end of {name} -->)", page, re.DOTALL)
    if found is None:
        raise SystemExit(f"no marks of {name}")
    return found


def written(page: str, name: str) -> str:
    """The page with the tables of a result."""
    old, found = section(page, name), json.loads(RESULTS[name].read_text())
    return page[: old.start(2)] + WRITERS[name][1](found) + page[old.end(2) :]


if __name__ == "__main__":
    for name, (page, _) in WRITERS.items():
        page.write_text(written(page.read_text(), name))
