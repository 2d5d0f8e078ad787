"""Numbers in the docs are those of docs/results, or follow from the table beside them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest

from limerank.data.sources.simulated import SimulatedConfig
from limerank.data.sources.simulation.evaluation import EVALUATION_LOGS

ROOT = Path(__file__).parent.parent
NAMES = {
    "ttsn": "TTSN",
    "mha": "MHA skyline",
    "lime-mha": "LIME-MHA",
    "hstu": "HSTU skyline",
    "lime-xor": "LIME-XOR",
}
ACCURACY = {
    "16 (default)": "earlier/accuracy-simulated",
    "24": "earlier/accuracy-simulated-24-topics",
    "48": "earlier/accuracy-simulated-48-topics",
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
    facts, text = results("earlier/accuracy-simulated"), page("docs/explanation/simulated-log.md")
    for model, name in NAMES.items():
        cells = [metric(facts, model, one) for one in ("auc", "gauc", "ne")]
        fraction = f"{closed(facts, model)} |" if model.startswith("lime") else "|"
        assert " | ".join(["| " + name, *cells, fraction]) in text
    oracle = [f"{facts['oracle'][one]:.4f}" for one in ("auc", "gauc", "ne")]
    assert " | ".join(["| oracle", *oracle, "|"]) in text


def test_gaps_closed_on_harder_logs() -> None:
    table = page("docs/explanation/simulated-log.md")
    for topics, name in ACCURACY.items():
        facts = results(name)
        ne = {model: metric(facts, model, "ne") for model in NAMES}
        cells = [ne["ttsn"], ne["mha"], ne["lime-mha"], closed(facts, "lime-mha")]
        cells += [ne["hstu"], ne["lime-xor"], closed(facts, "lime-xor")]
        assert " | ".join([f"| {topics}", *cells]) in table
        for model, skyline in (("lime-mha", "mha"), ("lime-xor", "hstu")):
            assert facts["verdicts"][model]["beats_baseline_in_every_seed"]
            assert facts["verdicts"][model]["skyline"] == skyline


def test_the_readme_quotes_what_a_command_of_today_made() -> None:
    """Of the quickstart's kind of log: figures of the study of scaling, with its file, and the warning before them."""
    gaps = {(gap["model"], gap["links"], gap["topics"]): gap["of_means"] for gap in results("scaling")["gaps"]}
    easy, harder, hardest = (f"{100 * gaps['lime-mha', 32, topics]:.0f} %" for topics in (16, 24, 48))
    section = page("README.md").split("## What holds of the paper")[1].split("<!--")[0]
    warning, _, figures = section.partition("its log was shaped while looking at test results of LIME.")
    assert "not as evidence" in warning
    assert "16, 24 and 48 topics, LIME-MHA with 32 links closes" in figures
    assert f"closes {easy}, {harder} and {hardest} of the gap from TTSN to MHA" in figures
    assert "(docs/results/scaling.json)" in figures
    assert "accuracy-simulated" not in section, "what no command of this version makes"


def test_the_evaluation_logs_tell_what_they_inherit() -> None:
    """Strengths that are the quickstart's are not from real logs, and the page says whose results shaped them."""
    text, usual = page("docs/explanation/evaluation-logs.md"), SimulatedConfig()
    inherited = [getattr(usual, f"{name}_strength") for name in ("match", "creator", "interest")]
    for log in EVALUATION_LOGS.values():
        assert [log.match_strength, log.creator_strength, log.interest_strength] == inherited
    match, creator, interest = inherited
    assert (
        f"match ({match:g}), creator ({creator:g}) and interest ({interest:g}) are inherited from the quickstart's "
        "simulator, which was shaped by looking at LIME's results"
    ) in text


def test_the_readme_shows_what_the_quickstart_printed() -> None:
    """Its table, its ratios and its story are those of one run, whose facts are in a file."""
    facts, text = results("quickstart"), (ROOT / "README.md").read_text()
    block = next(part for part in text.split("```") if "µs/candidate" in part)
    candidates, history = (facts["speed_measured_at"][name] for name in ("candidates", "history"))
    assert f"click, {candidates:,} candidates, {history} events of history" in block
    for name, one in facts["models"].items():
        total = one["user_ms"] + candidates * one["us_per_candidate"] / 1000
        said = [f"{one[key]:.4f}" for key in ("auc", "gauc", "ne")]
        said += [f"{one['user_ms']:.2f}", f"{one['us_per_candidate']:.3f}", f"{total:.2f}"]
        assert re.search(rf"^{name} +{' +'.join(map(re.escape, said))}$", block, re.MULTILINE), (name, said)
    oracle = " +".join(f"{facts['oracle'][key]:.4f}" for key in ("auc", "gauc", "ne"))
    assert re.search(rf"^oracle +{oracle} ", block, re.MULTILINE)
    by_history = facts["speedup_by_history"]
    sentence = " ".join(block.split())
    assert f"LIME-MHA closes {facts['gap_closed']:.0%} of the NE gap" in sentence
    assert (
        f"{candidates:,} candidates {facts['speedup_vs_mha']:.1f}x faster than it at history {history}, "
        f"{by_history['1024']:.0f}x at 1,024, {by_history['4096']:.0f}x at 4,096."
    ) in sentence
    moved = facts["moved_after_click"]
    assert f"User {moved['user']} clicks {moved['clicked']}, of {moved['topic']}, a topic new to them." in sentence
    before, after = (moved[f"topic_mean_rank_{when}"] for when in ("before", "after"))
    assert f"items: {before:,.0f} before, {after:,.0f} after." in sentence
    for one in moved["items"][:2]:
        assert re.search(rf"^{one['item']} +{one['topic']} +{one['before']} +{one['after']}$", block, re.MULTILINE)
    assert "(docs/results/quickstart.json)" in text


def test_training_steps_of_the_rankers() -> None:
    facts, text = results("bench-models"), page("docs/rankers/index.md")
    ms = {(row["model"], row["candidates"]): row["ms"] for row in facts["rows"]}
    table = re.findall(r"\| `([\w-]+)` \| (\d+) \| (\d+) \|", text)
    assert {
        (name, count): float(cell) for name, *cells in table for count, cell in zip((1, 64), cells, strict=True)
    } == {key: round(value) for key, value in ms.items()}
    assert f"{facts['requests']} requests with histories of {facts['history']:,} events, d = {facts['width']}" in text
    assert f"{facts['gemm_gflops']:.0f} GFLOP/s" in text
    section = text.split("## How fast they train")[1].split(" ## ")[0]
    told = [float(times) for times in re.findall(r"(\d+\.\d+)(?= times| with \d)", section)]
    known = {(row["model"], row["other"], row["candidates"]): round(row["times"], 1) for row in facts["ratios"]}
    assert told == [known[*pair, count] for pair in (("lime-xor", "hstu"), ("lime-mha", "mha")) for count in (1, 64)]


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
