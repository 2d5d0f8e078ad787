"""Writes tables of README.md, docs/explanation and docs/reference/benchmarks.md from the files in docs/results.

    python benchmarks/study_tables.py

`tests/test_docs_evidence.py` compares them: after a new run, run this. Studies that were not made yet have no table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import engine_tables
from service_tables import section

from limerank.study.accuracy.results import AccuracyStudy
from limerank.study.accuracy.table import gap_words

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs/results"
README, EVIDENCE = ROOT / "README.md", ROOT / "docs/explanation/evidence.md"
BENCHMARKS, COMPUTED = ROOT / "docs/reference/benchmarks.md", ROOT / "docs/explanation/how-a-ranking-is-computed.md"
LOGS = {
    "easy": "easy",
    "medium": "medium",
    "hard": "hard",
    "ml-100k": "ml-100k",
    "kuairand-likehate": "KuaiRand subset",
}
"""The studies of accuracy, and what their columns are called."""
LONGER = ("easy", "medium", "ml-100k", "kuairand-likehate")
"""With a second study of the paper's rankers, which trains them twice as long, to the end."""
SIZES = {"medium": 1, "medium-4x": 4, "medium-16x": 16}
"""One log by how many times its users it has."""
TABLE_B = {
    "ttsn": "TTSN",
    "din": "DIN",
    "sasrec": "SASRec",
    "truncated-mha": "truncated MHA",
    "lrea": "LREA",
    "lime-mha": "LIME-MHA",
    "mha": "MHA skyline",
    "lime-xor": "LIME-XOR",
    "hstu": "HSTU skyline",
}
GAPS = {"lime-mha": "MHA", "lime-xor": "HSTU"}
LIME_AGAINST = {"lime-mha": "mha", "lime-xor": "hstu"}


def result(name: str) -> dict[str, Any] | None:
    """A study, if it was made."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.is_file() else None


def accuracy() -> dict[str, dict[str, Any]]:
    """The studies of accuracy by log."""
    found = {log: result(f"accuracy-{log}") for log in LOGS}
    return {log: study for log, study in found.items() if study is not None}


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """In Markdown."""
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def paper_rows() -> str:
    """The rows of the paper's table (b) on every log: test NE, and how much of the gap LIME closes."""
    studies = accuracy()
    rows = [
        [shown, *(spread(row_of(study, name)["metrics"].get("ne")) for study in studies.values())]
        for name, shown in TABLE_B.items()
    ]
    rows.insert(0, ["counting", *(number(study["floor"]["ne"]) for study in studies.values())])
    rows.append(["oracle", *(number((study["oracle"] or {}).get("ne")) for study in studies.values())])
    for lime, skyline in GAPS.items():
        closed = [gaps(study)[lime] for study in studies.values()]
        rows.append([f"{TABLE_B[lime]} closes, of TTSN to {skyline}", *closed])
    columns = [f"[{LOGS[log]}]({link(log)})" for log in studies]
    return table(["test NE, lower is better", *columns], rows)


AGAINST = [*((one, "ttsn") for one in ("mha", "hstu", "sasrec", "lime-mha", "lime-xor")), *LIME_AGAINST.items()]
TOLD = {"ne": -1, "gauc": 1}
"""Metrics, and the sign of a difference that is better."""


def told_apart() -> str:
    """Which rankers the intervals tell apart: a word for each metric."""
    rows = []
    for first, second in AGAINST:
        cells = []
        for study in accuracy().values():
            compared = next(
                one["metrics"] for one in study["comparisons"] if (one["first"], one["second"]) == (first, second)
            )
            cells.append(", ".join(verdict(compared[metric], sign) for metric, sign in TOLD.items()))
        rows.append([f"{TABLE_B[first]} against {TABLE_B[second]}", *cells])
    return table(["NE, gAUC", *(LOGS[log] for log in accuracy())], rows)


def verdict(compared: dict[str, Any], better: int) -> str:
    """What the interval of a difference says."""
    low, high = compared["low"], compared["high"]
    if low is None or low <= 0 <= high:
        return "?"
    return "better" if low * better > 0 else "worse"


def link(log: str) -> str:
    """A link to the file, from the README."""
    return f"docs/results/accuracy-{log}.json"


