"""Made-up inputs for counting and timing: random features, one request, an untrained ranker of a given size."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from limerank.batch import Features, History, Jagged, UserInputs
from limerank.models import RANKERS, Ranker, build_ranker
from limerank.models.presets import budget_options
from limerank.schema import EncodedFeature, FeatureSpace, Kind

MINUTE = 60_000

BUILT_IN = FeatureSpace(
    item=(
        EncodedFeature(name="item", kind=Kind.CATEGORICAL, size=10_000),
        EncodedFeature(name="category", kind=Kind.CATEGORICAL, size=100),
        EncodedFeature(name="tags", kind=Kind.MULTI_VALUED, size=50),
    ),
    event=(EncodedFeature(name="clicked", kind=Kind.CATEGORICAL, size=4),),
    user=(EncodedFeature(name="user", kind=Kind.CATEGORICAL, size=1_000),),
    context=(EncodedFeature(name="device", kind=Kind.CATEGORICAL, size=8),),
)
"""What parameters are counted for when no dataset is given."""


def sized_ranker(name: str, letters: Mapping[str, int], space: FeatureSpace = BUILT_IN, tasks: int = 1) -> Ranker:
    """An untrained ranker of width d with budget l, ready to predict."""
    budget = dict.fromkeys(budget_options(RANKERS[name].options_type), letters["l"])
    options = {"name": name, "width": letters["d"], **budget}
    return build_ranker(options, space, tasks, f"--width {letters['d']}, --links {letters['l']}").eval()


def random_items(space: FeatureSpace, count: int, seed: int = 0) -> Features:
    """Items with random features, every list of two values."""
    return random_features(space.item, count, torch.Generator().manual_seed(seed))


def random_request(space: FeatureSpace, history: int, seed: int = 0) -> UserInputs:
    """One request with random features, and a history in which every event has an item of its own."""
    generator = torch.Generator().manual_seed(seed)
    times = torch.arange(history + 1) * MINUTE
    events = History(
        random_features(space.item, history, generator),
        torch.arange(history),
        random_features(space.event, history, generator),
        torch.tensor([0, history]),
        times[:-1],
    )
    users, context = random_features(space.user, 1, generator), random_features(space.context, 1, generator)
    return UserInputs(users, context, events, times[-1:])


def random_features(features: tuple[EncodedFeature, ...], rows: int, generator: torch.Generator) -> Features:
    """Rows with random values of some features; every list has two."""

    def drawn(size: int, count: int) -> Tensor:
        return torch.randint(0, size, (count,), generator=generator)

    single = [f for f in features if f.kind not in (Kind.MULTI_VALUED, Kind.VECTOR)]
    columns = [drawn(feature.size, rows) for feature in single]
    indices = torch.stack(columns, dim=1) if columns else torch.zeros(rows, 0, dtype=torch.long)
    lists = [
        Jagged(drawn(feature.size, 2 * rows), torch.arange(rows + 1) * 2)
        for feature in features
        if feature.kind is Kind.MULTI_VALUED
    ]
    vectors = [torch.randn(rows, f.size, generator=generator) for f in features if f.kind is Kind.VECTOR]
    return Features(indices, tuple(lists), tuple(vectors))
