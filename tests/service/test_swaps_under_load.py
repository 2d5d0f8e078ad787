"""S1: bundles are swapped under load, and every answer is whole and of the bundle that it names."""

from __future__ import annotations

from pathlib import Path

import pytest
from soak.stores import SoakStore, agrees, references, store_of
from soak.swaps import swap_under_load

from limerank.bench.serving.service_process import ServiceProcess
from limerank.data.store.dataset import StoredDataset

SWAPS, RATE, SECONDS = 20, 50, 10


@pytest.fixture(scope="module")
def two_bundles(dataset: StoredDataset, tmp_path_factory: pytest.TempPathFactory) -> SoakStore:
    """Of the same log with other weights."""
    return store_of(dataset, tmp_path_factory.mktemp("swaps") / "store")


def test_swaps_under_load_lose_and_mix_nothing(two_bundles: SoakStore) -> None:
    """20 activations and rollbacks under 50 requests per second: no answer but 200, every score that of its bundle."""
    with ServiceProcess(two_bundles.path) as service:
        found = swap_under_load(service, two_bundles, rate=RATE, seconds=SECONDS, swaps=SWAPS)
    assert not found.failed_swaps
    assert found.swaps == SWAPS
    assert not found.not_answered
    assert found.mixed == 0
    assert sum(found.by_bundle.values()) == found.requests > RATE * SECONDS / 2
    assert set(found.by_bundle) == set(two_bundles.bundles)
    assert min(found.by_bundle.values()) > RATE


def test_a_mixed_answer_would_be_noticed(two_bundles: SoakStore) -> None:
    """The check is not empty: scores of one bundle under the name of the other do not agree."""
    asked = [(two_bundles.users[0], two_bundles.items[:20])]
    (first,), (second,) = references(two_bundles, asked).values()
    assert agrees(first, dict(first))
    assert not agrees(first, second)
    some = dict(list(first.items())[:10]) | dict(list(second.items())[10:])
    assert not agrees(some, first)
    assert not agrees(some, second)
    assert Path(two_bundles.path).is_dir()
