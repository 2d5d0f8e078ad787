"""The search: trial after trial, in turn for every ranker, until each has had as many; then the winners' files."""

from __future__ import annotations

import math
import shutil
import textwrap
import time
from pathlib import Path

from limerank import files
from limerank.data.store.dataset import StoredDataset
from limerank.errors import ConflictError, DataError, InterruptionError, UsageError, require_extra
from limerank.metrics import Metrics
from limerank.progress import Progress
from limerank.training.news import selection_name, selection_value
from limerank.training.run import machine, versions
from limerank.training.trainer import train
from limerank.tuning.plan import Contestant, SearchConfig, Tuning
from limerank.tuning.record import TUNING, Trial, TuningRecord, begin_or_go_on
from limerank.tuning.sampling import Sampled
from limerank.tuning.winners import keep_only_the_best, write_winners

LOCK, TRIALS = "tune.lock", "trials"
FINGERPRINT = "data fingerprint"
SHOWN_OF_A_REASON = 100
QUIET = Progress(quiet=True)


class PrunedTrial(Exception):  # noqa: N818 (no error: a trial that ends early because others are better)
    """Raised inside a training to end it."""


def run_search(tuning: Tuning, out: Path, progress: Progress) -> TuningRecord:
    """Search, or go on with the search that is in the folder, until every ranker has had its trials.

    One process at a time works in a folder. Killed and started again, it repeats the trial that was running and
    continues; a larger number of trials than before continues a search that was complete.
    """
    require_extra("optuna", "tune")
    dataset = StoredDataset.open(tuning.contestants[0].config.dataset)  # every training verifies it
    fresh = _fresh(tuning, dataset)
    _check_folder(out)
    out.mkdir(parents=True, exist_ok=True)
    with files.locked(out / LOCK, "searching"):
        record = begin_or_go_on(out, fresh)
        record.save(out)
        try:
            _search(tuning, record, out, progress)
        except (KeyboardInterrupt, InterruptionError):
            ended, total = len(record.ordered()), record.trials_per_ranker * len(tuning.contestants)
            raise KeyboardInterrupt(
                f"interrupted; {ended} of {total} trials are kept in {out}, the same command goes on"
            ) from None
        if not record.best:
            reasons = [trial.reason for trial in record.trials if trial.reason]
            why = f"; the first failed: {reasons[0]}" if reasons else ""
            raise DataError(f"{out}: no trial finished{why}; change the space and search in another folder")
        write_winners(tuning, record, out, dataset)
    return record


def _search(tuning: Tuning, record: TuningRecord, out: Path, progress: Progress) -> None:
    for contestant in tuning.contestants:
        if contestant.left_out:
            progress.say(f"note: {contestant.ranker} has no {', '.join(contestant.left_out)}: searched without")
        if (outside := contestant.not_at_the_start()) and not record.of(contestant.ranker):
            progress.say(
                f"note: the first trial of {contestant.ranker} has the configuration's own values, except "
                f"{', '.join(outside)}, whose value lies outside of the space"
            )
    todo = [
        (number, contestant)
        for number in range(1, record.trials_per_ranker + 1)
        for contestant in tuning.contestants
        if number > len(record.of(contestant.ranker))
    ]
    total = record.trials_per_ranker * len(tuning.contestants)
    if len(todo) < total:
        progress.say(f"{out}: {total - len(todo)} of {total} trials are there already")
    with progress.bar("trials", total) as bar:
        bar.advance(total - len(todo))
        for number, contestant in todo:
            trial = _one_trial(contestant, number, record, tuning.search, out)
            progress.say(_news(trial, record))
            bar.advance()


def _one_trial(contestant: Contestant, number: int, record: TuningRecord, search: SearchConfig, out: Path) -> Trial:
    """Sample, train and judge; the record knows of the trial before it begins."""
    earlier = record.begun(contestant.ranker, number)
    sampled = Sampled(contestant, search, record.of(contestant.ranker))
    trial = Trial(
        ranker=contestant.ranker,
        number=number,
        state="running",
        parameters=sampled.parameters,
        run=f"{TRIALS}/{contestant.ranker}-{number:03d}",
        interruptions=0 if earlier is None else earlier.interruptions + 1,
    )
    record.put(trial)
    record.save(out)
    _clear(out / trial.run)
    ended = _trained(trial, contestant, sampled, out / trial.run, record.asked[FINGERPRINT])
    if ended.state == "pruned":
        _clear(out / trial.run)
    record.put(ended)
    record.save(out)
    keep_only_the_best(record, out)
    return ended


