"""What travels between the user stage and a shard: a request's matrix there, the best rows and their scores back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from limerank.models import Ranker, UserState
from limerank.ops.candidate import RequestHead
from limerank.schema import EncodedFeature, FeatureSpace, Kind
from limerank.serve.scorer import ScoringPath, request_head
from limerank.serve.sharded.row_steps import Steps
from limerank.serve.sharded.slices import Slice

Floats = NDArray[np.float32]
Positions = NDArray[np.int32]
TOWERS = ("item_tower.", "context_tower.")
"""Where a ranker's large tables are. A shard needs none of them: rows are computed, and so is the user's state."""
LEAST_INDICES = 2
"""A table has rows for padding and for the unknown."""


@dataclass(frozen=True)
class Assignment:
    """What a shard serves, as long as it lives: after a restart Ray gives it the same again."""

    folder: str
    """Of the bundle, on the machine of the shard."""
    bundle: str
    part: Slice
    digest: str
    """Of the rows, as they were when the whole bundle was verified."""
    model: dict[str, Any]
    space: FeatureSpace
    tasks: int
    weights: dict[str, NDArray[Any]]
    """Of the interaction and the head."""


@dataclass(frozen=True)
class Facts:
    """What a shard says of itself when it is ready."""

    bundle: str
    pid: int
    pays_from: int | None
    """Candidates from which it tries integers."""


@dataclass(frozen=True)
class Question:
    """One request to one shard."""

    bundle: str
    path: ScoringPath
    tensors: tuple[Floats, ...]
    """Folded: the user matrix and its offset. Plain: what the user adds to the head, and what the interaction reads."""
    k: int
    task: int
    rows: Steps | None
    """Of the candidates, ascending, counted from the shard's first; None: all its items."""
    hidden: Positions
    """Positions of candidates that must not be answered, ascending."""
    milliseconds: float | None
    """That the shard may take, if there is a deadline: fewer than whoever asks waits, for the answer travels."""


@dataclass(frozen=True)
class Answer:
    """The best candidates of one shard.

    Of those that were named also all that equal the k-th: which of them was named first is known to who asks only.
    """

    bundle: str
    positions: Positions
    """Among the candidates, by row, best first; of all items, counted from the shard's first item."""
    values: Floats
    """Probabilities of all tasks."""
    path: ScoringPath
    rescored: int = 0
    fell_back: bool = False
    unscored: int = 0
    """Candidates that there was no time for."""
    refused: str = ""
    """Why there is no answer, though the shard is well."""


def weights_of(ranker: Ranker) -> dict[str, NDArray[Any]]:
    """All weights but those of the towers: some hundred kilobytes."""
    return {
        name: tensor.detach().numpy() for name, tensor in ranker.state_dict().items() if not name.startswith(TOWERS)
    }


def without_tables(space: FeatureSpace) -> FeatureSpace:
    """The same features with the smallest tables; a vector stays as wide as it is."""

    def small(features: tuple[EncodedFeature, ...]) -> tuple[EncodedFeature, ...]:
        return tuple(
            one if one.kind is Kind.VECTOR else one.model_copy(update={"size": LEAST_INDICES}) for one in features
        )

    return FeatureSpace(
        item=small(space.item), event=small(space.event), user=small(space.user), context=small(space.context)
    )


def packed(ranker: Ranker, user: UserState, path: ScoringPath) -> tuple[Floats, ...]:
    """What a shard has to know of a user, for a path."""
    if path in ("integer", "folded"):
        folded = ranker.fold(user)[0]
        return folded.matrix.detach().numpy(), folded.offset.detach().numpy()
    return tuple(tensor.detach().numpy() for tensor in (user.head_part, *user.memory))


def head_of(ranker: Ranker, question: Question, layers: list[tuple[torch.Tensor, torch.Tensor]]) -> RequestHead:
    """The head of a question, on the other side."""
    # what came over the wire may not be written to, and never is
    first, *rest = (torch.from_numpy(one if one.flags.writeable else one.copy()) for one in question.tensors)
    if question.path in ("integer", "folded"):
        return RequestHead(first, rest[0], layers)
    return request_head(ranker, UserState(tuple(rest), first), question.path, layers)
