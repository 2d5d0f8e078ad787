"""Which parameters the next trial has and whether it goes on: Optuna's sampler and pruner, fed from the record.

A study is made anew for every trial, in memory, from the trials before it, and its sampler is seeded by the seed of the
search and the number of the trial. So parameters depend on nothing but these: a search that was killed and continued
samples what an uninterrupted one does, and rankers that share a space share their random trials.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from limerank.files import digest_of
from limerank.tuning.plan import Contestant, SearchConfig
from limerank.tuning.record import Trial

if TYPE_CHECKING:
    import optuna


class Sampled:
    """A trial that is about to run: its parameters, and the judgment after each epoch."""

    def __init__(self, contestant: Contestant, search: SearchConfig, before: Sequence[Trial]) -> None:
        space = contestant.space
        with _quiet():
            study = _study(search, len(before) + 1)
            distributions = {key: dimension.distribution() for key, dimension in space.items()}
            for trial in before:
                study.add_trial(_told(trial, contestant, distributions))
            if not before:
                start = contestant.start()
                study.enqueue_trial({key: space[key].encode(value) for key, value in start.items()})
            self._trial = study.ask(distributions)
        self.parameters: dict[str, Any] = {key: space[key].decode(self._trial.params[key]) for key in space}

    def is_hopeless(self, epoch: int, value: float) -> bool:
        """Whether the pruner would end the trial, having seen its value after this epoch."""
        self._trial.report(value, epoch)
        return self._trial.should_prune()


def _study(search: SearchConfig, number: int) -> optuna.Study:
    import optuna

    seed = int(digest_of(str(search.seed), str(number))[:8], 16)
    sampler: optuna.samplers.BaseSampler = (
        optuna.samplers.TPESampler(seed=seed, n_startup_trials=search.random_trials)
        if search.sampler == "tpe"
        else optuna.samplers.RandomSampler(seed=seed)
    )
    pruner: optuna.pruners.BasePruner = (
        optuna.pruners.MedianPruner(n_startup_trials=search.unpruned_trials)
        if search.pruner == "median"
        else optuna.pruners.NopPruner()
    )
    return optuna.create_study(direction="minimize", sampler=sampler, pruner=pruner)


def _told(
    trial: Trial, contestant: Contestant, distributions: dict[str, optuna.distributions.BaseDistribution]
) -> optuna.trial.FrozenTrial:
    """A trial of the record as Optuna has it; of failed ones the sampler learns nothing."""
    import optuna

    states = optuna.trial.TrialState
    return optuna.trial.create_trial(
        state={"finished": states.COMPLETE, "pruned": states.PRUNED, "failed": states.FAIL}[trial.state],
        value=trial.value,
        params={key: contestant.space[key].encode(value) for key, value in trial.parameters.items()},
        distributions=distributions,
        intermediate_values=dict(enumerate(trial.values, 1)),
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Without Optuna's own news on standard error; what a program around us chose is put back."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)
