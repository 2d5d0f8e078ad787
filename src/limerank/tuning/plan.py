"""A search that is about to begin: each ranker with the configuration it starts from and the space it has, checked.

Nothing runs before every end of every range and every choice is known to be valid, alone and (up to a limit) together.
"""

from __future__ import annotations

import difflib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from limerank.config import RunConfig, TrainConfig, current_names
from limerank.errors import UsageError
from limerank.models import RANKERS, check_model
from limerank.training.configuration import problem_of_key, sections_of
from limerank.tuning.space import Space, dimension_of
from limerank.typed import Typed, validate

MOST_COMBINATIONS = 2000
"""So many combinations of ends and choices are tried on the types beforehand; of more, each value alone."""
NOT_CHOSEN = {
    "seed": "the best of several seeds is luck, not a choice",
    "dataset": "a search has one dataset",
    "preset": "a preset fills keys in; search those",
    "model.name": "name the rankers under 'rankers': each is searched with the same budget",
}

LIKE = {
    "train.embedding_learning_rate": "train.learning_rate",
    "train.embedding_weight_decay": "train.weight_decay",
    "model.query_width": "model.width",
}
"""Keys that, where nothing is written, have the value of another."""


class SearchConfig(Typed):
    """How a search goes; the same for every ranker in it."""

    trials: int = Field(default=20, ge=1, le=100_000, description="trainings of each ranker")
    seed: int = Field(default=1, ge=0, lt=2**32, description="of the sampler; trainings have the seed of the run")
    sampler: Literal["tpe", "random"] = Field(default="tpe", description="Optuna's TPE, or at random")
    random_trials: int = Field(default=8, ge=1, description="trials at random before TPE learns from them")
    pruner: Literal["median", "none"] = Field(
        default="median", description="end a trial that is worse than the median of the others after as many epochs"
    )
    unpruned_trials: int = Field(default=4, ge=1, description="finished trials before another may be pruned")
    allow_test_selection: bool = Field(
        default=False, description="search although the dataset has no validation part and selects on its test part"
    )


@dataclass(frozen=True)
class Contestant:
    """One ranker of a search."""

    ranker: str
    config: RunConfig
    space: Space
    left_out: tuple[str, ...]
    """Keys of the space that this ranker does not have."""

    def applied(self, parameters: Mapping[str, Any], where: str) -> RunConfig:
        """The run configuration of one trial."""
        values = self.config.model_dump()
        for dotted, value in parameters.items():
            section, _, key = dotted.rpartition(".")
            values[section][key] = value
        config = validate(RunConfig, values, where)
        check_model(config.model, where)
        return config

    def start(self) -> dict[str, Any]:
        """The configuration's own values, of keys whose value lies in the space: the first trial."""
        options = check_model(self.config.model, self.ranker)[1]
        own = {"train": self.config.train.model_dump(mode="json"), "model": options.model_dump(mode="json")}

        def value(dotted: str) -> Any:
            section, _, key = dotted.rpartition(".")
            found = own[section][key]
            return value(LIKE[dotted]) if found is None and dotted in LIKE else found

        values = {dotted: value(dotted) for dotted in self.space}
        return {dotted: value for dotted, value in values.items() if self.space[dotted].holds(value)}

    def not_at_the_start(self) -> list[str]:
        """Keys whose own value lies outside of the space, so that the first trial samples it."""
        return [dotted for dotted in self.space if dotted not in self.start()]

    def facts(self) -> dict[str, Any]:
        """What must be the same for a search to go on."""
        own = self.config.model_dump(mode="json", include={"model", "train", "seed"})
        return {**own, "space": {key: one.model_dump(mode="json") for key, one in self.space.items()}}


@dataclass(frozen=True)
class Tuning:
    """A search: contestants on one dataset, each with the same number of trials."""

    contestants: tuple[Contestant, ...]
    search: SearchConfig
    where: str
    """What errors call it: usually its file."""