def _trained(trial: Trial, contestant: Contestant, sampled: Sampled, folder: Path, fingerprint: str) -> Trial:
    values: list[float] = []
    started = time.perf_counter()
    where = f"trial {trial.number} of {trial.ranker}"

    def ended(**what: object) -> Trial:
        seconds = round(time.perf_counter() - started, 3)
        return trial.model_copy(update={"values": values, "seconds": seconds, **what})

    def watch(epoch: int, metrics: dict[str, Metrics]) -> None:
        value = selection_value(metrics)
        if not math.isfinite(value):
            raise DataError(f"{selection_name(metrics)} {value} after epoch {epoch}; lower train.learning_rate")
        values.append(value)
        if sampled.is_hopeless(epoch, value) and epoch < config.train.epochs:  # the last epoch is paid for already
            raise PrunedTrial

    try:
        config = contestant.applied(trial.parameters, where)
        run = train(config, folder, QUIET, where=where, watch=watch, test=False)
    except PrunedTrial:
        return ended(state="pruned", pruned_at=len(values))
    except (DataError, UsageError) as refused:  # a loss that is not finite, options that do not go together
        return ended(state="failed", reason=str(refused))
    if run.record.data_fingerprint != fingerprint:
        raise ConflictError(
            f"{config.dataset}: was changed during the search; bring it back, or search in another folder"
        )
    return ended(state="finished", value=selection_value(run.record.validation), best_epoch=run.record.best_epoch)


def _fresh(tuning: Tuning, dataset: StoredDataset) -> TuningRecord:
    import optuna

    selecting_on_test, search = dataset.schema.split.select_on_test, tuning.search
    if selecting_on_test and not search.allow_test_selection:
        raise DataError(
            f"{dataset.path}: selects on its test part, and a search would fit options to it; prepare the log with a "
            "validation part, or say that you want this: --set search.allow_test_selection=true"
        )
    asked = {
        FINGERPRINT: dataset.fingerprint,
        **{contestant.ranker: contestant.facts() for contestant in tuning.contestants},
        "search": search.model_dump(mode="json", exclude={"trials", "allow_test_selection"}),
    }
    return TuningRecord(
        asked=asked,
        trials_per_ranker=search.trials,
        selected_on="test" if selecting_on_test else "validation",
        left_out={contestant.ranker: list(contestant.left_out) for contestant in tuning.contestants},
        versions={**versions(), "optuna": optuna.__version__},
        machine=machine(),
    )


def _news(trial: Trial, record: TuningRecord) -> str:
    """`lime-mha 7 of 20: validation NE 0.8123 (best so far), train.learning_rate 0.0021; 3.2 s`."""
    if trial.state == "finished":
        best = " (best so far)" if record.best.get(trial.ranker) == trial.number else ""
        outcome = f"{record.selected_on} NE {trial.value:.4f}{best}"
    elif trial.state == "pruned":
        outcome = f"pruned after epoch {trial.pruned_at}, {record.selected_on} NE {trial.values[-1]:.4f}"
    else:
        outcome = f"failed: {textwrap.shorten(trial.reason or '', SHOWN_OF_A_REASON, placeholder=' ...')}"
    chosen = ", ".join(f"{key} {shown(value)}" for key, value in trial.parameters.items())
    return f"{trial.ranker} {trial.number} of {record.trials_per_ranker}: {outcome}; {chosen}; {trial.seconds:.1f} s"


def shown(value: object) -> str:
    """A parameter as people read it."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _check_folder(out: Path) -> None:
    """Refuse a folder with something else in it."""
    if out.is_dir() and not (out / TUNING).is_file() and {path.name for path in out.iterdir()} - {LOCK}:
        raise ConflictError(f"{out}: holds something else than a search (no {TUNING}); choose another --out")


def _clear(run: Path) -> None:
    """Remove what a trial left that was killed or pruned: its folder, and what stands beside it on the way there."""
    if run.parent.is_dir():
        for path in run.parent.iterdir():
            if path.name == run.name or path.name.startswith(f"{run.name}."):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
