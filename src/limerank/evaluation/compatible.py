"""Whether a ranker can read a dataset other than the one it was trained on: its indices must mean the same.

That is so for the same dataset, for what grew from it by `append`, and for any other whose encoders (vocabularies,
buckets, hashes) and tasks are the same.
"""

from __future__ import annotations

from limerank.data.store.dataset import StoredDataset
from limerank.data.store.encoders import Encoder
from limerank.errors import DataError
from limerank.schema import Role

MOST_DIFFERENCES = 3


def descends_from(dataset: StoredDataset, fingerprint: str) -> bool:
    """Whether a dataset has this fingerprint or had it before something was appended."""
    return fingerprint in (dataset.fingerprint, *dataset.manifest.grown_from)


def check_compatible(dataset: StoredDataset, trained_on: StoredDataset, run: str) -> None:
    """Raise, saying what differs, unless rankers of one dataset can read the other."""
    found = differences(dataset, trained_on)
    if found:
        more = f"; and {len(found) - MOST_DIFFERENCES} more" if len(found) > MOST_DIFFERENCES else ""
        raise DataError(
            f"{dataset.path}: {run} cannot read it: {'; '.join(found[:MOST_DIFFERENCES])}{more}; its rankers read what "
            f"grew from {trained_on.path}: copy that and append the new events (limerank append), or train on this one"
        )


def differences(dataset: StoredDataset, trained_on: StoredDataset) -> list[str]:
    """What makes the indices or the scores of two datasets mean different things; empty if nothing does."""
    tasks, wanted = ([task.name for task in one.schema.tasks] for one in (dataset, trained_on))
    found = [] if tasks == wanted else [f"its tasks are {', '.join(tasks)}, not {', '.join(wanted)}"]
    ready, expected = (one.schema.histories is not None for one in (dataset, trained_on))
    if ready != expected:
        found.append(f"its histories {'are ready-made' if ready else 'follow from time'}, the run's do not")
    for role in Role:
        own, known = ({one.name: one for one in data.encoders.of(role)} for data in (dataset, trained_on))
        if list(own) != list(known):
            found.append(f"its {role.value} features are {_listed(list(own))}, not {_listed(list(known))}")
            continue
        found += [text for name in own if (text := _difference(own[name], known[name]))]
    return found


def _difference(own: Encoder, known: Encoder) -> str:
    if own == known:
        return ""
    if own.kind is not known.kind:
        return f"feature '{own.name}' is {own.kind.value}, not {known.kind.value}"
    if own.vocabulary != known.vocabulary:
        same = len(set(own.vocabulary) & set(known.vocabulary))
        return (
            f"feature '{own.name}' has another vocabulary ({len(own.vocabulary):,} values, {same:,} of them among the "
            f"{len(known.vocabulary):,} of the run)"
        )
    return f"feature '{own.name}' has other buckets"


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "none"
