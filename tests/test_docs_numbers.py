"""Numbers in the docs are those of docs/results, or follow from the table beside them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
NAMES = {
    "ttsn": "TTSN",
    "mha": "MHA skyline",
    "lime-mha": "LIME-MHA",
    "hstu": "HSTU skyline",
    "lime-xor": "LIME-XOR",
}
ACCURACY = {
    "16 (default)": "accuracy-simulated",
    "24": "accuracy-simulated-24-topics",
    "48": "accuracy-simulated-48-topics",
}


def results(name: str) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((ROOT / f"docs/results/{name}.json").read_text())
    return facts


def page(name: str) -> str:
    """A page in one line: its line breaks mean nothing."""
    return " ".join((ROOT / name).read_text().split())


def spread(values: list[float]) -> str:
    return f"{mean(values):.4f}±{stdev(values):.4f}"


def metric(facts: dict[str, Any], model: str, name: str) -> str:
    return spread([row["test"][name] for row in facts["results"] if row["model"] == model])


def closed(facts: dict[str, Any], model: str) -> str:
    fractions = [100 * fraction for fraction in facts["gap_closed"][model]]
    return f"{mean(fractions):.0f} % ± {stdev(fractions):.0f} %"


def test_accuracy_table_of_the_simulated_log() -> None:
    facts, text = results("accuracy-simulated"), page("docs/explanation/simulated-log.md")
    for model, name in NAMES.items():
        cells = [metric(facts, model, one) for one in ("auc", "gauc", "ne")]
        fraction = f"{closed(facts, model)} |" if model.startswith("lime") else "|"
        assert " | ".join(["| " + name, *cells, fraction]) in text
    oracle = [f"{facts['oracle'][one]:.4f}" for one in ("auc", "gauc", "ne")]
    assert " | ".join(["| oracle", *oracle, "|"]) in text


def test_gaps_closed_on_harder_logs() -> None:
    table, readme = page("docs/explanation/simulated-log.md"), page("README.md")
    for topics, name in ACCURACY.items():
        facts = results(name)
        ne = {model: metric(facts, model, "ne") for model in NAMES}
        cells = [ne["ttsn"], ne["mha"], ne["lime-mha"], closed(facts, "lime-mha")]
        cells += [ne["hstu"], ne["lime-xor"], closed(facts, "lime-xor")]
        assert " | ".join([f"| {topics}", *cells]) in table
        for model, skyline in (("lime-mha", "mha"), ("lime-xor", "hstu")):
            assert facts["verdicts"][model]["beats_baseline_in_every_seed"]
            assert facts["verdicts"][model]["skyline"] == skyline
    for model in ("lime-mha", "lime-xor"):
        easy, harder, hardest = (closed(results(name), model).split(" ±")[0] for name in ACCURACY.values())
        assert f"{NAMES[model]} {easy}, {harder} and {hardest}" in readme


def test_the_readme_compares_costs_as_its_table_does() -> None:
    text = (ROOT / "README.md").read_text()
    rows = re.findall(r"^(ttsn|mha|lime-mha) +([\d.]+ +){4}([\d.]+) +([\d.]+)$", text, re.MULTILINE)
    ms = {name: float(total) for name, _, _, total in rows}
    assert f"10,000 candidates {ms['mha'] / ms['lime-mha']:.1f}x faster" in page("README.md")


def test_training_steps_of_the_rankers() -> None:
    facts, text = results("bench-models"), page("docs/rankers/index.md")
    ms = {(row["model"], row["candidates"]): row["ms"] for row in facts["rows"]}
    table = re.findall(r"\| `([\w-]+)` \| (\d+) \| (\d+) \|", text)
    assert {
        (name, count): float(cell) for name, *cells in table for count, cell in zip((1, 64), cells, strict=True)
    } == {key: round(value) for key, value in ms.items()}
    assert f"{facts['requests']} requests with histories of {facts['history']:,} events, d = {facts['width']}" in text
    assert f"{facts['gemm_gflops']:.0f} GFLOP/s" in text


def test_figures_of_the_data_room() -> None:
    facts, text = results("bench-data"), page("docs/explanation/data-room.md")
    for row in facts["assembly"]:
        rates = row["rows_per_second"]
        cells = (
            f"| {row['candidates_per_request']:.1f} | {row['batch_rows']:,} | {rates['limerank']:,.0f} rows/s "
            f"| {rates['padded_rows']:,.0f} ({row['times_padded_rows']:.1f}x) "
            f"| {rates['padded_columns']:,.0f} ({row['times_padded_columns']:.1f}x) |"
        )
        assert cells in text
    storage, preparing, memory = facts["storage"], facts["preparing"], facts["memory"]
    assert (
        f"{storage['limerank']:.0f} on disk with all tables, {storage['padded_float64']:,.0f} as padded float64" in text
    )
    assert (
        f"(1/{storage['padded_float64'] / storage['limerank']:.0f}), {storage['padded_int32']:,.0f} as padded int32"
        in text
    )
    assert f"{preparing['encode_events_per_core_second'] / 1e6:.1f} million events per core and second" in text
    assert f"{memory['events']:,} events in a process of its own: {memory['peak_gigabytes']:.2f} GB at most" in text
    for row in facts["prefetch"][:2]:
        assert f"{row['step_ms_without']:.1f}" in text
        assert f"{row['step_ms_with']:.1f}" in text


OPS = results("bench-ops")
SHAPES = {"history": 4096, "links": 32, "width": 256, "heads": 4}


def ratios(threads: int, other: str, op: str, **shape: int) -> list[float]:
    return [
        row["times"]
        for row in OPS["ratios"]
        if (row["threads"], row["other"], row["op"]) == (threads, other, op) and shape.items() <= row["shape"].items()
    ]


def fraction_of_peak(threads: int, backend: str, **shape: int) -> str:
    (row,) = (
        row
        for row in OPS["rows"]
        if (row["threads"], row["backend"]) == (threads, backend) and shape.items() <= row["shape"].items()
    )
    return f"{100 * row['fraction_of_gemm_peak']:.0f}"


def between(values: list[float], small: str = ".1f") -> str:
    shown = [format(value, ".0f" if value >= 10 else small) for value in (min(values), max(values))]
    return "x to ".join(shown) + "x"


@pytest.mark.parametrize("threads", [1, 2])
def test_speeds_of_the_ops(threads: int) -> None:
    """The column of one number of threads, row by row."""
    text = (ROOT / "docs/reference/ops.md").read_text()
    section = text.split("| | 1 thread | 2 threads |")[1].split("\n\n")[0]
    column = [line.split("|")[1 + threads].strip() for line in section.strip().splitlines()[1:]]
    softmax, long = "xor_attention softmax forward", {"history": 16384}
    (forward,), (both,) = (
        ratios(threads, "reference", f"xor_attention silu {one}", **SHAPES) for one in ("forward", "forward+backward")
    )
    (stack,) = ratios(threads, "plain modules", "xor_stack", **long)
    (pool,) = ratios(threads, "projected, sdpa", "link_pool", **long)
    (append,) = ratios(threads, "append one event", "link_pool", **long)
    folded = " / ".join(fraction_of_peak(threads, f"folded {one}") for one in ("fp32", "fp16", "u8"))
    assert column == [
        f"{forward:.0f}x faster" if threads == 1 else f"{forward:.0f}x",
        f"{both:.0f}x",
        between(ratios(threads, "sdpa, explicit mask", softmax)),
        between(ratios(threads, "flex attention", softmax), ".2f"),
        between(ratios(threads, "sdpa, two calls", softmax), ".2f"),
        f"{fraction_of_peak(threads, 'fused, absorbed', **long)} %; {stack:.1f}x",
        f"{fraction_of_peak(threads, 'absorbed', **long)} %; {pool:.1f}x",
        f"1/{round(1 / append, -1):.0f}",
        f"{folded} %",
    ]


def test_other_figures_of_the_ops() -> None:
    text = page("docs/reference/ops.md")
    one, two = (peak["gemm_gflops"] for peak in OPS["peaks"])
    assert f"({one:.0f} GFLOP/s GEMM on one thread, {two:.0f} on two;" in text
    appends = [1000 * row["ms"] for row in OPS["rows"] if row["backend"] == "append one event"]
    assert f"{min(appends):.0f} to {max(appends):.0f} µs" in text
    *most, last = (f"{row['chunked_bytes'] / 1e6:.0f}" for row in OPS["memory"])
    assert f"{', '.join(most)} and {last} MB at N = 2,048 to 16,384" in text
    dense = [f"{row['reference_bytes'] / 1e6:.0f} MB" for row in OPS["memory"] if row["reference_bytes"]]
    assert f"the dense mask takes {dense[0]} at 2,048 and {dense[1]} at 4,096" in text


def test_decision_10_quotes_the_bench_of_threads() -> None:
    text = (ROOT / "docs/decisions/0010-threads-sleep.md").read_text()
    rows = json.loads((ROOT / "docs/results/bench-threads.json").read_text())["rows"]
    for waiting in ("spin", "sleep"):
        (line,) = (line for line in text.splitlines() if line.startswith(f"| {waiting}"))
        found = {
            (row["work"], row["busy_processes"]): row["to_one_thread"] for row in rows if row["waiting"] == waiting
        }
        quoted = [found[work, busy] for work in ("rank", "train") for busy in (0, 1)]
        assert [float(cell) for cell in line.split("|")[2:-1]] == [round(value, 2) for value in quoted]
