"""The head as an inner product: the linear function of an item's row that comes nearest to a request's logits.

    logit_c  ~  <a_c, u> + const,     a_c = [row_c | head part_c]

The head's ReLU makes logits not linear in a_c, so `u` is fitted per request, by least squares over a fixed sample of
the catalog, which is scored exactly. First over the whole sample, for which all but one product is computed beforehand:

    u_0 = (A^T A + ridge)^-1 A^T y

then, because only the best items matter, corrected over the best tenth B of the sample, and held near u_0:

    u = u_0 + (B^T B + prior A^T A + ridge)^-1 B^T (y_B - B u_0)

Maximum inner product search with `u` is then a first phase for any ranker that has item rows; the constant changes no
order. docs/how-to/recommend.md says what it finds, and what simpler ways to drop the ReLU find.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from limerank.models import Ranker, UserState
from limerank.ops.candidate import RowStore
from limerank.serve.scorer import score_candidates

SAMPLE, SEED = 4096, 0
RIDGE, BEST, PRIOR = 1e-5, 0.1, 0.01


def item_vectors(rows: Tensor, head_part: Tensor) -> Tensor:
    """a_c = [row_c | head part_c], fp32."""
    return torch.cat([rows, head_part], 1)


class LinearHead:
    """Linear queries for requests on one catalog."""

    def __init__(self, ranker: Ranker, catalog: RowStore) -> None:
        self._ranker = ranker
        generator = torch.Generator().manual_seed(SEED)
        self._sample = catalog.chosen(torch.randperm(len(catalog), generator=generator)[:SAMPLE].sort().values)
        known = item_vectors(*self._sample.widened())
        self._known = torch.cat([known, known.new_ones(len(known), 1)], 1)
        exact = self._known.double()
        gram = exact.T @ exact
        ridge = RIDGE * gram.diagonal().mean().clamp(min=1e-9)
        self._inverse = torch.linalg.solve(_with_ridge(gram, ridge), exact.T).float()
        self._prior = _with_ridge(PRIOR * gram, BEST * ridge)

    def query(self, user: UserState, task: int = 0) -> Tensor:
        """u [width] of one request, fp32: items with a large <a_c, u> have a large logit."""
        with torch.inference_mode():
            logits = score_candidates(self._ranker, user, self._sample)[:, task]
            overall = self._inverse @ logits
            best = logits.topk(math.ceil(BEST * len(logits))).indices
            known = self._known.index_select(0, best)
            missed = known.T @ (logits[best] - known @ overall)
            exact = known.double()  # few or equal items: rounded to fp32 their products may be less than the ridge
            factor = torch.linalg.cholesky(self._prior + exact.T @ exact)
            correction = torch.cholesky_solve(missed.double()[:, None], factor)[:, 0]
            query: Tensor = (overall + correction.float())[:-1]
        return query


def _with_ridge(matrix: Tensor, ridge: Tensor) -> Tensor:
    return matrix + ridge * torch.eye(len(matrix), dtype=matrix.dtype)
