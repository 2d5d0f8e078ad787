"""The page of the accuracy study."""

from __future__ import annotations

from limerank.report.intervals import interval_chart
from limerank.report.page import Chart, Page
from limerank.study.accuracy import table
from limerank.study.accuracy.gaps import NEAREST
from limerank.study.accuracy.results import AccuracyStudy, RowResult, Search
from limerank.study.paper import LABEL_B, LEADERBOARD_NOTE, LEADERBOARD_OTHERS, TAOBAO_AD

TITLE = "Accuracy"

METHOD = (
    "All rows are trained on the train part of the same dataset with the same code and seeds; the best epoch is that "
    "of the validation part. Metrics are of the test part, exact. gAUC is AUC within a user, weighted by the user's "
    "rows; session AUC is AUC within a request, all requests counting the same; NE is the logloss divided "
    "by that of always predicting the test part's own rate.",
    "The gap is the difference in NE between ttsn and a skyline: hstu for lime-xor, lime-hstu and isab, which have "
    "several layers, mha for all others. 100% is parity with the skyline. It is of NE averaged over seeds; the JSON "
    "file has it by seed, too. A question mark: the gap itself is not clear, its interval over users and seeds holds "
    f"zero or ends nearer to zero than {NEAREST:.0%} of the gap, so that a fraction of it may be anything.",
    "Intervals of differences: a resample draws the users of the test part with replacement, the same for both rows, "
    "and adds what other seeds would have changed: the difference is taken within each seed, and its mean over S seeds "
    "moves like Student's t with S - 1 degrees of freedom. Few seeds therefore make wide intervals. "
    "An interval knows that other users could have come and that other seeds could have been trained, not "
    "that the log could have been another one. A star, or a full marker, says that zero is outside.",
    "Bytes per item are what serving keeps of an item in fp16; bytes per user are the user's state in fp32 with a "
    "history as long as was trained on. Counting is the score of smoothed rates of items and users: a ranker below it "
    "has learned too little. The oracle knows the true probabilities of a simulated log.",
)

SECONDS = (
    "Training seconds are the median over seeds, of trainings side by side on a machine that may have been busy with "
    "other things: their order tells more than their size. The JSON file has them by seed."
)

RIVALS = (
    "LIME against the other rows of the paper's table (b) and against rankers whose cost is linear in the history. Of "
    "twenty differences that are none, one is expected to look clear."
)


def fill(page: Page, result: AccuracyStudy) -> None:
    """What the table shows, the table, differences as pictures, what was searched, and how."""
    page.paragraph(first_sentence(result), "lead")
    page.paragraph("AUC, gAUC and session AUC: higher is better. NE: lower is better.", "small")
    columns, rows = list(table.ACCURACY_COLUMNS), table.accuracy_rows(result)
    page.table(columns, rows)
    if found := table.verdicts(result):
        page.table(["row", "what was found"], list(found.items()), style="words")
    if published := table.published_columns(result):
        _published(page, result, published)
    page.charts(_charts(result))
    page.heading("Differences")
    page.table(list(table.DIFFERENCE_COLUMNS), table.difference_rows(result))
    if result.rivals:
        page.paragraph(RIVALS)
        page.table(list(table.DIFFERENCE_COLUMNS), table.rival_rows(result))
    page.heading("What it cost")
    page.paragraph(SECONDS, "small")
    page.table(list(table.COST_COLUMNS), table.cost_rows(result))
    if result.search is not None:
        _search(page, result)
    page.heading("Method")
    for paragraph in METHOD:
        page.paragraph(paragraph)


def first_sentence(result: AccuracyStudy) -> str:
    """What the table shows."""
    dataset, seeds = result.dataset, len(result.made.seeds)
    searched = "without a search"
    if result.search is not None:
        from_there = f" on {result.search.found_on}" if result.search.found_on is not None else ""
        searched = f"after the same search of {result.search.trials_per_row} trials for each{from_there}"
    return (
        f"The table shows how well {len(result.rows)} rankers predict '{result.task}' on the test part of "
        f"{dataset.name} ({dataset.test_rows:,} rows of {dataset.test_users:,} users), {searched}: mean and standard "
        f"deviation over {seeds} seed{'s' * (seeds > 1)}."
    )


def _published(page: Page, result: AccuracyStudy, columns: list[str]) -> None:
    page.heading("Beside published figures")
    page.paragraph(f"Paper: {LABEL_B}, column {result.dataset.published}.")
    page.table(["row", "AUC", *columns], table.published_rows(result))
    if result.dataset.published == TAOBAO_AD.name:
        others = ", ".join(f"{name} {auc:.4f}" for name, auc in LEADERBOARD_OTHERS.items())
        page.paragraph(f"Public leaderboard: {LEADERBOARD_NOTE}. It also has: {others}.")


def _charts(result: AccuracyStudy) -> list[Chart]:
    charts = [
        Chart(
            interval_chart({row.name: _extremes(row, result.task) for row in result.rows}, x="test NE"),
            "NE of every row: mean, least and largest over seeds; lower is better.",
            ["row", "NE"],
            [[row.name, table.spread_text(row.spread("ne"))] for row in result.rows],
        )
    ]
    compared = {
        one.first: (one.second, found)
        for one in result.comparisons
        if one.role == "skyline" and (found := one.metrics.get("ne")) is not None
    }
    shown = {
        name: (found.low, found.difference, found.high)
        for name, (_, found) in compared.items()
        if found.low is not None and found.high is not None
    }
    if shown:
        charts.append(
            Chart(
                interval_chart(shown, x="test NE minus that of the skyline", reference=0.0),
                f"Each row minus its skyline, {result.level:.0%} intervals over users and seeds; left of zero the "
                "row is better than its skyline.",
                ["row", "skyline", "difference", "interval"],
                [[name, skyline, *table.difference_cells(found)] for name, (skyline, found) in compared.items()],
            )
        )
    return charts


def _search(page: Page, result: AccuracyStudy) -> None:
    search = result.search
    if search is None:
        return
    page.heading("Search, on validation only")
    what = "factors of the learning rate" if search.space is None else f"choices of {', '.join(search.space)}"
    where = f" It was made on {search.found_on} ({search.found_in})." if search.found_in is not None else ""
    page.paragraph(
        f"Every row had {_trials_of(search)} from seed {search.seed}: {what}; the first trial is the row as "
        f"configured. The least NE on the {search.selected_on} part wins, ties go to the earlier "
        f"trial; trials do not look at the test part.{where}"
    )
    page.table(list(table.TRIAL_COLUMNS), table.trial_rows(result))


def _trials_of(search: Search) -> str:
    fewer = [name for name, row in search.rows.items() if len(row.trials) < search.trials_per_row]
    without = f" (fewer where a ranker lacks a key, or it makes the row a variant: {', '.join(fewer)})" if fewer else ""
    return f"the same {search.trials_per_row} trials{without}"


def _extremes(row: RowResult, task: str) -> tuple[float, float, float]:
    """Least, mean and largest NE; NaN where undefined, which charts leave out."""
    values = [run.test[task].ne for run in row.runs]
    known = [value for value in values if value is not None]
    spread = row.spread("ne")
    if spread is None:
        return (float("nan"),) * 3
    return min(known), spread.mean, max(known)
