"""A page with every kind of chart and table, at the sizes that studies reach: twenty rankers, twelve doublings."""

from __future__ import annotations

import math
from random import Random

from limerank.models import RANKERS
from limerank.report.bars import stacked_bars
from limerank.report.charts import Mark, line_chart
from limerank.report.heat import heat_map
from limerank.report.intervals import interval_chart
from limerank.report.page import Chart, Page

SIZES = [2**power for power in range(4, 16)]
METRICS = ["AUC", "NE", "gAUC", "session AUC", "relative to TTSN", "parameters", "seconds", "bytes per item", "paper"]


def gallery() -> Page:
    page = Page("Everything that a report can show, with a title that is long enough to need two lines on a phone")
    page.paragraph("Twenty rankers, all sizes.", "lead")
    page.chapter("Latency")
    page.paragraph("Quick mode: these figures show that it works.", "warning")
    page.heading("Against candidates & history")
    page.charts(lines())
    page.chapter("Accuracy")
    page.charts([*values(), Chart("", "All rows, folded.", ["ranker", *METRICS], table() * 2)])
    page.heading("Table")
    page.table(["ranker", *METRICS], table())
    page.paragraph("The last column is filled where the dataset is the paper's.", "small")
    command = "limerank study latency --out " + "studies/latency/" * 8
    page.table(["", ""], [["command", command], ["seeds", "1, 2, 3"]], style="words")
    return page


def lines() -> list[Chart]:
    few = {
        "lime-mha": [(n, 0.2 + n * 3e-4) for n in SIZES],
        "lime-xor": [(n, 0.21 + n * 3.1e-4) for n in SIZES],
        "mha": [(n, 0.1 + n * 0.02) for n in SIZES],
        "hstu": [(n, 0.4 + n * 0.05 + n * n * 1e-6) for n in SIZES],
    }
    floor = {
        "floor of this machine": [(16.0, 0.05), (32768.0, 5.0)],
        "the paper's LIME-XOR": [(16.0, 1.0), (32768.0, 60.0)],
    }
    all_of_them = {name: [(n, (0.5 + i) * n ** (0.4 + 0.03 * i)) for n in SIZES] for i, name in enumerate(RANKERS)}
    near = {name: [(epoch, 0.81 - 0.01 * epoch + 1e-4 * i) for epoch in range(1, 9)] for i, name in enumerate(RANKERS)}
    random = Random(1)
    long = {name: [(step, base + random.random()) for step in range(900)] for name, base in (("train", 1), ("test", 2))}
    wide = {"a": [(1e-9, 1e-12), (1e9, 1e12)]}
    pictures = [
        (line_chart(few, x="candidates", y="milliseconds", logarithmic=True, references=floor), "four rankers"),
        (line_chart(all_of_them, x="history length", y="total milliseconds", logarithmic=True), "all rankers"),
        (line_chart(near, x="epoch", y="validation NE", marks=[Mark(3, 0.78, "best")]), "near each other"),
        (line_chart(long, x="step", y="loss"), "long lines"),
        (line_chart(wide, x="x", y="y", logarithmic=True), "many decades"),
        (line_chart({"a": [(1, 1000000.25), (2, 1000000.75)]}, x="epoch", y="large and near"), "many digits"),
        (line_chart({"alone": [(3, 0.5)]}, x="one point", y="value"), "one point"),
        (line_chart({"a": [(1, 0)]}, x="x", y="y", logarithmic=True), "nothing to see"),
    ]
    return [Chart(svg, f"Caption: {text}.", ["ranker", "x", "y"], [["a", 1, 2.5]] * 30) for svg, text in pictures]


def values() -> list[Chart]:
    random = Random(2)
    small = {(str(n), str(k)): 0.8 + 0.02 * math.log2(n) * math.log2(k) for n in SIZES[:7] for k in (4, 8, 16, 32, 64)}
    large = {(name, f"dataset {log}"): 0.8 + 0.01 * random.random() for name in RANKERS for log in range(9)}
    some = {("one", "a"): 1.5, ("two", "b"): 2.5}
    middles = {name: random.gauss(0, 0.5) for name in RANKERS}
    intervals = {name: (middle - 0.2, middle, middle + 0.3) for name, middle in middles.items()}
    stages = {name: {"user": 1.0 + random.random(), "interaction": random.random()} for name in list(RANKERS)[:6]}
    pictures = [
        (heat_map(small, rows="history length", columns="links"), "a heat map"),
        (heat_map(large, rows="ranker", columns="dataset", lower_is_better=True), "a large one, lower is better"),
        (heat_map(some, rows="row", columns="column"), "cells without values"),
        (interval_chart(intervals, x="difference of NE to TTSN, percent", reference=0.0), "intervals"),
        (stacked_bars(stages, unit="ms"), "stages"),
    ]
    return [Chart(svg, f"Caption: {text}.", ["what", "value"], [["a", 1.0]]) for svg, text in pictures]


def table() -> list[list[str]]:
    random = Random(3)
    return [[name, *(f"{random.random():.4f} ± 0.0012" for _ in METRICS[:-1]), "-"] for name in RANKERS]
