"""The page of `study ablation`."""

from __future__ import annotations

from limerank.report.page import Page
from limerank.study.ablation.linear.page import linear_section
from limerank.study.ablation.results import AblationStudy
from limerank.study.ablation.tables import compared_tables, signed, spread
from limerank.study.ablation.variants import LINEAR, ROWS

TITLE = "Ablations of LIME, and linear attention at equal rank"

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
        f"the same training configuration{_but_for(result)}. A difference is variant minus base, seed by seed; the "
        "interval is Student's 95 % of their mean. Normalized entropy (NE): lower is better. Where the interval holds "
        "zero, or there is only one seed, the verdict is that it cannot be told."
    )
    if result.kept:
        _kept(page, result)
    if result.compared:
        _summary(page, result)
    for group in result.groups:
        if group == ROWS:
            _rows(page, result)
        elif group == LINEAR:
            linear_section(page, result)
        elif result.in_group(group):
            page.heading(QUESTIONS[group])
            page.paragraph(MEANINGS[group])
            compared_tables(page, result, result.in_group(group))


def _but_for(result: AblationStudy) -> str:
    return "" if result.found is None else ", but for linear attention, where each has what a search found for it"


def _kept(page: Page, result: AblationStudy) -> None:
    page.paragraph("Not everything was made at once: some groups are those of an earlier result.")
    mine = [group for group in result.groups if not any(group in one.groups for one in result.kept)]
    told = [(mine, "this one", result.made), *((one.groups, one.file, one.made) for one in result.kept)]
    page.table(
        ["groups", "of", "started", "revision", "processor"],
        [
            [", ".join(names), file, made.started, (made.revision or "-")[:12], made.machine.get("processor", "-")]
            for names, file, made in told
        ],
        style="words",
    )


def _summary(page: Page, result: AblationStudy) -> None:
    page.heading("In short")
    for verdict, said in (("better", "Better than the base"), ("worse", "Worse than the base")):
        found = [f"{one.name} ({one.base}, {signed(one.ne)})" for one in result.compared if one.verdict == verdict]
        page.paragraph(f"{said}, by NE: {'; '.join(found) or 'none'}.")
    rest = sum(one.verdict == "cannot be told" for one in result.compared)
    page.paragraph(f"Of {len(result.compared)} variants, {rest} cannot be told from their base.")


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
