"""The part of the ablation's page on linear attention at equal rank: accuracy, kernel errors, costs."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from limerank.report.charts import line_chart
from limerank.report.page import Chart, Page
from limerank.study.ablation.linear.kernel_error import BOUND, RANKER_OF
from limerank.study.ablation.results import AblationStudy, Found, KernelStudy, values
from limerank.study.ablation.tables import compared_tables, spread
from limerank.study.ablation.variants import LINEAR


def linear_section(page: Page, result: AblationStudy) -> None:
    """All of it."""
    page.heading("Linear attention at equal rank")
    page.paragraph(
        "Rankers whose candidates cost the same whatever the length of the history, at equal size: as many features, "
        f"mixtures, recent events or seeds as LIME-MHA has links ({result.links}), or rows of as many numbers as "
        "LIME's (heads times links) for linear-attention, lrea and lightning. MHA, the skyline, reads everything."
    )
    if result.in_group(LINEAR):
        if result.found is not None:
            _found(page, result, result.found)
        compared_tables(page, result, result.in_group(LINEAR))
    if result.kernel is not None:
        _kernels(page, result, result.kernel)
    if result.costs:
        _costs(page, result)


def _found(page: Page, result: AblationStudy, found: Found) -> None:
    page.paragraph(
        f"Each is trained with what {found.trials_per_row} trials found for it on the validation part of {found.log} "
        f"({found.file}), the base too; where nothing is named, the training of all won."
    )
    keys = dict.fromkeys(key for one in result.in_group(LINEAR) for key in (one.base, one.key))
    rows = []
    for one in map(result.of, keys):
        chosen = ", ".join(f"{name} {value}" for name, value in one.chosen.items())
        rows.append([one.model["name"], chosen or "as configured"])
    page.table(["ranker", "found for it"], rows, style="words")


def _kernels(page: Page, result: AblationStudy, kernel: KernelStudy) -> None:
    page.heading("Kernel error against the skyline's weights")
    page.paragraph(
        f"The trained MHA skyline ({kernel.skyline}) gives attention weights A(T, E), a matrix of {kernel.candidates} "
        f"candidates by {kernel.history} events for each of {kernel.requests} test requests and {kernel.heads} heads "
        f"of width {kernel.head_width}. Each method gives a matrix A' of rank at most r in its place. The error is "
        "||A - A'|| / ||A|| in the Frobenius norm, the mean over requests and heads; 0 is exact, 1 is what zeros give. "
        "The best matrix of rank r is the truncated SVD, taken for each request and head by itself: no method of that "
        f"rank can be below it. {kernel.rank_of_90_percent:.1f} singular values hold 90 % of ||A||² on average."
    )
    page.paragraph(
        "LIME's is A(T, L) A(L, E), links L the same for all users: random events, centers of events by k-means, links "
        "fitted with the skyline's projections frozen, or links with projections of their own in both stages, as the "
        "ranker has. Nyström puts the pseudo-inverse of A(L, L) in between. Performer has random features (mean of "
        "several draws), Linformer mixtures of positions, linear attention elu + 1 of the skyline's queries and keys "
        "(rank: the width of a head) or of fitted ones, LREA no softmax. Truncation reads the r newest events. What is "
        f"fitted is fitted by Adam in {kernel.fit_steps} steps on {kernel.fitted_on} requests of the train part, with "
        "the best of three learning rates by the error there."
    )
    series = {name: [(row.asked_rank, row.error) for row in kernel.of(name)] for name in kernel.methods()}
    columns = ["method", "r", "rank at most", "error", "draws: lowest to highest", "fitted"]
    rows = [
        [row.method, row.asked_rank, row.rank, f"{row.error:.4f}", _draws(row.errors), "yes" if row.fitted else "no"]
        for name in kernel.methods()
        for row in kernel.of(name)
    ]
    shown = {name: points for name, points in series.items() if name in (*RANKER_OF, "LIME, links fitted")}
    page.charts(
        [
            Chart(
                line_chart(shown, x="rank r", y="kernel error", references={BOUND: series[BOUND]}),
                "Kernel error against rank, of what the rankers can learn",
                columns,
                rows,
            ),
            _accuracy_against_error(result, kernel),
        ]
    )
    ranks = sorted({row.asked_rank for row in kernel.rows})
    table = []
    for name in kernel.methods():
        found = {row.asked_rank: row.error for row in kernel.of(name)}
        table.append([name, *(f"{found[rank]:.3f}" for rank in ranks)])
    page.table(["kernel error", *(f"r = {rank}" for rank in ranks)], table)


def _accuracy_against_error(result: AblationStudy, kernel: KernelStudy) -> Chart:
    """NE of the trained ranker by the error of its kernel, at the study's rank or the largest below it."""
    ranks = sorted({row.asked_rank for row in kernel.rows})
    rank = max((r for r in ranks if r <= result.links), default=ranks[0])
    keys = {one.model["name"]: one for one in result.trained if one.key in _linear_keys(result)}
    points, rows = {}, []
    for method, ranker in (*RANKER_OF.items(), (None, "mha")):
        error = 0.0 if method is None else getattr(kernel.at(method, rank), "error", None)
        ne = [value for value in values(keys[ranker].test, "ne") if value is not None] if ranker in keys else []
        if error is not None and ne:
            points[ranker] = [(error, mean(ne))]
            rows.append([ranker, method or "the skyline itself", f"{error:.4f}", spread(keys[ranker].test, "ne")])
    svg = line_chart(points, x=f"kernel error at r = {rank}", y="test NE")
    caption = "Accuracy of trained rankers against the error of their kernels: lower left is better"
    return Chart(svg, caption, ["ranker", "kernel", "error", "NE"], rows)


def _linear_keys(result: AblationStudy) -> set[str]:
    group = result.in_group(LINEAR)
    return {one.key for one in group} | {one.base for one in group}


def _costs(page: Page, result: AblationStudy) -> None:
    first = result.costs[0]
    page.heading("What they cost")
    page.paragraph(
        f"One request with {first.history:,} events and {first.candidates:,} candidates, one thread, "
        "medians of CPU time of interleaved rounds in this process. One event more: from the event to a state that "
        "candidates can read, by growing a kept state where the ranker has one, else by reading the history again."
    )
    page.table(
        ["ranker", "user stage ms", "µs per candidate", "one event more, µs", ""],
        [
            [
                cost.model,
                f"{cost.user_ms:.2f}",
                f"{cost.us_per_candidate:.3f}",
                f"{cost.append_us:,.0f}",
                "appended" if cost.appended else "read again",
            ]
            for cost in result.costs
        ],
    )
    page.table(
        ["ranker", "rows", "bytes per item", "bytes per user", "kept to grow", "path"],
        [
            [
                cost.model,
                cost.row_type,
                f"{cost.bytes_per_item:,}",
                f"{cost.bytes_per_user:,}",
                "-" if cost.kept_bytes is None else f"{cost.kept_bytes:,}",
                cost.path,
            ]
            for cost in result.costs
        ],
    )


def _draws(errors: Sequence[float]) -> str:
    return "-" if len(errors) == 1 else f"{min(errors):.4f} to {max(errors):.4f}"
