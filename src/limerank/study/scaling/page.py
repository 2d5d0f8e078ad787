"""The page of `study scaling`."""

from __future__ import annotations

from statistics import mean, stdev

from limerank.report.charts import Points, line_chart
from limerank.report.heat import heat_map
from limerank.report.page import Chart, Page
from limerank.study.scaling import paper
from limerank.study.scaling.results import ENOUGH, Change, Gap, ScalingStudy, said

TITLE = "What history, links and layers are worth"


def fill(page: Page, result: ScalingStudy) -> None:
    """Findings, the grid, depths, fits, interests, the paper's tables."""
    page.paragraph(_finding(result), "lead")
    if result.cells:
        _grid(page, result)
        _depths(page, result)
        _fits(page, result)
    if result.gaps:
        _interests(page, result)
    _paper(page)


def _finding(result: ScalingStudy) -> str:
    parts = []
    for model in result.models():
        (history, links), change = list(result.grid(model).items())[-1]
        parts.append(f"{model} with {links} links over {history:,} events: NE {said(change.ne)} %")
    words = f"Against the smallest cell of the grid, {'; '.join(parts)}. " if parts else ""
    for model in dict.fromkeys(gap.model for gap in result.gaps):
        needed = ", ".join(f"{_needed(result, model, topics)} for {topics}" for topics in _topics(result, model))
        words += f"Links that {model} needs to close {ENOUGH:.0%} of its gap, by topics of the log: {needed}. "
    return words.strip()


def _grid(page: Page, result: ScalingStudy) -> None:
    page.heading("History length by links")
    page.paragraph(
        f"Dataset '{result.dataset}', task '{result.task}', seeds: {len(result.made.seeds)}. Change in percent against "
        "the smallest cell of the same ranker and the same seed, then the mean over seeds; below zero is better for "
        "NE, above zero for AUC."
    )
    charts = []
    for model in result.models():
        grid = result.grid(model)
        for metric, lower in (("NE", True), ("AUC", False)):
            values = {
                (f"{history:,}", str(links)): round(mean(_of(change, metric)), 3)
                for (history, links), change in grid.items()
            }
            svg = heat_map(values, rows="events", columns="links", lower_is_better=lower)
            rows = [
                [
                    f"{history:,}",
                    links,
                    said(_of(change, metric), 3),
                    ", ".join(f"{v:+.3f}" for v in _of(change, metric)),
                ]
                for (history, links), change in grid.items()
            ]
            columns = ["events", "links", "change %, mean ± sd", "by seed"]
            charts.append(Chart(svg, f"{model}: change of {metric} in percent.", columns, rows))
    page.charts(charts)


def _depths(page: Page, result: ScalingStudy) -> None:
    for model in result.models():
        depths, at = result.depths(model), result.depths_at(model)
        if not depths or at is None:
            continue
        page.heading(f"Layers of {model}")
        page.paragraph(f"At {at[0]:,} events and {at[1]} links, against the fewest layers of the same seed.")
        page.table(
            ["layers", "NE change %", "AUC change %"],
            [[layers, said(change.ne, 3), said(change.auc, 3)] for layers, change in depths.items()],
        )


def _fits(page: Page, result: ScalingStudy) -> None:
    page.heading("A fit, and what it is worth")
    rows = []
    for model, fits in result.fits.items():
        for fit in fits:
            terms = [
                f"{one.term}: {one.value:+.5f}" + ("" if one.error is None else f" ± {one.error:.5f}")
                for one in fit.coefficients
                if one.term != "1"
            ]
            r_squared = "-" if fit.r_squared is None else f"{fit.r_squared:.2f}"
            left = "-" if fit.residual_sd is None else f"{fit.residual_sd:.5f}"
            rows.append([model, fit.formula, "; ".join(terms), r_squared, left, fit.points])
    columns = ["ranker", "formula", "for a doubling, ± standard error", "r²", "left over", "points"]
    page.table(columns, rows, style="words")
    page.paragraph(
        "Least squares over all cells and seeds; l links, N events, n layers. A coefficient is the change of NE for a "
        "doubling, below zero is better. That of the product says whether links are worth more with longer histories, "
        "as the paper claims (then it is below zero). One that is not several times its error is not known to differ "
        "from zero; errors take cells of one seed as independent, which they are not quite."
    )


