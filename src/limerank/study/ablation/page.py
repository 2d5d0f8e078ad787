"""The page of `study ablation`."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, stdev
from typing import Any

from limerank.metrics import Metrics
from limerank.report.charts import line_chart
from limerank.report.intervals import interval_chart
from limerank.report.page import Chart, Page
from limerank.study.ablation.differences import Paired
from limerank.study.ablation.kernel_error import BOUND, RANKER_OF
from limerank.study.ablation.results import AblationStudy, Compared, KernelStudy, values
from limerank.study.ablation.variants import LINEAR, ROWS

TITLE = "Ablations of LIME, and linear attention at equal rank"

SHOWN = (0, 2, 5, 8, 3, 4)
"""Columns of a comparison that stand on the page, what matters most first; the table behind the chart has all."""
QUESTIONS = {
    "keys": "Decoupled or coupled keys",
    "links": "How many links",
    "link-start": "How links start",
    "start": "How queries and keys start",
    "norm": "LayerNorm before the projections",
    "activation": "Softmax or SiLU",
    "context": "Where the context enters",
    "age": "What is known of an event's position and age",
    "order": "Who reads first in a layer",
    "output": "Gated or concatenated output of a layer",
    "readout": "What is read out of the layers",
    "layers": "How many XOR layers",
}
MEANINGS = {
    "keys": "LIME's candidates are compared with the raw links, so their weights are cached per item. PMA compares "
    "them with what the links have read: its keys depend on the user, and only a query can be cached. This is what "
    "decoupling gives up, or does not.",
    "links": "The base's number of links, fewer and more. The cache of an item is heads times links numbers.",
    "link-start": "The paper draws links from N(0, 1). Every projection is behind a LayerNorm, which takes most of the "
    "scale away again; the residual around the context's MLP sees it. "
    "Links as items: LN(T) of items of the train part that differ most, through the tower before its first step.",
    "start": "By default queries and keys start from one rotation, queries scaled by the sharpness 3, so that like "
    "attends to like from the first step. Xavier starts them independently of each other; the paper does not say.",
    "norm": "The paper puts a LayerNorm before every projection. Without it the scale of scores is "
    "what embeddings make it. Without the one before the values of personalized links alone, scores stay as they are, "
    "and candidates read how large what the links have read is, such as how often events like them were clicked.",
    "activation": "The weights of candidates for links, and in LIME-XOR the weights inside the layers.",
    "context": "The base is the paper's: user and request features enter the links before they read the history. "
    "After: they enter what the links have read, which can then be kept between requests. In the head only: not at "
    "all. The head reads them in every variant.",
    "age": "The paper's formulas do not see order or time; the base has neither.",
    "order": "LIME-XOR's sides both read the old states of the other. In ISAB the history reads the links "
    "just updated.",
    "output": "LN(O) * U, or [U, O, LN(O) * U] as HSTU's authors have it.",
    "readout": "What the layers added to the links (the paper's sum), or the links with it.",
    "layers": "History meets history from the third layer on.",
}


def fill(page: Page, result: AblationStudy) -> None:
    """Everything but how it was made."""
    seeds = len(result.made.seeds)
    page.paragraph(
        f"Dataset {result.dataset}, {result.events:,} events, task '{result.task}', test part. Every variant is "
        f"trained from the same {seeds} seed{'s' * (seeds > 1)} as its base, on the same data in the same order, with "
        "the same training configuration. A difference is variant minus base, seed by seed; the interval is Student's "
        "95 % of their mean. Normalized entropy (NE): lower is better. Where the interval holds zero, or there is only "
        "one seed, the verdict is that it cannot be told."
    )
    if result.compared:
        _summary(page, result)
    for group in result.groups:
        if group == ROWS:
            _rows(page, result)
        elif group == LINEAR:
            _linear(page, result)
        elif result.in_group(group):
            page.heading(QUESTIONS[group])
            page.paragraph(MEANINGS[group])
            _compared(page, result, result.in_group(group))


def _summary(page: Page, result: AblationStudy) -> None:
    page.heading("In short")
    for verdict, said in (("better", "Better than the base"), ("worse", "Worse than the base")):
        found = [f"{one.name} ({one.base}, {_signed(one.ne)})" for one in result.compared if one.verdict == verdict]
        page.paragraph(f"{said}, by NE: {'; '.join(found) or 'none'}.")
    rest = sum(one.verdict == "cannot be told" for one in result.compared)
    page.paragraph(f"Of {len(result.compared)} variants, {rest} cannot be told from their base.")


def _compared(page: Page, result: AblationStudy, compared: Sequence[Compared]) -> None:
    for base in dict.fromkeys(one.base for one in compared):
        mine = [one for one in compared if one.base == base]
        rows = [_line("base", base, result), *(_line(one.name, one.key, result, one) for one in mine)]
        columns = [
            "variant",
            "changed",
            "NE",
            "AUC",
            "gAUC",
            "NE - base",
            "interval",
            "by seed",
            "verdict",
            "parameters",
        ]
        ends = {one.name: _ends(one.ne) for one in mine}
        svg = interval_chart(ends, x=f"NE - NE of {base}, lower is better", reference=0.0)
        page.charts([Chart(svg, f"Difference to {base}, 95 % over seeds", columns, rows)])
        page.table([columns[at] for at in SHOWN], [[row[at] for at in SHOWN] for row in rows], style="words")


def _line(name: str, key: str, result: AblationStudy, one: Compared | None = None) -> list[object]:
    trained = result.of(key)
    shown: list[object] = [
        name,
        "-" if one is None else _changes(one.changed),
        *(spread(trained.test, metric) for metric in ("ne", "auc", "gauc")),
    ]
    ne = None if one is None else one.ne
    by_seed = "-" if ne is None else ", ".join(f"{value:+.4f}" for value in ne.differences)
    verdict = "-" if one is None else one.verdict
    return [*shown, _signed(ne), _interval(ne), by_seed, verdict, f"{trained.parameters:,}"]


def _rows(page: Page, result: AblationStudy) -> None:
    page.heading("Precision of item rows")
    page.paragraph(
        "Nothing is trained here: the item rows of each base's runs are stored in three types, and the test part is "
        "scored from them as the engine does. The best 10 and 100 are of the whole catalog, as fractions of those that "
        "fp32 rows give."
    )
    page.table(
        ["ranker", "rows", "bytes per item", "NE", "NE - fp32", "largest |p - p of fp32|", "best 10", "best 100"],
        [
            [
                one.model,
                one.row_type,
                f"{one.bytes_per_item:,}" if one.bytes_per_item is not None else one.refused or "-",
                spread(one.test, "ne"),
                "-" if one.ne is None else f"{one.ne.mean:+.2e}",
                "-" if one.largest_difference is None else f"{one.largest_difference:.2e}",
                *("-" if kept is None else f"{kept:.2%}" for kept in (one.top_10, one.top_100)),
            ]
            for one in result.rows
        ],
    )


def _linear(page: Page, result: AblationStudy) -> None:
    page.heading("Linear attention at equal rank")
    page.paragraph(
        "Rankers whose candidates cost the same whatever the length of the history, at equal size: as many features, "
        f"mixtures, recent events or seeds as LIME-MHA has links ({result.links}), or rows of as many numbers as "
        "LIME's (heads times links) for linear-attention, lrea and lightning. MHA, the skyline, reads everything."
    )
    if result.in_group(LINEAR):
        _compared(page, result, result.in_group(LINEAR))
    if result.kernel is not None:
        _kernels(page, result, result.kernel)
    if result.costs:
        _costs(page, result)


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
        f"One request with {first.history:,} events and {first.candidates:,} candidates, one thread, rows in fp16, "
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
        ["ranker", "bytes per item", "bytes per user", "kept to grow", "path"],
        [
            [
                cost.model,
                f"{cost.bytes_per_item:,}",
                f"{cost.bytes_per_user:,}",
                "-" if cost.kept_bytes is None else f"{cost.kept_bytes:,}",
                cost.path,
            ]
            for cost in result.costs
        ],
    )


def spread(metrics: Sequence[Metrics], name: str) -> str:
    """Mean and standard deviation over seeds."""
    known = [value for value in values(metrics, name) if value is not None]
    if not known:
        return "-"
    return f"{mean(known):.4f} ± {stdev(known):.4f}" if len(known) > 1 else f"{known[0]:.4f}"


def _ends(one: Paired | None) -> tuple[float, float, float]:
    if one is None:
        return (float("nan"),) * 3
    low = one.mean if one.low is None else one.low
    return low, one.mean, one.mean if one.high is None else one.high


def _interval(one: Paired | None) -> str:
    return "-" if one is None or one.low is None or one.high is None else f"{one.low:+.4f} to {one.high:+.4f}"


def _signed(one: Paired | None) -> str:
    return "-" if one is None else f"{one.mean:+.4f}"


def _changes(changed: dict[str, tuple[Any, Any]]) -> str:
    return ", ".join(f"{option}: {before} -> {after}" for option, (before, after) in changed.items())


def _draws(errors: Sequence[float]) -> str:
    return "-" if len(errors) == 1 else f"{min(errors):.4f} to {max(errors):.4f}"