def all_rows(log: str) -> Callable[[], str]:
    """Every ranker on one log."""

    def written() -> str:
        study = accuracy()[log]
        closes = gaps(study)
        rows = [["counting", *(number(study["floor"][one]) for one in METRICS), "-", "-"]]
        for row in study["rows"]:
            values = [spread(row["metrics"].get(one)) for one in METRICS]
            rows.append([f"`{row['name']}`", *values, change(row), closes[row["name"]]])
        if study["oracle"] is not None:
            rows.append(["oracle", *(number(study["oracle"][one]) for one in METRICS), "-", "-"])
        return table(["", *METRICS.values(), "AUC against TTSN", "gap closed"], rows)

    return written


def to_the_end(log: str) -> Callable[[], str]:
    """The paper's rankers on a log with twice the epochs, beside those of the search."""

    def written() -> str:
        longer, shorter = known(f"accuracy-{log}-longer"), accuracy()[log]
        closes = gaps(longer)
        rows = [
            [
                shown,
                spread(row_of(shorter, name)["metrics"]["ne"]),
                spread(row_of(longer, name)["metrics"]["ne"]),
                ", ".join(str(run["best_epoch"]) for run in row_of(longer, name)["runs"]),
                spread(row_of(longer, name)["metrics"]["gauc"]),
                closes[name],
            ]
            for name, shown in TABLE_B.items()
        ]
        return table(["", "NE, as above", "NE, twice the epochs", "best epochs", "gAUC", "gap closed"], rows)

    return written


def by_size(metric: str = "ne") -> str:
    """The paper's rankers on the medium log with ever more users, and what of the gap LIME closes."""
    studies = [known(f"accuracy-{log}") for log in SIZES]
    rows = [
        [shown, *(spread(row_of(study, name)["metrics"][metric]) for study in studies)]
        for name, shown in TABLE_B.items()
    ]
    rows.insert(0, ["counting", *(number(study["floor"][metric]) for study in studies)])
    rows.append(["oracle", *(number(study["oracle"][metric]) for study in studies)])
    if metric == "ne":
        for lime, skyline in GAPS.items():
            rows.append([f"{TABLE_B[lime]} closes, of TTSN to {skyline}", *(gaps(study)[lime] for study in studies)])
    return table([f"test {METRICS[metric]}", *(of_size(study) for study in studies)], rows)


def closed_by_size() -> str:
    """What of the gap LIME closes, by the size of the log."""
    studies = {log: known(f"accuracy-{log}") for log in SIZES}
    rows = [
        [f"{TABLE_B[lime]}, of TTSN to {skyline}", *(gaps(study)[lime] for study in studies.values())]
        for lime, skyline in GAPS.items()
    ]
    return table(["gap closed", *(f"[{of_size(study)}]({link(log)})" for log, study in studies.items())], rows)


def of_size(study: dict[str, Any]) -> str:
    """What a column of such a log is called."""
    return "{users:,} users, {events:,} events".format_map(study["dataset"]["counts"])


def told_by_size() -> str:
    """What the intervals tell of LIME on these logs, of NE and of gAUC."""
    rows = []
    for first, second in [*AGAINST, *OF_RIVALS]:
        told = [compared(known(f"accuracy-{log}"), first, second) for log in SIZES]
        cells = [
            "-" if found is None else ", ".join(verdict(found[metric], sign) for metric, sign in TOLD.items())
            for found in told
        ]
        rows.append([f"{TABLE_B[first]} against {TABLE_B[second]}", *cells])
    return table(["NE, gAUC", *(f"{times}x" for times in SIZES.values())], rows)


OF_RIVALS = [(lime, rival) for lime in LIME_AGAINST for rival in ("sasrec", "truncated-mha", "lrea")]


def compared(study: dict[str, Any], first: str, second: str) -> dict[str, Any] | None:
    """The intervals of one ranker's differences to another; None where the file has none."""
    found = (one for one in (*study["comparisons"], *study.get("rivals", ())))
    return next((one["metrics"] for one in found if (one["first"], one["second"]) == (first, second)), None)


METRICS = {"auc": "AUC", "ne": "NE", "gauc": "gAUC", "session_auc": "session AUC"}


