"""Groups of an earlier result beside those that are made anew: of the same log, training, seeds and links only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from limerank.config import TrainConfig
from limerank.errors import UsageError
from limerank.study.ablation.results import AblationStudy, Kept, Trained
from limerank.study.ablation.variants import LINEAR, ROWS, groups
from limerank.study.pages import open_result

ANEW = " (anew)"
"""Follows the key of what was trained for the earlier result, too, and came out otherwise."""


def read_kept(path: Path, asked: AblationStudy) -> AblationStudy:
    """An earlier result that what is asked for can stand beside; `asked` has no figures yet."""
    earlier = open_result(path).result
    if not isinstance(earlier, AblationStudy):
        raise UsageError(f"--keep {path}: is a study of {earlier.study}; name an ablation.json")
    here, there = _made_from(asked), _made_from(earlier)
    for what, value in here.items():
        if there[what] != value:
            raise UsageError(f"--keep {path}: has {what} {there[what]}, this study {value}; its groups do not compare")
    if not set(earlier.groups) - set(asked.groups):
        raise UsageError(f"--keep {path}: all of its groups are made anew; leave it out, or name fewer --groups")
    return earlier


def with_kept(result: AblationStudy, file: str, earlier: AblationStudy) -> AblationStudy:
    """The result with the groups of an earlier one that it does not have."""
    taken = [group for group in earlier.groups if group not in result.groups]
    nested = [Kept(file=one.file, groups=[g for g in one.groups if g in taken], made=one.made) for one in earlier.kept]
    kept = [one for one in nested if one.groups]
    if own := [group for group in taken if not any(group in one.groups for one in kept)]:
        kept.insert(0, Kept(file=file, groups=own, made=earlier.made))
    compared = [one for one in earlier.compared if one.group in taken]
    rows = earlier.rows if ROWS in taken else result.rows
    needed = {key for one in compared for key in (one.base, one.key)} | {one.model for one in rows if ROWS in taken}
    trained = {one.key: one for one in earlier.trained if one.key in needed}
    renamed = {one.key: _name(one, trained.get(one.key)) for one in result.trained}
    trained |= {
        renamed[one.key]: one.model_copy(update={"key": renamed[one.key]})
        for one in result.trained
        if renamed[one.key] not in trained
    }
    mine = [one.model_copy(update={"base": renamed[one.base], "key": renamed[one.key]}) for one in result.compared]
    order = list(groups(32, 4))
    return result.model_copy(
        update={
            "groups": sorted([*taken, *result.groups], key=order.index),
            "trained": list(trained.values()),
            "compared": sorted([*compared, *mine], key=lambda one: order.index(one.group)),
            "rows": rows,
            "kernel": earlier.kernel if LINEAR in taken else result.kernel,
            "costs": earlier.costs if LINEAR in taken else result.costs,
            "found": earlier.found if LINEAR in taken else result.found,
            "kept": kept,
            "failures": [*[one for one in earlier.failures if one.row in needed], *result.failures],
        }
    )


def _name(own: Trained, before: Trained | None) -> str:
    return own.key if before is None or before.test == own.test else f"{own.key}{ANEW}"


def _made_from(study: AblationStudy) -> dict[str, Any]:
    """What two results must share, or their groups answer different questions."""
    train = TrainConfig.model_validate(study.train).model_dump(mode="json")
    return {
        "quick mode": study.made.quick,
        "a dataset with the fingerprint": study.data_fingerprint,
        "the task": study.task,
        "links": study.links,
        "seeds": study.made.seeds,
        **{f"train.{key}": value for key, value in train.items()},
    }