def plan(configs: Mapping[str, RunConfig], space: Mapping[str, Any] | None, search: SearchConfig, where: str) -> Tuning:
    """The search of some rankers, by name; all of them get the space as far as they have its keys."""
    written = default_space(next(iter(configs.values())).train) if space is None else space
    if not written:
        raise UsageError(
            f"{where}: key 'space' is empty; write for example train.learning_rate: {{low: ..., high: ...}}"
        )
    written = {f"model.{_today(key)}" if key.startswith("model.") else key: one for key, one in written.items()}
    having = {key: _having(key, one, list(configs), where, strict=space is not None) for key, one in written.items()}
    # keys that all rankers have come first: with the same seed, their random values are then the same for all
    ordered = sorted((key for key in written if having[key]), key=lambda key: len(having[key]) < len(configs))
    dimensions = {key: dimension_of(key, written[key], _field(key, having[key][0]), where) for key in ordered}
    contestants = []
    for ranker, config in configs.items():
        own = {key: one for key, one in dimensions.items() if ranker in having[key]}
        left_out = tuple(key for key in ordered if ranker not in having[key])
        contestant = Contestant(ranker, config, own, left_out)
        _check_values(contestant, where)
        contestants.append(contestant)
    return Tuning(tuple(contestants), search, where)


def default_space(train: TrainConfig) -> dict[str, Any]:
    """What is searched where no space is given: how a ranker learns, not how large it is.

    Learning rates from a tenth to ten times the configuration's own, a few weight decays, and the sharpness of
    attention, of rankers that have it.
    """
    space: dict[str, Any] = {"train.learning_rate": _around(train.learning_rate)}
    own = train.model_dump()
    if "embedding_learning_rate" in own:
        space["train.embedding_learning_rate"] = _around(own["embedding_learning_rate"] or train.learning_rate)
    space["train.weight_decay"] = {"choices": [0.0, 1e-6, 1e-5, 1e-4]}
    space["model.sharpness"] = {"low": 0.5, "high": 8.0, "log": True}
    return space


def _around(rate: float) -> dict[str, Any]:
    return {"low": rate / 10, "high": min(10 * rate, 1.0), "log": True}


def _having(key: str, written: Any, rankers: Sequence[str], where: str, *, strict: bool) -> list[str]:
    """The rankers that have a key; a key that none has is refused, with the nearest that there is."""
    if key in NOT_CHOSEN:
        raise UsageError(f"{where}: space '{key}': cannot be searched: {NOT_CHOSEN[key]}")
    having = [ranker for ranker in rankers if _field(key, ranker) is not None]
    if not having and strict:
        raise UsageError(f"{where}: space '{key}': {problem_of_unknown(key, written, rankers)}")
    return having


def problem_of_unknown(dotted: str, value: Any, rankers: Sequence[str]) -> str:
    """What is wrong with a key that none of the rankers has, with the nearest that one of them has."""
    last = dotted.rpartition(".")[2]

    def nearness(ranker: str) -> float:
        known = RANKERS[ranker].options_type.model_fields
        return max(difflib.SequenceMatcher(None, last, key).ratio() for key in known)

    return problem_of_key(dotted, value, max(rankers, key=nearness)) or f"unknown key '{dotted}'"


def _check_values(contestant: Contestant, where: str) -> None:
    for key, dimension in contestant.space.items():
        for value in dimension.probes():
            if problem := problem_of_key(key, value, contestant.ranker):
                raise UsageError(f"{where}: space '{key}', value {value}: {problem}")
    for values in _combinations({key: dimension.probes() for key, dimension in contestant.space.items()}):
        contestant.applied(values, f"{where}: space, {', '.join(f'{key}={value}' for key, value in values.items())}")


def _combinations(probes: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    if math.prod(len(values) for values in probes.values()) <= MOST_COMBINATIONS:
        yield from (dict(zip(probes, values, strict=True)) for values in itertools.product(*probes.values()))
    else:
        yield from ({key: value} for key, values in probes.items() for value in values)


def _field(dotted: str, ranker: str) -> Any:
    """The typed field of a searchable key, or None."""
    section, _, key = dotted.rpartition(".")
    kinds = {name: kind for name, kind in sections_of(ranker).items() if name}
    return kinds[section].model_fields.get(key) if section in kinds else None


def _today(dotted: str) -> str:
    """An option of a ranker by its name of today."""
    return next(iter(current_names({dotted.removeprefix("model."): None})))
