"""How two bundles differ: what their manifests say, items and users by id and features, and rankings of some users."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from limerank.batch import Features, Jagged
from limerank.data.store.encoders import Encoder
from limerank.data.store.manifest import UNKNOWN_ROW
from limerank.schema import FIRST_KNOWN_INDEX, UNKNOWN_INDEX, Kind
from limerank.serve.bundles.bundle import Bundle
from limerank.serve.bundles.earlier import same_features
from limerank.serve.bundles.ids import IdMap
from limerank.serve.engine import Engine

FACTS = ("model", "tasks", "items", "users", "row_type", "row_bytes", "row_fingerprint", "data_fingerprint")
MORE_FACTS = ("watermark", "max_history", "metrics", "display", "limerank", "format")
SAMPLED_USERS, SAMPLED_ITEMS = 50, 500
TOPS = (10, 100)
IDS_PER_BLOCK = 2**16
FIRST_ROW = UNKNOWN_ROW + 1
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class BundleDiff:
    """What is different in a new bundle."""

    old: str
    new: str
    facts: dict[str, tuple[Any, Any]]
    """What differs in the manifests, by name: old and new."""
    items_added: int
    items_removed: int
    items_changed: int
    """In both, with other features. A feature that the two encode in ways that cannot be compared is not looked at."""
    users_added: int
    users_removed: int
    rankings: dict[str, float]
    """Of sampled users that both know: how many (`users`), which fraction of the top 10 and 100 is the same
    (`overlap_10`, `overlap_100`), and the mean absolute difference of probabilities (`score_difference`)."""


def diff(old: Engine, new: Engine, users: int = SAMPLED_USERS) -> BundleDiff:
    """How two bundles differ. Ids and features are compared in blocks: memory does not grow with the catalog."""
    before, after = old.bundle, new.bundle
    known, changed = _compared_items(before, after)
    known_users = _known(before.user_ids, after.user_ids)
    return BundleDiff(
        old=before.manifest.id,
        new=after.manifest.id,
        facts=_facts(before, after),
        items_added=after.manifest.items - FIRST_ROW - known,
        items_removed=before.manifest.items - FIRST_ROW - known,
        items_changed=changed,
        users_added=after.manifest.users - FIRST_ROW - known_users,
        users_removed=before.manifest.users - FIRST_ROW - known_users,
        rankings=_rankings(old, new, users),
    )


def _facts(before: Bundle, after: Bundle) -> dict[str, tuple[Any, Any]]:
    old, new = before.manifest.model_dump(mode="json"), after.manifest.model_dump(mode="json")
    facts = {name: (old[name], new[name]) for name in (*FACTS, *MORE_FACTS) if old[name] != new[name]}
    sizes = [sum(record.bytes for record in bundle.manifest.files) for bundle in (before, after)]
    return facts if sizes[0] == sizes[1] else {**facts, "bytes": (sizes[0], sizes[1])}


def _rows_before(before: IdMap, after: IdMap) -> Iterator[tuple[Ints, Ints]]:
    """Rows of the new ids that were known, and the rows they had, in blocks."""
    for first in range(FIRST_ROW, len(after), IDS_PER_BLOCK):
        last = min(first + IDS_PER_BLOCK, len(after))
        rows = before.find(after.texts.part(first, last))
        known = np.flatnonzero(rows != UNKNOWN_ROW)
        yield known + first, rows[known]


def _known(before: IdMap, after: IdMap) -> int:
    return sum(len(rows) for rows, _ in _rows_before(before, after))


def _compared_items(before: Bundle, after: Bundle) -> tuple[int, int]:
    """How many of the new items were known, and how many of these have other features."""
    compare = _Comparison(before.encoders.item, after.encoders.item)
    known = changed = 0
    for rows, rows_before in _rows_before(before.item_ids, after.item_ids):
        these, those = (
            after.item_table.take(torch.from_numpy(rows)),
            before.item_table.take(torch.from_numpy(rows_before)),
        )
        known += len(rows)
        changed += int((~compare.same(those, these)).sum())
    return known, changed


class _Comparison:
    """Compares items that two bundles encode each in its own way, feature by feature, as far as that can be done.

    A value that one of two vocabularies does not have reads as unknown, which is not another value.
    """

    def __init__(self, old: Sequence[Encoder], new: Sequence[Encoder]) -> None:
        self.alike = list(old) == list(new)
        mine, theirs = _columns(old), _columns(new)
        self.pairs = [
            (kind, mine[kind, name], theirs[kind, name], _translation(*both))
            for (kind, name) in mine
            if (kind, name) in theirs and _comparable(both := (_of(old, name), _of(new, name)))
        ]

    def same(self, old: Features, new: Features) -> NDArray[np.bool_]:
        """Whether each row is the one beside it."""
        if self.alike:
            return same_features(new, old)
        same = np.ones(len(old), dtype=bool)
        for kind, before, after, translation in self.pairs:
            if kind == "vector":
                same &= (old.vectors[before] == new.vectors[after]).all(1).numpy()
            elif kind == "list":
                same &= _same_lists(old.lists[before], new.lists[after], translation)
            else:
                same &= _same_values(old.indices[:, before].numpy(), new.indices[:, after].numpy(), translation)
        return same


def _columns(encoders: Sequence[Encoder]) -> dict[tuple[str, str], int]:
    """Where each feature stands: among the indices, the lists or the vectors."""
    kinds = {Kind.MULTI_VALUED: "list", Kind.VECTOR: "vector"}
    found: dict[tuple[str, str], int] = {}
    for encoder in encoders:
        kind = kinds.get(encoder.kind, "index")
        found[kind, encoder.name] = sum(one == kind for one, _ in found)
    return found


def _of(encoders: Sequence[Encoder], name: str) -> Encoder:
    return next(encoder for encoder in encoders if encoder.name == name)


def _comparable(both: tuple[Encoder, Encoder]) -> bool:
    old, new = both
    return old.kind == new.kind and (old == new or bool(old.vocabulary and new.vocabulary))


def _translation(old: Encoder, new: Encoder) -> Ints | None:
    """New indices by old ones, 1 where the new vocabulary lacks the value; None: they are the same."""
    if old == new:
        return None
    index_of = {text: index for index, text in enumerate(new.vocabulary, FIRST_KNOWN_INDEX)}
    return np.array([*range(FIRST_KNOWN_INDEX), *(index_of.get(text, UNKNOWN_INDEX) for text in old.vocabulary)])


def _same_values(old: Ints, new: Ints, translation: Ints | None) -> NDArray[np.bool_]:
    if translation is None:
        return np.asarray(old == new)
    told = translation[old]
    return np.asarray((told == new) | (told == UNKNOWN_INDEX) | (new == UNKNOWN_INDEX))


def _same_lists(old: Jagged, new: Jagged, translation: Ints | None) -> NDArray[np.bool_]:
    same = np.zeros(len(old.offsets) - 1, dtype=bool)
    begins, values = (old.offsets.numpy(), new.offsets.numpy()), (old.values.numpy(), new.values.numpy())
    for row in range(len(same)):
        mine, theirs = (part[begin[row] : begin[row + 1]] for part, begin in zip(values, begins, strict=True))
        same[row] = len(mine) == len(theirs) and bool(_same_values(mine, theirs, translation).all())
    return same


def _rankings(old: Engine, new: Engine, most: int) -> dict[str, float]:
    """How rankings of the whole catalog differ, for users that both know."""
    users, items = (
        _in_both(old.bundle.user_ids, new.bundle.user_ids, most),
        _in_both(old.bundle.item_ids, new.bundle.item_ids, SAMPLED_ITEMS),
    )
    if not users or not items:
        return {"users": 0.0}
    tasks = [task for task in old.bundle.manifest.tasks if task in new.bundle.manifest.tasks]
    columns = [[engine.bundle.manifest.tasks.index(task) for task in tasks] for engine in (old, new)]
    overlaps: dict[int, list[float]] = {top: [] for top in TOPS}
    differences = []
    for user in users:
        mine, theirs = (engine.answer(user, limit=max(TOPS)).item_ids for engine in (old, new))
        for top in TOPS:
            best = min(top, len(mine), len(theirs))
            overlaps[top].append(len(set(mine[:best]) & set(theirs[:best])) / best if best else 1.0)
        if tasks:
            scores = [
                engine.score(engine.encode_user(user), items)[:, chosen]
                for engine, chosen in zip((old, new), columns, strict=True)
            ]
            differences.append(float(np.abs(scores[0] - scores[1]).mean()))
    found = {f"overlap_{top}": float(np.mean(overlaps[top])) for top in TOPS}
    return {"users": float(len(users)), **found, **({"score_difference": float(np.mean(differences))} if tasks else {})}


def _in_both(before: IdMap, after: IdMap, most: int) -> list[str]:
    """Ids that both have, sampled evenly over the rows of the new one."""
    if len(after) <= FIRST_ROW:
        return []
    rows = np.unique(np.linspace(FIRST_ROW, len(after) - 1, 2 * most).astype(np.int64))
    names = after.names_of(rows)
    kept = before.rows_of(names) != UNKNOWN_ROW
    both = [name for name, one in zip(names, kept, strict=True) if one]
    return [both[position] for position in np.unique(np.linspace(0, len(both) - 1, most).astype(int))] if both else []
