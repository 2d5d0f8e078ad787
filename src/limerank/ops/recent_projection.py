"""Linear maps along the sequence: r mixtures of a history's events, by weights that belong to places, not to events.

Place 0 is the newest event. Events at places beyond the table of weights are not read.
"""

from __future__ import annotations

import torch
from torch import Tensor

from limerank.ops.jagged import row_of


def project_recent(values: Tensor, offsets: Tensor, weights: Tensor) -> Tensor:
    """sum_j weights[place of j] (x) value_j: jagged [sum_n, d] and [places, k] give [B, k, d]; empty ones are zero."""
    requests, places = offsets.shape[0] - 1, weights.shape[0]
    if requests == 1:
        return _project_one(values, weights)[None]
    count, width = values.shape
    longest = min(max(int(offsets.diff().max()), 1), places) if requests else 1
    request = row_of(offsets, count)
    place = offsets[1:].index_select(0, request) - 1 - torch.arange(count, device=values.device)
    # places before requests: then one product serves all requests; what is too old goes to a last row, unread
    slot = torch.where(place < longest, place * requests + request, longest * requests)
    table = values.new_zeros(longest * requests + 1, width).index_copy(0, slot, values)
    mixed = weights[:longest].T @ table[:-1].view(longest, requests * width)
    return mixed.view(-1, requests, width).transpose(0, 1)


def _project_one(values: Tensor, weights: Tensor) -> Tensor:
    places = weights.shape[0]
    if not torch.compiler.is_compiling():
        values = values[-places:]  # a traced length must not be compared with the table's
    place = torch.arange(values.shape[0] - 1, -1, -1, device=values.device)
    chosen = weights.index_select(0, place.clamp(max=places - 1))
    if torch.compiler.is_compiling():
        chosen = chosen * (place < places)[:, None]
    return chosen.T @ values
