"""The result as tables: for a terminal of 100 columns, and for the page."""

from __future__ import annotations

from statistics import median

from limerank.metrics import Metrics
from limerank.study.accuracy.gaps import is_clear
from limerank.study.accuracy.results import (
    LOWER_IS_BETTER,
    SHOWN,
    AccuracyStudy,
    PairedDifference,
    RowComparison,
    RowResult,
    Spread,
    Trial,
)
from limerank.tables import number_text

Cells = list[list[object]]

ACCURACY_COLUMNS = ("row", *SHOWN.values(), "AUC vs ttsn", "gap closed")
COST_COLUMNS = ("row", "parameters", "without embeddings", "bytes/item", "bytes/user", "train s", "best epoch")
DIFFERENCE_COLUMNS = ("row", "against", "NE difference", "interval", "AUC difference", "interval")
TRIAL_COLUMNS = ("row", "trial", "validation NE", "best epoch", "seconds")


def accuracy_rows(study: AccuracyStudy) -> Cells:
    """Mean and deviation over seeds; the counting floor first and the oracle last, where they are known."""
    cells: Cells = [_known("counting", study.floor)] if study.floor is not None else []
    for row in study.rows:
        cells.append(
            [
                row.name,
                *(spread_text(row.spread(metric)) for metric in SHOWN),
                percent(row.auc_change_percent),
                gap_text(study, row),
            ]
        )
    if study.oracle is not None:
        cells.append(_known("oracle", study.oracle))
    return cells


def published_columns(study: AccuracyStudy) -> list[str]:
    """Of figures that are of this dataset; none if it is nobody's."""
    return [
        name
        for name, known in (
            ("paper AUC", [row.paper_auc for row in study.rows]),
            ("public leaderboard AUC", [row.leaderboard_auc for row in study.rows]),
        )
        if any(value is not None for value in known)
    ]


def published_rows(study: AccuracyStudy) -> Cells:
    """Ours beside the published ones."""
    values = {"paper AUC": "paper_auc", "public leaderboard AUC": "leaderboard_auc"}
    columns = published_columns(study)
    return [
        [row.name, spread_text(row.spread("auc")), *(number_text(getattr(row, values[name])) for name in columns)]
        for row in study.rows
    ]


def cost_rows(study: AccuracyStudy) -> Cells:
    """Parameters, bytes, seconds."""
    return [
        [
            row.name,
            f"{row.parameters:,}",
            f"{row.parameters - row.embedding_parameters:,}",
            f"{row.item_bytes:,}",
            f"{row.user_bytes:,}",
            f"{median(run.seconds for run in row.runs):.0f}",
            ", ".join(str(run.best_epoch) for run in row.runs),
        ]
        for row in study.rows
    ]


def difference_rows(study: AccuracyStudy) -> Cells:
    """Each row against its skyline, the baseline, and of a variant its ranker; a star where zero is left out."""
    order = ["skyline", "ranker", "baseline"]
    return [_difference_row(one) for one in sorted(study.comparisons, key=lambda one: order.index(one.role))]


def rival_rows(study: AccuracyStudy) -> Cells:
    """LIME against everybody else whom the paper compares it with, and linear attention."""
    return [_difference_row(one) for one in study.rivals]


def _difference_row(one: RowComparison) -> list[object]:
    return [
        one.first,
        one.second,
        *difference_cells(one.metrics.get("ne")),
        *difference_cells(one.metrics.get("auc")),
    ]


def trial_rows(study: AccuracyStudy) -> Cells:
    """Every trial, the winner marked."""
    cells: Cells = []
    for name, search in (study.search.rows if study.search is not None else {}).items():
        for number, trial in enumerate(search.trials):
            cells.append(
                [
                    name,
                    f"{trial_text(trial)}{' (chosen)' * (number == search.winner)}",
                    number_text(trial.validation_ne),
                    trial.best_epoch or "-",
                    "-" if trial.seconds is None else f"{trial.seconds:.0f}",
                ]
            )
    return cells


def verdicts(study: AccuracyStudy) -> dict[str, str]:
    """What was found of each row, in words; a row that has nothing to be measured against is left out."""
    found = {row.name: _verdict(study, row) for row in study.rows}
    return {name: said for name, said in found.items() if said is not None}


def _verdict(study: AccuracyStudy, row: RowResult) -> str | None:
    gap, compared = row.gap, study.compared(row.name, "skyline")
    if gap is None or compared is None:
        return None
    said = []
    known = [fraction for fraction in gap.by_seed if fraction is not None]
    if gap.of_means is None:
        said.append(f"{gap.skyline} is no better than the baseline here, so there is no gap to close")
    else:
        clear = is_clear(study, gap)
        between = f" ({gap.low:.0%} to {gap.high:.0%})" if clear and None not in (gap.low, gap.high) else ""
        unclear = "" if clear else ", which is not clear"
        said.append(f"closes {gap.of_means:.0%}{between} of the NE gap ttsn -> {gap.skyline}{unclear}")
        if len(known) < len(gap.by_seed):
            said.append(f"in {len(gap.by_seed) - len(known)} of {len(gap.by_seed)} seeds there was no gap")
    if (ne := compared.metrics.get("ne")) is not None:
        said.append(f"NE is {_side(ne, 'ne')} that of {gap.skyline}")
    if row.better_than_baseline is not None:
        said.append(f"better than ttsn in {row.better_than_baseline} of {len(row.runs)} seeds")
    return "; ".join(said)


def _side(found: PairedDifference, metric: str) -> str:
    if not found.is_clear:
        return "not told apart from"
    better = (found.difference < 0) is (metric in LOWER_IS_BETTER)
    return f"{'better' if better else 'worse'} by {abs(found.difference):.4f} than"


def spread_text(spread: Spread | None) -> str:
    """`0.7412±0.0009`."""
    if spread is None:
        return "-"
    return f"{spread.mean:.4f}" if spread.deviation is None else f"{spread.mean:.4f}±{spread.deviation:.4f}"


def percent(value: float | None) -> str:
    """As the paper prints it."""
    return "-" if value is None else f"{value:+.2f}%"


def gap_text(study: AccuracyStudy, row: RowResult) -> str:
    """Of NE averaged over seeds; a question mark where the gap is not clear."""
    gap = row.gap
    return "-" if gap is None or gap.of_means is None else f"{gap.of_means:.0%}{'' if is_clear(study, gap) else ' ?'}"


def gap_words(study: AccuracyStudy, row: RowResult) -> str:
    """The same with its interval, which there is only of a gap that is clear."""
    gap = row.gap
    if gap is None:
        return "-"
    if gap.of_means is None:
        return "no gap"
    if not is_clear(study, gap):
        return f"{gap.of_means:.0%}, gap not clear"
    between = "" if gap.low is None or gap.high is None else f" ({gap.low:.0%} to {gap.high:.0%})"
    return f"{gap.of_means:.0%}{between}"


def difference_cells(found: PairedDifference | None) -> list[object]:
    """The difference and its interval; a star where it leaves out zero."""
    if found is None or found.low is None or found.high is None:
        return ["-", "-"]
    return [f"{found.difference:+.4f}", f"{found.low:+.4f} to {found.high:+.4f}{' *' * found.is_clear}"]


def trial_text(trial: Trial) -> str:
    """What a trial changes."""
    changed = [
        f"{key} {value:.6g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in trial.parameters.items()
    ]
    return ", ".join(changed) or "as configured"


def _known(name: str, metrics: Metrics) -> list[object]:
    return [name, *(number_text(getattr(metrics, metric)) for metric in SHOWN), "-", "-"]