def _interests(page: Page, result: ScalingStudy) -> None:
    page.heading("How many links do interests need?")
    page.paragraph(
        "Simulated logs that differ in their number of topics only. The fraction of the NE gap from TTSN to the "
        "skyline (MHA for LIME-MHA, HSTU for LIME-XOR) that a ranker closes, by its links: 1 is as good as the "
        "skyline. It is of NE averaged over seeds; fractions of single seeds are beside it, of seeds that have a gap."
    )
    charts = []
    for model in dict.fromkeys(gap.model for gap in result.gaps):
        own = [gap for gap in result.gaps if gap.model == model]
        series: dict[str, Points] = {
            f"{topics} topics": [
                (gap.links, gap.of_means) for gap in own if gap.topics == topics and gap.of_means is not None
            ]
            for topics in _topics(result, model)
        }
        ends = [gap.links for gap in own]
        reference: dict[str, Points] = {f"{ENOUGH:.0%}": [(min(ends), ENOUGH), (max(ends), ENOUGH)]}
        svg = line_chart(series, x="links", y="gap closed", references=reference)
        rows = [[gap.topics, gap.links, _fraction(gap), ", ".join(f"{v:.3f}" for v in gap.closed)] for gap in own]
        columns = ["topics", "links", "closed", "by seed"]
        charts.append(Chart(svg, f"{model} between TTSN and {own[0].skyline}.", columns, rows))
    page.charts(charts)
    links = sorted({gap.links for gap in result.gaps})
    closed = {(gap.model, gap.topics, gap.links): _fraction(gap) for gap in result.gaps}
    page.table(
        ["ranker", "topics", *(f"l = {count}" for count in links), f"smallest l for {ENOUGH:.0%}"],
        [
            [
                model,
                topics,
                *(closed.get((model, topics, count), "-") for count in links),
                _needed(result, model, topics),
            ]
            for model in dict.fromkeys(gap.model for gap in result.gaps)
            for topics in _topics(result, model)
        ],
    )


def _paper(page: Page) -> None:
    page.heading("The paper's tables")
    page.paragraph(
        "Not ours: LIME-XOR on the paper's industrial data, other metrics (VC NE, WT AUC), other sizes. It prints "
        "changes only, though its caption promises values too, and neither seeds nor spread."
    )
    for name, changes in (("VC NE", paper.NE_CHANGES), ("WT AUC", paper.AUC_CHANGES)):
        page.table(
            [f"{name} change %, events", *(f"{links} links" for links in paper.LINKS)],
            [[f"{history:,}", *(f"{value:+.2f}" for value in row)] for history, row in changes.items()],
        )
    page.table(
        ["layers", "VC NE change %", "WT AUC change %"],
        [[layers, f"{ne:+.2f}", f"{auc:+.2f}"] for layers, (ne, auc) in paper.LAYER_CHANGES.items()],
    )


def _fraction(gap: Gap) -> str:
    """Of means, with the deviation over seeds."""
    spread = f" ± {stdev(gap.closed):.3f}" if len(gap.closed) > 1 else ""
    return "no gap" if gap.of_means is None else f"{gap.of_means:.3f}{spread}"


def _of(change: Change, metric: str) -> list[float]:
    return change.ne if metric == "NE" else change.auc


def _topics(result: ScalingStudy, model: str) -> list[int]:
    return sorted({gap.topics for gap in result.gaps if gap.model == model})


def _needed(result: ScalingStudy, model: str, topics: int) -> str:
    needed = result.links_needed(model, topics)
    tried = max(gap.links for gap in result.gaps if (gap.model, gap.topics) == (model, topics))
    return str(needed) if needed is not None else f"more than {tried}"
