"""The page of `limerank study logs`: a property a row, a log a column."""

from __future__ import annotations

from collections.abc import Callable

from limerank.report.charts import line_chart
from limerank.report.page import Chart, Page
from limerank.study.logs.results import LogsStudy, Properties

TITLE = "What the logs are like"

Shown = Callable[[Properties], str]


def fill(page: Page, result: LogsStudy) -> None:
    """Write the page."""
    logs = result.logs
    page.paragraph(
        "Counted from prepared datasets; no ranker was trained. Drift compares the early and the late half of each "
        "user's events with halves that alternate, which differ by chance alone. The floors are AUC on the test part "
        "of smoothed rates of the train part; the oracle knows the true probabilities of a simulated log."
    )
    page.heading("Properties")
    page.table(["", *(log.name for log in logs)], property_rows(logs))
    page.heading("Shapes")
    users = {log.name: log.lengths.quantiles for log in logs}
    items = {log.name: log.popularity.head for log in logs}
    page.charts(
        [
            Chart(
                line_chart(users, x="fraction of users", y="events at most"),
                "Events per user: so many users have at most so many events.",
                ["log", "fraction of users", "events at most"],
                [(name, f"{x:.3f}", f"{y:.0f}") for name, points in users.items() for x, y in points],
            ),
            Chart(
                line_chart(items, x="fraction of items", y="fraction of events"),
                "Popularity: the most frequent items hold so many of the events.",
                ["log", "fraction of items", "fraction of events"],
                [(name, f"{x:.3f}", f"{y:.3f}") for name, points in items.items() for x, y in points],
            ),
        ]
    )


def property_rows(logs: list[Properties]) -> list[list[str]]:
    """The table of the page, the terminal and the docs."""
    rows = [[name, *(shown(log) for log in logs)] for name, shown in _PROPERTIES.items()]
    most = max((len(log.floors) for log in logs), default=0)
    return rows + [row for number in range(most) for row in _rows_of_task(logs, number)]


_PROPERTIES: dict[str, Shown] = {
    "users": lambda log: f"{log.users:,}",
    "items": lambda log: f"{log.items:,}",
    "events": lambda log: f"{log.events:,}",
    "requests": lambda log: f"{log.requests:,}",
    "candidates per request": lambda log: f"{log.candidates:.2f}",
    "days": lambda log: f"{log.days:.0f}",
    "events per user: median": lambda log: f"{log.lengths.median:.0f}",
    "- mean": lambda log: f"{log.lengths.mean:.0f}",
    "- 90 % have at most": lambda log: f"{log.lengths.upper_tenth:.0f}",
    "- longest": lambda log: f"{log.lengths.longest}",
    "popularity: Gini": lambda log: f"{log.popularity.gini:.2f}",
    "- events on the top 1 % of items": lambda log: _percent(log.popularity.top_1_percent),
    "- events on the top 10 %": lambda log: _percent(log.popularity.top_10_percent),
    "- items seen once": lambda log: _percent(log.popularity.seen_once),
    "- events on unseen items, last fifth": lambda log: _percent(log.popularity.unseen_late),
    "repeats": lambda log: f"{100 * log.repeats:.2f} %",
    "drift": lambda log: f"{log.drift.drift:.3f} ± {log.drift.error:.3f}" if log.drift else "-",
    "- of the attribute": lambda log: log.drift.attribute if log.drift else "-",
    "- effective values per user": lambda log: f"{log.drift.effective_values:.1f}" if log.drift else "-",
}


def _rows_of_task(logs: list[Properties], number: int) -> list[list[str]]:
    """Tasks have different names in different logs: the first ones side by side, then the second ones."""
    tasks = [list(log.floors)[number] if number < len(log.floors) else None for log in logs]
    pairs = list(zip(logs, tasks, strict=True))

    def row(name: str, shown: Callable[[Properties, str], str]) -> list[str]:
        return [name, *("-" if task is None else shown(log, task) for log, task in pairs)]

    return [
        row(f"task {number + 1}", lambda _, task: task),
        row("- positive", lambda log, task: _percent(log.positive[task])),
        row("- floor: user", lambda log, task: _auc(log.floors[task].user)),
        row("- floor: item", lambda log, task: _auc(log.floors[task].item)),
        row("- floor: both", lambda log, task: _auc(log.floors[task].both)),
        row("- oracle", lambda log, task: _auc(log.floors[task].oracle)),
    ]


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"


def _auc(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
