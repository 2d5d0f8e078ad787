"""What is trained: each variant and the base that it is held against, as they are or with what a search found for them.

A variant of most groups wants what its base has, or it would change two things at once. The group `linear` compares
rankers, and a ranker is as good as its own best setting: trained with LIME's, its rivals would lose to that choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from limerank.config import RunConfig, TrainConfig
from limerank.errors import UsageError
from limerank.models import complete_model
from limerank.study.ablation.results import Found
from limerank.study.ablation.variants import LINEAR, MHA, Change, groups, section, width_of_rows
from limerank.study.accuracy.rows import StudyRow
from limerank.study.accuracy.search import found_in
from limerank.study.configuration import UNNAMED
from limerank.study.trainings import Variant

RANK = ("links", "rank", "recent", "heads", "query_width")
"""Options that say how wide rows are: the group `linear` holds them equal, so no search may change them."""


@dataclass(frozen=True)
class Contest:
    """A change with what is trained for it and for its base."""

    change: Change
    base: Variant
    variant: Variant
    base_chosen: Mapping[str, Any]
    """What a search found for the base; empty: its default, or nothing was taken."""
    chosen: Mapping[str, Any]

    @property
    def changed(self) -> dict[str, tuple[Any, Any]]:
        """What both have and that differs, as (base, variant): options by name, the ranker's too, and keys of train."""
        base, variant = (complete_model(one.model, "ablation") for one in (self.base, self.variant))
        found = {name: (base[name], variant[name]) for name in base if name in variant}
        base, variant = (one.train.model_dump(mode="json") for one in (self.base, self.variant))
        found |= {f"train.{key}": (base[key], variant[key]) for key in base}
        return {name: pair for name, pair in found.items() if pair[0] != pair[1]}


def contests(
    changes: Sequence[Change], train: TrainConfig, shared: Mapping[str, Any], found: Found | None
) -> list[Contest]:
    """Everything that is held against a base."""
    made = []
    for change in changes:
        own = found.parameters if found is not None and change.group == LINEAR else {}
        base_chosen, chosen = own.get(change.base, {}), own.get(change.ranker, {})
        base = _variant(change.base, change.base, section(change.base, shared), train, base_chosen)
        variant = _variant(change.key, change.ranker, change.section(shared), train, chosen)
        made.append(Contest(change, base, variant, base_chosen, chosen))
    return made


def as_it_is(base: str, train: TrainConfig, shared: Mapping[str, Any]) -> Variant:
    """A base that nothing was found for."""
    return Variant(base, section(base, shared), train)


def read_found(path: Path, shared: Mapping[str, Any], train: TrainConfig) -> Found:
    """What the search of an accuracy study found for the rankers of the group `linear`, all of which it must have."""
    rankers = dict.fromkeys([MHA, *(change.ranker for change in groups(*width_of_rows(section(MHA, shared)))[LINEAR])])
    rows = [StudyRow(name, name, _run(section(name, shared), train)) for name in rankers]
    search = found_in(path, rows)
    parameters = {name: row.parameters() for name, row in search.rows.items()}
    for name, chosen in parameters.items():
        if held := [key for key in chosen if key.removeprefix("model.") in {*RANK, *shared}]:
            raise UsageError(
                f"--found {path}: its search changed '{held[0]}' of '{name}', which an ablation keeps equal; name a "
                "study that searched other keys"
            )
    for row in rows:
        row.applied(parameters[row.name])
    return Found(
        file=str(search.found_in),
        log=str(search.found_on),
        data_fingerprint=search.found_fingerprint,
        trials_per_row=search.trials_per_row,
        parameters=parameters,
    )


def _variant(key: str, ranker: str, model: Mapping[str, Any], train: TrainConfig, chosen: Mapping[str, Any]) -> Variant:
    """Its name is the key alone where nothing was chosen, and says what was chosen else."""
    return StudyRow(key, ranker, _run(model, train)).variant(chosen)


def _run(model: Mapping[str, Any], train: TrainConfig) -> RunConfig:
    return RunConfig(dataset=Path(UNNAMED), model=dict(model), train=train)