def row_of(study: dict[str, Any], name: str) -> dict[str, Any]:
    """One row of a study of accuracy."""
    return next(row for row in study["rows"] if row["name"] == name)


def spread(found: dict[str, float] | None) -> str:
    """Mean and standard deviation over seeds."""
    return "-" if found is None else f"{found['mean']:.4f}±{found['deviation']:.4f}"


def number(value: float | None) -> str:
    """Of one that has no spread."""
    return "-" if value is None else f"{value:.4f}"


def change(row: dict[str, Any]) -> str:
    """As the paper prints it."""
    value = row["auc_change_percent"]
    return "-" if value is None else f"{value:+.2f} %"


def gaps(study: dict[str, Any]) -> dict[str, str]:
    """How much of it each row closes, with an interval where the gap itself is clear."""
    opened = AccuracyStudy.model_validate(study)
    return {row.name: gap_words(opened, row).replace("%", " %") for row in opened.rows}


def ratios() -> str:
    """How many times longer the skylines take, beside the paper.

    Where a state can be kept both sides stand with and without: a skyline that reads its history anew, beside a LIME
    that does not, would look slower than it has to be.
    """
    study = known("latency")
    threads = max(row["threads"] for row in study["ratios"])
    rows = [
        [
            f"{one['candidates']:,}{', all items' * (one['sweep'] in ('catalog', 'corner'))}",
            f"{one['history']:,}",
            f"{one['qk']:,}",
            f"`{one['lime']}`, {one['lime_state']}",
            f"`{one['skyline']}`, {one['skyline_state']}",
            f"{one['lime_ms']:.3g}",
            f"{one['skyline_ms']:,.3g}" if one["skyline_ms"] < 1000 else f"{one['skyline_ms']:,.0f}",
            f"{one['ratio']:.3g}x" if one["ratio"] < 1000 else f"{one['ratio']:,.0f}x",
            of_paper(one),
        ]
        for one in study["ratios"]
        if one["head"] and one["threads"] == threads
    ]
    return table(["candidates", "history", "QK", "LIME", "skyline", "ms", "skyline ms", "ratio", "paper's"], rows)


def of_paper(one: dict[str, Any]) -> str:
    """The paper's ratio, which measured no cached state."""
    cached = "cached" in (one["lime_state"], one["skyline_state"])
    return "-" if one["paper"] is None or cached else f"{one['paper']:.1f}x"


def second_thread() -> str:
    """How many times faster a request is on all threads than on one, by ranker; sizes where it is slower."""
    study = known("latency")
    rows = []
    for model in study["models"]:
        gained = gains(study, model)
        longest = [gain for size, gain in gained.items() if size[2] == max(one[2] for one in gained)]
        rows.append(
            [
                f"`{model}`",
                f"{median(gained.values()):.2f}",
                f"{min(gained.values()):.2f} to {max(gained.values()):.2f}",
                f"{sum(gain < 1 for gain in gained.values())} of {len(gained)}",
                f"{min(longest):.2f} to {max(longest):.2f}",
            ]
        )
    events = max(row["history"] for row in study["rows"])
    return table(["", "median", "least to most", "sizes where two are slower", f"behind {events:,} events"], rows)


def gains(study: dict[str, Any], model: str) -> dict[tuple[Any, ...], float]:
    """Time on one thread divided by time on the most, by sweep, candidates, history and width."""
    times: dict[tuple[Any, ...], dict[int, float]] = {}
    for row in study["rows"]:
        if row["model"] == model and row["head"] and row["user_state"] == "computed":
            size = (row["sweep"], row["candidates"], row["history"], row["qk"])
            times.setdefault(size, {})[row["threads"]] = row["total_ms"]
    return {size: own[1] / own[max(own)] for size, own in times.items()}


MACHINES = ("latency", "latency-second-machine")


def goals() -> str:
    """What was wanted of latency, and what came of it on each machine that was tried."""
    studies = [known(name) for name in MACHINES]
    found = [{one["name"]: one for one in study["goals"]} for study in studies]
    rows = [
        [f"{one['name']}: {one['goal']}", *(judged(by_name[one["name"]]) for by_name in found)]
        for one in studies[0]["goals"]
    ]
    return table(["goal", *(processor(study) for study in studies)], rows)


