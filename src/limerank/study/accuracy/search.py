"""The same search for every row: the same trials from one seed, judged by the validation part alone.

A trial is a training with a few keys changed. With so few trials a grid whose first point is the row's own
configuration tells more than a sampler would. The one who chooses is handed numbers of the validation part: trials do
not look at the test part, so their run folders have no metrics of it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from limerank.errors import UsageError, did_you_mean
from limerank.models import complete_model
from limerank.study.accuracy.results import AccuracyStudy, RowSearch, Search, Trial
from limerank.study.accuracy.rows import StudyRow
from limerank.study.configuration import UNNAMED
from limerank.study.pages import open_result
from limerank.training.news import selection_value
from limerank.training.run import FinishedRun
from limerank.tuning.plan import Contestant, SearchConfig, plan
from limerank.tuning.space import Choices

SEARCH_SEED = 1
"""All trials are trained from this seed; the best of several seeds would be luck, not a choice."""
RATE = "train.learning_rate"


def rate_factors(trials: int) -> list[float]:
    """What the learning rate is multiplied by: 1, 1/2, 2, 1/4, 4, ...; the default is always among them."""
    steps = [0, *(step for size in range(1, trials) for step in (-size, size))]
    return [2.0**step for step in steps[:trials]]


def grid(
    rows: Sequence[StudyRow], trials: int, space: Mapping[str, Any] | None, where: str = UNNAMED
) -> dict[str, list[dict[str, Any]]]:
    """The trials of each row, as the keys they change: the first is always the row as it is.

    A space that is given is tried in a fixed order, the same for all; keys that a ranker does not have are left out,
    and so are those that make a row a variant.
    """
    if space is None:
        return {
            row.name: [
                {} if factor == 1 else {RATE: min(1.0, factor * row.config.train.learning_rate)}
                for factor in rate_factors(1 if RATE in row.fixed else trials)
            ]
            for row in rows
        }
    contestants = _contestants(rows, trials, space, where)
    return {row.name: _points(contestants[row.name], trials) for row in rows}


def _contestants(rows: Sequence[StudyRow], trials: int, space: Mapping[str, Any], where: str) -> dict[str, Contestant]:
    configs = {row.ranker: row.config for row in rows}
    planned = plan(configs, space, SearchConfig(trials=trials, seed=SEARCH_SEED), where)
    for key, dimension in ((key, one) for contestant in planned.contestants for key, one in contestant.space.items()):
        if not isinstance(dimension, Choices):
            raise UsageError(f"{where}: space '{key}': a grid needs {{choices: [...]}}, not a range")
    of_ranker = {contestant.ranker: contestant for contestant in planned.contestants}
    return {row.name: _of_row(row, of_ranker[row.ranker]) for row in rows}


def _of_row(row: StudyRow, contestant: Contestant) -> Contestant:
    """A variant is searched like its ranker, but for the keys that make it a variant."""
    own = {key: one for key, one in contestant.space.items() if key not in row.fixed}
    return replace(contestant, config=row.config, space=own)


def _points(contestant: Contestant, trials: int) -> list[dict[str, Any]]:
    """The row as it is, then one key changed at a time, then several, in the order of the space."""
    values = {key: one.choices for key, one in contestant.space.items() if isinstance(one, Choices)}
    own = contestant.start()
    points = [dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())]
    changed = [{key: value for key, value in point.items() if own.get(key, ...) != value} for point in points]
    return [{}, *sorted(filter(None, changed), key=len)][:trials]


def chosen(validation: Sequence[float | None]) -> int | None:
    """The number of the trial with the least validation NE; ties go to the earlier one, so to the default.

    None of a trial that was not finished; None if none was.
    """
    known = [value if value is not None and math.isfinite(value) else math.inf for value in validation]
    best = min(range(len(known)), key=lambda number: known[number], default=None)
    return None if best is None or known[best] == math.inf else best


def judged(
    trials: Sequence[Mapping[str, Any]], runs: Sequence[FinishedRun | None], reasons: Mapping[int, str]
) -> RowSearch:
    """The search of one row, given its runs; what is read of them is of the validation part."""
    validation = [None if run is None else selection_value(run.record.validation) for run in runs]
    return RowSearch(
        winner=chosen(validation),
        trials=[
            Trial(
                parameters=dict(changed),
                validation_ne=value if value is not None and math.isfinite(value) else None,
                best_epoch=None if run is None else run.record.best_epoch,
                seconds=None if run is None else run.record.train_seconds,
                run=None if run is None else run.path.name,
                failed=reasons.get(number),
            )
            for number, (changed, value, run) in enumerate(zip(trials, validation, runs, strict=True))
        ],
    )


def found_in(path: Path, rows: Sequence[StudyRow]) -> Search:
    """The search of another study, for the rows of this one."""
    study = open_result(path).result
    if not isinstance(study, AccuracyStudy):
        raise UsageError(f"--found {path}: is a study of {study.study}; name the accuracy.json of one that searched")
    if study.search is None:
        raise UsageError(f"--found {path}: that study did not search; name one made with --search")
    for row in rows:
        if row.name not in study.search.rows:
            raise UsageError(
                f"--found {path}: has no search of '{row.name}'{did_you_mean(row.name, study.search.rows)}"
            )
        if study.search.rows[row.name].winner is None:
            raise UsageError(f"--found {path}: no trial of '{row.name}' was finished; leave that row out")
        _check_start(path, study, row)
    return study.search.model_copy(
        update={
            "rows": {row.name: study.search.rows[row.name] for row in rows},
            "found_in": study.search.found_in or path.name,
            "found_on": study.search.found_on or study.dataset.name,
            "found_fingerprint": study.search.found_fingerprint
            if study.search.found_in is not None
            else study.dataset.fingerprint,
        }
    )


def _check_start(path: Path, study: AccuracyStudy, row: StudyRow) -> None:
    """Refuse a search around other values than this row has: what it kept would be another value here."""
    assert study.search is not None
    search, theirs = study.search.rows[row.name], study.row(row.name)
    searched = {key for trial in search.trials for key in trial.parameters}
    model = complete_model(row.config.model, str(path))
    own = {"model": model, "train": row.config.train.model_dump(mode="json")}
    for section, name in sorted(tuple(key.split(".", 1)) for key in searched - search.parameters().keys()):
        if theirs is None or (kept := getattr(theirs, section).get(name, ...)) == own[section].get(name, ...):
            continue
        raise UsageError(
            f"--found {path}: its search kept {section}.{name} = {kept} for '{row.name}', where here it starts from "
            f"{own[section].get(name)}; say {kept} in --config, or search anew with --search"
        )
