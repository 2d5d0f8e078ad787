"""Sequences and candidates to look at: requests with long enough histories, and random items of the catalog."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from limerank.batch import Features, UserInputs
from limerank.data.batches import RequestLoader
from limerank.data.store.dataset import StoredDataset
from limerank.errors import DataError
from limerank.splits import Part

Ints = NDArray[np.int64]
PARTS = (Part.TEST, Part.VALIDATION, Part.TRAIN)
"""Where requests are taken from: others than the test part only if that has too few with a long history."""


@dataclass(frozen=True)
class Pairs:
    """So many (sequence, candidates) pairs; the same for every ranker that is looked at."""

    loader: RequestLoader
    requests: Ints
    candidates: Ints
    """Rows of the item table [pairs, M]."""
    users: int
    """How many different users these are."""
    history: int

    def __len__(self) -> int:
        return len(self.requests)

    def inputs(self, number: int) -> UserInputs:
        """The sequence of one pair: its user's last events before a request."""
        return self.loader.user_inputs(self.requests[number : number + 1])

    def items(self, number: int) -> Features:
        """The candidates of one pair."""
        return self.loader.dataset.item_table.take(torch.from_numpy(self.candidates[number]))


def choose_pairs(dataset: StoredDataset, pairs: int, history: int, candidates: int, seed: int) -> Pairs:
    """Requests with at least `history` events, of as many users as there are; candidates without replacement."""
    loader = RequestLoader(dataset, Part.TEST, batch_requests=1, max_history=history, with_times=_has_times(dataset))
    generator = np.random.default_rng(seed)
    user = dataset.column("requests/user")
    chosen, longest = np.zeros(0, dtype=np.int64), 0
    for part in PARTS:
        requests = generator.permutation(dataset.requests_in(part))
        lengths = loader.history_lengths(requests)
        longest = max(longest, int(lengths.max(initial=0)))
        chosen = np.concatenate([chosen, _users_in_turn(requests[lengths >= history], user)])
        if len(chosen) >= pairs:
            break
    items = len(dataset.item_table) - 1
    if len(chosen) < pairs:
        found = f"the longest has {longest:,}" if not len(chosen) else f"only {len(chosen):,} have"
        raise DataError(
            f"{dataset.path}: {pairs:,} requests with {history:,} events of history are needed, {found}; "
            "pass a smaller --history or fewer --pairs"
        )
    if items < candidates:
        raise DataError(f"{dataset.path}: has {items:,} items; pass --candidates {items} or fewer")
    drawn = np.stack([1 + generator.choice(items, candidates, replace=False) for _ in range(pairs)])
    taken = chosen[:pairs]
    return Pairs(loader, taken, drawn, len(np.unique(user[taken])), history)


def _users_in_turn(requests: Ints, user: Ints) -> Ints:
    """The first request of every user, then the second of every user, and so on."""
    of = user[requests]
    order = np.argsort(of, kind="stable")
    starts = np.flatnonzero(np.diff(of[order], prepend=-1))
    turn = np.arange(len(order)) - np.repeat(starts, np.diff(starts, append=len(order)))
    back = np.empty_like(turn)
    back[order] = turn
    return requests[np.argsort(back, kind="stable")]


def _has_times(dataset: StoredDataset) -> bool:
    return dataset.schema.time is not None and dataset.schema.histories is None