def judged(goal: dict[str, Any]) -> str:
    """A figure, and whether it is what was wanted."""
    return f"{goal['measured']}, {'reached' if goal['reached'] else '**not reached**'}"


def processor(study: dict[str, Any]) -> str:
    """Of the machine that a study was made on, in short."""
    return " ".join(study["made"]["machine"]["processor"].replace("(R)", "").split()[:2])


def growths() -> str:
    """How rankers grow: claimed, counted and measured."""
    rows = [
        [
            f"`{one['model']}`",
            one["claimed"] or "-",
            *(
                exponent(one[along][kind])
                for along in ("along_n", "along_m")
                for kind in ("claimed", "counted", "measured")
            ),
            exponent(one["along_n"]["measured_interact"]),
        ]
        for one in known("complexity")["rows"]
    ]
    heads = [f"{kind} in {size}" for size in ("N", "M") for kind in ("claimed", "counted", "measured")]
    return table(["", "the paper says", *heads, "interaction in N"], rows)


def exponent(value: float | None) -> str:
    """Of time or work against a size."""
    return "-" if value is None else f"{value:.2f}"


def spectra() -> str:
    """How many singular values hold most of an attention matrix, or of links."""
    study = known("spectrum")
    links, rows = str(study["links"]), []
    for one in study["spectra"]:
        squares, plain, effective = one["energies"]["frobenius"], one["energies"]["nuclear"], one["effective_rank"]
        needed = squares["rank_for_90"]
        rows.append(
            [
                one["source"],
                one["matrix"],
                f"{one['rows']:,} x {one['columns']:,}",
                f"{needed['mean']:.1f} ({needed['low']:.0f} to {needed['high']:.0f})",
                f"{plain['rank_for_90']['mean']:.1f}",
                *(f"{energy['at_rank'][links]['mean']:.0%}".replace("%", " %") for energy in (squares, plain)),
                f"{effective['mean']:.1f}±{effective['sd']:.1f}",
            ]
        )
    kinds = ("squares", "values")
    columns = [*(f"for 90 % of the sum of {kind}" for kind in kinds), *(f"{links} hold, of {kind}" for kind in kinds)]
    return table(["of", "matrix", "size", *columns, "effective rank"], rows)


def ranks_by_links() -> str:
    """Of how many directions links and the product of their weights are, by the number of links."""
    by_links = known("spectrum")["by_links"]
    counts = sorted({one["links"] for one in by_links})
    rows = []
    for ranker, matrix in dict.fromkeys((one["ranker"], own["matrix"]) for one in by_links for own in one["matrices"]):
        found = {
            one["links"]: own["effective_rank"]
            for one in by_links
            for own in one["matrices"]
            if (one["ranker"], own["matrix"]) == (ranker, matrix)
        }
        rows.append(
            [f"`{ranker}`", matrix, *(f"{found[count]['mean']:.1f}±{found[count]['sd']:.1f}" for count in counts)]
        )
    for ranker in dict.fromkeys(one["ranker"] for one in by_links):
        errors = {one["links"]: next(iter(one["ne"].values())) for one in by_links if one["ranker"] == ranker}
        rows.append([f"`{ranker}`", "test NE", *(f"{errors[count]:.4f}" for count in counts)])
    return table(["", "effective rank of", *(f"{count} links" for count in counts)], rows)


def links_needed() -> str:
    """How much of the gap a number of links closes, by the topics of the log."""
    gaps = known("scaling")["gaps"]
    links = sorted({one["links"] for one in gaps})
    rows = []
    for model, skyline, topics in dict.fromkeys((one["model"], one["skyline"], one["topics"]) for one in gaps):
        own = {one["links"]: one for one in gaps if (one["model"], one["topics"]) == (model, topics)}
        rows.append([f"`{model}`", f"`{skyline}`", str(topics), *(closed(own[count]) for count in links)])
    return table(["", "skyline", "topics", *(f"{count} links" for count in links)], rows)


