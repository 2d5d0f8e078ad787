"""Tables of `limerank bench engine` for docs/reference/benchmarks.md and docs/explanation/how-a-ranking-is-computed.md.

`study_tables.py` writes them with its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Row = dict[str, Any]


def milliseconds(value: float) -> str:
    """As the tables have them."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def stages(row: Row) -> list[str]:
    """User stage, interaction and total."""
    return [milliseconds(row[name]) for name in ("user_ms", "interact_ms", "total_ms")]


def path(row: Row) -> str:
    """How it was scored."""
    return row["path"] + " (forced)" * (row["forced"] is not None)


def goals(bench: Row) -> Iterator[list[str]]:
    """What was wanted, and what came of it."""
    for goal in bench["goals"]:
        verdict = "reached" if goal["reached"] else "**not reached**"
        yield [f"{goal['name']}: {goal['goal']}", goal["measured"], verdict]


def large(bench: Row) -> Iterator[list[str]]:
    """The exact top 100 of a large catalog."""
    for row in bench["rows"]:
        if row["group"] == "large":
            between = f"{row['total']['least']:.1f} to {row['total']['most']:.1f}"
            yield [path(row), str(row["threads"]), "yes" if row["burner"] else "no", *stages(row)[1:], between]


def of_group(bench: Row, group: str) -> Iterator[list[str]]:
    """Requests of one size of ranker, on all cores."""
    for row in bench["rows"]:
        if row["group"] == group and row["threads"] == bench["cores"]:
            shape = [f"{row['candidates']:,}", f"{row['history']:,}"]
            yield [f"`{row['model']}`", *shape, path(row), row["user_state"], str(row["threads"]), *stages(row)]


def others(bench: Row) -> Iterator[list[str]]:
    """Appending, exporting, opening."""
    of_what = {"lime-mha": "reading the history", "lime-xor": "reading it into layer 1"}
    for one in bench["appends"]:
        part = f"1/{1 / one['fraction']:,.0f} of {of_what[one['model']]} ({one['recompute_ms']:.1f} ms)"
        name = f"one event more for a kept state of {one['model']} at {one['history']:,} events, one thread"
        yield [name, f"{one['append_us']:.0f} µs, {part}"]
    for one in bench["exports"]:
        name = f"export of {one['items']:,} items, {one['model']}, d = {one['width']}, {one['threads']} threads"
        yield [name, f"{one['items_per_second']:,.0f} items per second"]
    ids = bench["ids"]
    name = f"{ids['ids']:,} ids ({ids['bytes'] / 1e6:.0f} MB): hashed, mapped, every one looked up"
    yield [name, f"{ids['open_seconds']:.2f} s"]
    yield [f"{ids['looked_up']:,} of them looked up", f"{ids['lookup_ms']:.1f} ms"]


def summary(bench: Row) -> Iterator[list[str]]:
    """A few rows, on all cores."""

    def row(**wanted: Any) -> Row:
        every = {"threads": bench["cores"], "burner": False, "forced": None, "user_state": "computed", **wanted}
        return next(one for one in bench["rows"] if every.items() <= one.items())

    yield ["LIME-MHA, exact top 100 of 1,000,000 items, history 100", *stages(row(group="large"))]
    yield ["the same in fp32", *stages(row(group="large", forced="fp32"))]
    for model in ("lime-mha", "mha", "lime-xor", "hstu"):
        own = row(group="industrial", model=model, candidates=32_768, history=16_384)
        yield [f"`{model}`, d = 256, 16,384 events x 32,768 candidates", *stages(own)]
    for model in ("lime-mha", "lime-xor"):
        own = row(group="industrial", model=model, candidates=1_024, user_state="cached")
        yield [f"`{model}`, kept state, 1,024 candidates", *stages(own)]
    for model in ("lime-mha", "mha"):
        yield [f"`{model}`, 100 events x 100 candidates", *stages(row(group="small", model=model))]
