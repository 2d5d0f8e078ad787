"""What a row costs to keep: parameters, bytes per item and per user (study/zoo.py counts them the same way)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from limerank.bench.made_up import random_items, random_request
from limerank.data.store.dataset import StoredDataset
from limerank.models import build_ranker
from limerank.ops.candidate import RowStore
from limerank.study.zoo import state_bytes


class Costs(NamedTuple):
    """Of one ranker on one dataset."""

    parameters: int
    embedding_parameters: int
    item_bytes: int
    user_bytes: int


def costs_of(model: Mapping[str, Any], dataset: StoredDataset, max_history: int) -> Costs:
    """Of a model section, untrained: weights change none of these."""
    space = dataset.encoders.space()
    ranker = build_ranker(model, space, len(dataset.schema.tasks), "study").eval()
    with torch.no_grad():
        items = ranker.encode_items(random_items(space, 1))
        user = ranker.encode_user(random_request(space, max_history))
    return Costs(
        parameters=sum(parameter.numel() for parameter in ranker.parameters()),
        embedding_parameters=sum(
            parameter.numel() for name, parameter in ranker.named_parameters() if name.endswith("embedding.table")
        ),
        item_bytes=RowStore.store(items.rows, items.head_part, "fp16").row_bytes,
        user_bytes=state_bytes(user),
    )
