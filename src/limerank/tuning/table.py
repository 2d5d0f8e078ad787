"""A search for people: its trials as a table, the best first, and as a page with plots."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from limerank import files
from limerank.report.page import Page
from limerank.report.plots import line_plot, point_plot
from limerank.tables import number_text
from limerank.tuning.record import Trial, TuningRecord
from limerank.tuning.search import shown
from limerank.tuning.winners import configuration_path

REPORT = "report.html"
UPPER_EDGE = 3.0
"""A plot ends so many times as far above the best trial as the median does."""


def columns(record: TuningRecord) -> list[str]:
    """The heads of the table; parameters by their last name where that is enough."""
    return ["ranker", "trial", f"{record.selected_on} NE", "state", "epochs", "seconds", *_names(record).values()]


def rows(record: TuningRecord) -> list[list[object]]:
    """The cells, a row per trial that has ended, the best first; a parameter that a ranker does not have is a dash."""
    names = _names(record)
    return [
        [
            trial.ranker,
            trial.number,
            number_text(_value(trial)),
            trial.state,
            len(trial.values),
            f"{trial.seconds or 0:.1f}",
            *(shown(trial.parameters[key]) if key in trial.parameters else "-" for key in names),
        ]
        for trial in record.ordered()
    ]


def budget_lines(record: TuningRecord, out: Path) -> list[str]:
    """For each ranker what it was given and what came of it, and the command that trains its best configuration."""
    lines = []
    for ranker in record.left_out:
        trials, winner = record.of(ranker), record.winners().get(ranker)
        states = [trial.state for trial in trials]
        seconds = sum(trial.seconds or 0 for trial in trials)
        counts = (
            f"{states.count('finished')} finished, {states.count('pruned')} pruned, {states.count('failed')} failed"
        )
        without = f"; it has no {', '.join(record.left_out[ranker])}" if record.left_out[ranker] else ""
        lines.append(f"{ranker}: {len(trials)} trial{'s' * (len(trials) != 1)} ({counts}) in {seconds:.0f} s{without}")
        if winner is not None:
            lines.append(
                f"  best {winner.number}: limerank train {configuration_path(out, ranker)} --out runs/{ranker}"
            )
    return lines


def write_report(record: TuningRecord, out: Path) -> Path | None:
    """report.html with the course of the search and a slice for every parameter; None without matplotlib."""
    if importlib.util.find_spec("matplotlib") is None:
        return None
    measure = f"{record.selected_on} NE"
    page = Page("Search")
    page.paragraph(
        f"{record.trials_per_ranker} trials for each ranker, chosen by the mean NE over tasks on the "
        f"{record.selected_on} part; lower is better. The test part had no say; only the run folders of the winners "
        "have metrics of it.",
    )
    for line in budget_lines(record, out):
        page.paragraph(line, "small")
    page.heading("Course")
    epochs = {ranker: list(enumerate(trial.values, 1)) for ranker, trial in record.winners().items()}
    page.plots(
        [
            (
                _course(record, measure),
                "Every trial at its best epoch, pruned ones too, and the best so far. Trials much worse than most are "
                "drawn at the upper edge.",
            ),
            (line_plot(epochs, x="epoch", y=measure), "The best trial of each ranker, epoch by epoch."),
        ]
    )
    page.heading("Parameters")
    page.plots([(_slice(record, key, measure), f"{key}: trials at their values of it.") for key in _names(record)])
    page.heading("Trials")
    page.table(columns(record), rows(record))
    for trial in record.ordered():
        if trial.reason is not None:
            page.paragraph(f"{trial.ranker} {trial.number} failed: {trial.reason}", "small")
    path = out / REPORT
    files.write_text(path, page.html())
    return path


def _course(record: TuningRecord, measure: str) -> str:
    points: dict[str, list[tuple[float | str, float]]] = {}
    lines: dict[str, list[tuple[float, float]]] = {}
    values = _drawn(record)
    for ranker in record.left_out:
        points[ranker] = [(number, value) for (whose, number), value in values.items() if whose == ranker]
        lines[ranker] = []
        for trial in record.of(ranker):
            if trial.value is not None:
                best = min(trial.value, lines[ranker][-1][1]) if lines[ranker] else trial.value
                lines[ranker].append((trial.number, min(best, max(values.values()))))
    return point_plot(points, x="trial", y=measure, lines=lines)


def _slice(record: TuningRecord, key: str, measure: str) -> str:
    spaces = [record.asked[ranker]["space"].get(key, {}) for ranker in record.left_out]
    values = _drawn(record)
    points: dict[str, list[tuple[float | str, float]]] = {
        ranker: [
            (_coordinate(trial.parameters[key]), values[ranker, trial.number])
            for trial in record.of(ranker)
            if key in trial.parameters and (ranker, trial.number) in values
        ]
        for ranker in record.left_out
    }
    choices = next((space["choices"] for space in spaces if "choices" in space), None)
    if choices is not None:  # their names, in the order they were written
        names = [shown(choice) for choice in choices]
        points = {
            ranker: sorted(((shown(at), value) for at, value in some), key=lambda point: names.index(str(point[0])))
            for ranker, some in points.items()
        }
    return point_plot(points, x=key, y=measure, logarithmic=any(space.get("log") for space in spaces))


def _drawn(record: TuningRecord) -> dict[tuple[str, int], float]:
    """The value of each trial that has one, at most so large that the others can be told apart."""
    ended = [trial for ranker in record.left_out for trial in record.of(ranker)]
    values = {(trial.ranker, trial.number): value for trial in ended if (value := _value(trial)) is not None}
    least, usual = min(values.values()), median(values.values())
    most = least + UPPER_EDGE * (usual - least) if usual > least else max(values.values())
    return {trial: min(value, most) for trial, value in values.items()}


def _coordinate(value: object) -> float | str:
    return value if isinstance(value, int | float) else str(value)


def _value(trial: Trial) -> float | None:
    """At the best epoch, of a pruned trial the best that it reached."""
    return trial.value if trial.value is not None else min(trial.values, default=None)


def _names(record: TuningRecord) -> dict[str, str]:
    keys = list(dict.fromkeys(key for ranker in record.left_out for key in record.asked[ranker]["space"]))
    last = [key.rpartition(".")[2] for key in keys]
    return {key: short if last.count(short) == 1 else key for key, short in zip(keys, last, strict=True)}


def failures(record: TuningRecord) -> Sequence[str]:
    """Why trials failed, a line each."""
    return [f"{trial.ranker} {trial.number}: {trial.reason}" for trial in record.ordered() if trial.reason is not None]