def closed(one: dict[str, Any]) -> str:
    """Of NE averaged over seeds, and between which values single seeds lie."""
    if one["of_means"] is None:
        return "no gap"
    between = f" ({min(one['closed']):.0%} to {max(one['closed']):.0%})" if len(one["closed"]) > 1 else ""
    return f"{one['of_means']:.0%}{between}".replace("%", " %")


def sizes() -> str:
    """Test NE of the grid: histories by links."""
    cells = known("scaling")["cells"]
    links = sorted({one["links"] for one in cells})
    rows = []
    for model in dict.fromkeys(one["model"] for one in cells):
        own = [one for one in cells if one["model"] == model]
        depths = [one["layers"] for one in own]
        usual = max(depths, key=depths.count)
        for history in sorted({one["history"] for one in own}):
            found = [
                [o["ne"] for o in own if (o["history"], o["links"], o["layers"]) == (history, count, usual)]
                for count in links
            ]
            rows.append([f"`{model}`", str(history), *(f"{sum(ne) / len(ne):.4f}" if ne else "-" for ne in found)])
    return table(["", "history", *(f"{count} links" for count in links)], rows)


def doublings() -> str:
    """What a doubling is worth, and how sure that is; each term by the simplest fit of the grid that has it."""
    rows = []
    for model, fits in known("scaling")["fits"].items():
        told_before = {"1"}
        for fit in fits:
            own = [one for one in fit["coefficients"] if one["term"] not in told_before]
            told_before.update(one["term"] for one in own)
            for one in own:
                told = [f"{one['value']:+.4f}", f"{one['error']:.4f}", f"{fit['r_squared']:.2f}", str(fit["points"])]
                rows.append([f"`{model}`", fit["formula"], one["term"], *told])
    return table(["", "fit", "term", "coefficient", "standard error", "r²", "trainings"], rows)


def depths() -> str:
    """Test NE by the number of layers, at the largest size of the grid."""
    cells = [one for one in known("scaling")["cells"] if one["layers"] is not None]
    largest = max((one["history"], one["links"]) for one in cells)
    rows = []
    for layers in sorted({one["layers"] for one in cells}):
        ne = [one["ne"] for one in cells if (one["history"], one["links"], one["layers"]) == (*largest, layers)]
        mean, between = f"{sum(ne) / len(ne):.4f}", f"{min(ne):.4f} to {max(ne):.4f}"
        rows.append([f"`{cells[0]['model']}`", str(layers), mean, between])
    return table(["", "layers", "test NE", "seeds"], rows)


def variants() -> str:
    """What each change does to the test NE."""
    rows = []
    for one in known("ablation")["compared"]:
        ne = one["ne"]
        said = "-" if ne is None else f"{ne['mean']:+.4f} ({ne['low']:+.4f} to {ne['high']:+.4f})"
        rows.append([one["group"], f"`{one['base'].split('-seed')[0]}`", one["name"], said, one["verdict"]])
    return table(["", "base", "change", "NE, difference to the base", ""], rows)


def kernel_errors() -> str:
    """How near each method comes to the skyline's weights."""
    kernel = known("ablation")["kernel"]
    ranks = sorted({one["asked_rank"] for one in kernel["rows"]})
    rows = []
    for method in dict.fromkeys(one["method"] for one in kernel["rows"]):
        own = {
            one["asked_rank"]: sum(one["errors"]) / len(one["errors"])
            for one in kernel["rows"]
            if one["method"] == method
        }
        rows.append([method, *(f"{own[rank]:.3f}" if rank in own else "-" for rank in ranks)])
    return table(["", *(f"rank {rank}" for rank in ranks)], rows)


def serving_costs() -> str:
    """What rankers of equal rank cost in serving."""
    rows = [
        [
            f"`{one['model']}`",
            f"{one['user_ms']:.2f}",
            f"{one['us_per_candidate']:.2f}",
            f"{one['bytes_per_item']:,}",
            f"{one['bytes_per_user']:,}",
            "-" if one["kept_bytes"] is None else f"{one['kept_bytes']:,}",
            f"{one['append_us']:,.0f}{'' if one['appended'] else ' (all read again)'}",
        ]
        for one in known("ablation")["costs"]
    ]
    columns = ["", "user stage, ms", "a candidate, µs", "bytes an item", "bytes a user", "bytes kept to append"]
    return table([*columns, "one event more, µs"], rows)


