"""The report of a run: one page that says what was asked, how training went and what came out, offline."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeGuard

from limerank import files
from limerank.errors import DataError, LimerankError
from limerank.evaluation.floor import below_floor
from limerank.progress import Progress
from limerank.report.charts import Mark, line_chart, number_label, thinned
from limerank.report.page import Chart, Page
from limerank.times import time_text
from limerank.training.news import outcome
from limerank.training.records.curves import Curves, Epoch, Values, Window, read_curves
from limerank.training.records.facts import (
    CALIBRATION,
    configuration_of,
    configuration_text,
    dataset_facts,
    metric_name,
)
from limerank.training.run import EPOCHS, FIX, RECORD, REPORT, FinishedRun, RunRecord

CURVES = ("ne", "auc", "gauc", "logloss")
"""Metrics that are drawn where epochs or windows have them."""
TABLE_ROWS = 60  # of the tables behind charts of steps


def write_report(folder: Path) -> Path:
    """Write `report.html` into the folder of a finished run, over the one that is there."""
    path = folder / REPORT
    files.write_text(path, report_of(FinishedRun.open(folder)).html())
    return path


def report_if_possible(folder: Path, progress: Progress) -> None:
    """The same at the end of a training, which is finished whether it has a report or not."""
    try:
        write_report(folder)
    except (LimerankError, OSError) as refused:
        progress.say(f"note: no {REPORT} was written ({refused}); later: limerank runs report {folder}")


def report_of(run: FinishedRun) -> Page:
    """The page of a finished run."""
    record, curves = run.record, read_curves(run.path / EPOCHS)
    page = Page(f"{run.path.absolute().name}: {record.model}")
    page.paragraph(_headline(record), "lead")
    for warning in warnings_of(run, curves):
        page.paragraph(warning, "warning")
    _metrics(page, run)
    _training(page, record, curves)
    _progressive(page, curves)
    _times(page, record, curves)
    page.heading("Data")
    page.table(["fact", "value"], list(dataset_facts(run.path, record.data_fingerprint).items()), style="words")
    page.heading("What was asked")
    asked = configuration_of(run.path).items()
    page.table(["key", "value"], [[key, configuration_text(value)] for key, value in asked], style="words")
    page.heading("Made with")
    page.table(["fact", "value"], _made_with(record), style="words")
    return page


def warnings_of(run: FinishedRun, curves: Curves) -> list[str]:
    """What a reader should know before believing the numbers."""
    record, found = run.record, []
    if below := below_floor(record.test, record.floor):
        found.append(
            f"Below the counting floor: {', '.join(below)}. Smoothed rates of users and items order better: try more "
            "epochs, another learning rate, or a longer log."
        )
    ended = outcome(record, run.config.train)
    if ended.startswith("still improving"):
        found.append(f"{ended[0].upper()}{ended[1:]}.")
    if record.selected_on == "test":
        found.append("The weights were selected on the test part, as leaderboards do: its metrics are optimistic.")
    if curves.unreadable:
        found.append(f"Lines of {EPOCHS} that cannot be read and are not in the curves: {curves.unreadable}.")
    return found


def _headline(record: RunRecord) -> str:
    scores = [
        f"{task} AUC {_cell(one.auc)}, NE {_cell(one.ne)}"
        if len(record.test) > 1
        else f"AUC {_cell(one.auc)}, NE {_cell(one.ne)} for {task}"
        for task, one in record.test.items()
    ]
    return f"Test part: {'; '.join(scores)}. {record.parameters:,} parameters, seed {record.seed}."


def _metrics(page: Page, run: FinishedRun) -> None:
    page.heading("Metrics")
    measured = metrics_of(run)
    hidden = {
        *CALIBRATION,
        "cutoff",
        *({"missing"} if not any(one.get("missing") for one in measured.values()) else ()),
    }
    keys = [key for key in _keys(measured.values()) if key not in hidden]
    page.table(
        ["task and part", *map(metric_name, keys)],
        [[name, *(_cell(values.get(key)) for key in keys)] for name, values in measured.items()],
    )
    cutoffs = sorted({one["cutoff"] for one in measured.values() if one.get("cutoff")})
    at = f" NDCG and recall are those at {', '.join(map(str, cutoffs))}." if cutoffs else ""
    page.paragraph(
        "NE and logloss: lower is better. The counting floor scores by smoothed rates of items and users; the oracle "
        f"knows the true probabilities.{at}",
        "small",
    )
    calibrated = {name: one for name, one in measured.items() if any(one.get(key) is not None for key in CALIBRATION)}
    if calibrated:
        page.heading("Calibration")
        rows = [
            [name, _cell(one.get("positive_rate")), *(_cell(one.get(key)) for key in CALIBRATION)]
            for name, one in calibrated.items()
        ]
        page.table(["task and part", "positive rate", "predicted / observed", "calibration error"], rows)
        page.paragraph("Predicted / observed positives: 1 is calibrated; calibration error: 0 is.", "small")


def metrics_of(run: FinishedRun) -> dict[str, Values]:
    """Every metric that stands in `run.json`, also those that this version does not know, by task and part."""
    written = files.read_json(run.path / RECORD, DataError, FIX)
    parts = {"test": "test", "test, counting floor": "floor", "test, oracle": "oracle"}
    if run.record.selected_on != "test":
        parts[run.record.selected_on] = "validation"
    return {
        f"{task}, {part}": written[key][task]
        for task in run.record.test
        for part, key in parts.items()
        if task in written.get(key, {})
    }


def _training(page: Page, record: RunRecord, curves: Curves) -> None:
    page.heading("Training")
    charts = []
    for key, name in (("train_loss", "training loss"), ("learning_rate", "learning rate")):
        points = [(step.step, getattr(step, key)) for step in curves.steps if getattr(step, key) is not None]
        if points:
            charts.append(_of_steps(name, points))
    losses = [(line.epoch, line.train_loss) for line in curves.epochs if line.train_loss is not None]
    if losses and not curves.steps:
        rows = [[epoch, _cell(loss)] for epoch, loss in losses]
        svg = line_chart({"train": losses}, x="epoch", y="training loss")
        charts.append(Chart(svg, "Mean training loss of each epoch.", ["epoch", "training loss"], rows))
    best = record.best_epoch
    charts += _of_lines(curves.epochs, "epoch", record.selected_on, f"Circle: the best epoch, {best}.", best)
    if charts:
        page.charts(charts)
    else:
        page.paragraph(f"{EPOCHS} has no lines that can be drawn.", "small")


def _progressive(page: Page, curves: Curves) -> None:
    if not curves.windows:
        return
    page.heading("Progressive metrics")
    page.paragraph("Each window of events was predicted before it was trained on.")
    page.charts(_of_lines(curves.windows, "step", "progressive"))


def _of_steps(name: str, points: Sequence[tuple[float, float]]) -> Chart:
    svg = line_chart({name: points}, x="step", y=name)
    rows = [[number_label(x), number_label(y)] for x, y in thinned(points, TABLE_ROWS)]
    told = f", means of {len(points):,} values" if len(rows) < len(points) else ""
    return Chart(svg, f"{name.capitalize()} by step.", ["up to step", f"{name}{told}"], rows)


def _of_lines(lines: Sequence[Epoch | Window], axis: str, part: str, more: str = "", best: int = 0) -> list[Chart]:
    """A chart per metric, with a line per task, of epochs or of windows; `best` is where the best one stands."""
    tasks = list(dict.fromkeys(task for line in lines for task in line.metrics))
    known = _keys(values for line in lines for values in line.metrics.values())
    keys = [key for key in CURVES if key in known and (key != "logloss" or "ne" not in known)]  # NE says the same
    charts = []
    for key in keys:
        name = f"{part} {metric_name(key)}"
        values = {task: [(line.at, line.metrics.get(task, {}).get(key)) for line in lines] for task in tasks}
        series = {task: [(at, value) for at, value in points if _number(value)] for task, points in values.items()}
        marks = [
            Mark(at, value, f"best epoch: {task} {number_label(value)}")
            for task, points in series.items()
            for at, value in points
            if at == best
        ]
        rows = [[line.at, *_until(line), *(_cell(line.metrics.get(t, {}).get(key)) for t in tasks)] for line in lines]
        columns = [axis, *(["until"] if any(isinstance(line, Window) for line in lines) else []), *tasks]
        svg = line_chart(series, x=axis, y=name, marks=marks)
        charts.append(Chart(svg, f"{name[0].upper()}{name[1:]} by {axis}. {more}".strip(), columns, rows))
    return charts


def _until(line: Epoch | Window) -> list[str]:
    if not isinstance(line, Window):
        return []
    return ["-" if line.until_time is None else time_text(line.until_time)]


def _times(page: Page, record: RunRecord, curves: Curves) -> None:
    page.heading("Time")
    stages = record.stage_seconds or {"training": record.train_seconds}
    total = sum(stages.values())
    rows = [[stage, f"{seconds:,.1f}", f"{seconds / total:.0%}" if total else "-"] for stage, seconds in stages.items()]
    page.table(["stage", "seconds", "of all"], [*rows, ["all", f"{total:,.1f}", ""]])
    speeds = [(s.step, s.rows_per_second) for s in curves.steps if s.rows_per_second is not None]
    if speeds:
        page.charts([_of_steps("rows per second", speeds)])


def _made_with(record: RunRecord) -> list[list[str]]:
    facts: dict[str, object] = {
        "started": record.started,
        "finished": record.finished,
        "epochs": f"{record.epochs}, the best of them {record.best_epoch}",
        "steps": None if record.steps is None else f"{record.steps:,}",
        "rows per second": None if record.rows_per_second is None else f"{record.rows_per_second:,.0f}",
        "device": record.device,
        "deterministic": None if record.deterministic is None else ("yes" if record.deterministic else "no"),
        "revision": record.revision,
        **record.versions,
        **record.machine,
    }
    return [[name, str(value)] for name, value in facts.items() if value is not None]


def _keys(measured: Iterable[Values]) -> list[str]:
    """The metrics that any of them has a number for, in order."""
    return list(dict.fromkeys(key for one in measured for key, value in one.items() if _number(value)))


def _number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cell(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:.4f}" if isinstance(value, float) else "-"