def precisions() -> str:
    """What item rows of fewer bytes cost in accuracy."""
    rows = [
        [f"`{one['model']}`", one["row_type"], one["refused"], *["-"] * 3]
        if one["refused"]
        else [
            f"`{one['model']}`",
            one["row_type"],
            f"{one['bytes_per_item']:,}",
            "-" if one["ne"] is None else f"{one['ne']['mean']:+.6f}",
            "-" if one["largest_difference"] is None else f"{one['largest_difference']:.5f}",
            "-" if one["top_100"] is None else f"{one['top_100']:.1%}".replace("%", " %"),
        ]
        for one in known("ablation")["rows"]
    ]
    return table(["", "rows", "bytes an item", "NE", "largest difference of a probability", "same top 100"], rows)


def known(name: str) -> dict[str, Any]:
    """A study that was made."""
    found = result(name)
    if found is None:
        raise SystemExit(f"docs/results/{name}.json is not there; python benchmarks/results.py {name}")
    return found


WRITERS: dict[str, tuple[Path, Callable[[], str]]] = {
    "accuracy of the paper's rankers": (README, paper_rows),
    "what can be told": (README, told_apart),
    **{f"accuracy-{log}": (EVIDENCE, all_rows(log)) for log in LOGS},
    **{f"accuracy-{log}-longer": (EVIDENCE, to_the_end(log)) for log in LONGER},
    "larger log": (EVIDENCE, by_size),
    "larger log: gAUC": (EVIDENCE, lambda: by_size("gauc")),
    "larger log: told": (EVIDENCE, told_by_size),
    "gap by size": (README, closed_by_size),
    "latency ratios": (EVIDENCE, ratios),
    "latency: second thread": (EVIDENCE, second_thread),
    "latency goals": (EVIDENCE, goals),
    "complexity": (EVIDENCE, growths),
    "spectrum": (EVIDENCE, spectra),
    "spectrum: links": (EVIDENCE, ranks_by_links),
    "scaling: links and topics": (EVIDENCE, links_needed),
    "scaling: links and history": (EVIDENCE, sizes),
    "scaling: fits": (EVIDENCE, doublings),
    "scaling: layers": (EVIDENCE, depths),
    "ablation": (EVIDENCE, variants),
    "ablation: kernels": (EVIDENCE, kernel_errors),
    "ablation: costs": (EVIDENCE, serving_costs),
    "ablation: rows": (EVIDENCE, precisions),
    "engine: goals": (BENCHMARKS, lambda: engine(["goal", "measured", ""], engine_tables.goals)),
    "engine: large": (
        BENCHMARKS,
        lambda: engine(
            ["path", "threads", "beside a busy process", "interact", "total", "total, least to most"],
            engine_tables.large,
        ),
    ),
    "engine: industrial": (BENCHMARKS, lambda: engine(REQUEST, engine_tables.of_group, "industrial")),
    "engine: small": (BENCHMARKS, lambda: engine(REQUEST, engine_tables.of_group, "small")),
    "engine: others": (BENCHMARKS, lambda: engine(["", ""], engine_tables.others)),
    "engine: summary": (COMPUTED, lambda: engine(["request", "user", "interact", "total"], engine_tables.summary)),
}


REQUEST = ["ranker", "candidates", "history", "path", "user state", "threads", "user", "interact", "total"]


def engine(columns: Sequence[str], rows: Callable[..., Iterable[list[str]]], *which: str) -> str:
    """A table of the engine's benchmark."""
    return table(columns, list(rows(known("bench-engine"), *which)))


def wanted() -> dict[str, tuple[Path, Callable[[], str]]]:
    """The tables that a page has marks for."""
    return {name: (page, write) for name, (page, write) in WRITERS.items() if f"<!-- {name} -->" in page.read_text()}


def written(page: str, name: str) -> str:
    """The page with one table as the results have it."""
    old = section(page, name)
    return page[: old.start(2)] + WRITERS[name][1]() + page[old.end(2) :]


if __name__ == "__main__":
    for name, (page, _) in wanted().items():
        page.write_text(written(page.read_text(), name))
