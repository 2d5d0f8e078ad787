"""Item rows times a user's matrix: the light interaction stage of a factorized ranker.

A factorized ranker's interaction with candidate c is `o_c = [w_(c,h) V_h]_h`, with cached weights `w_c` [H, l] and the
request's link values `V` [H, l, v]. The head's first layer is `z_c = o_c W + s_c + r`, `s_c` cached per item and `r`
computed once per request. Two orders of the same products:

* plain:  `o_c` first (for one request as one GEMM with the block-diagonal of the `V_h`), then `o_c W`;
* folded: `G = [V_h W_h]_h` [H*l, hidden] once per request, then `w_c G`, one GEMM.

`scoring` holds the products, `rows` the catalog's rows in fp32, fp16 or u8, `bounds` what their precision may cost,
`streaming` a request's scores block by block, `top` the best k of a stream.
"""

from limerank.ops.candidate.bounds import row_error_bound, score_error_bound
from limerank.ops.candidate.rows import ROW_TYPES, RowStore
from limerank.ops.candidate.scoring import block_diagonal_values, fold_values, weighted_values
from limerank.ops.candidate.streaming import (
    LogitSpan,
    RequestHead,
    best_candidates,
    candidate_logits,
    candidate_probabilities,
    over_spans,
)
from limerank.ops.candidate.top import RunningTop, Top
from limerank.ops.cost import ScoringCost, scoring_cost

__all__ = [
    "ROW_TYPES",
    "LogitSpan",
    "RequestHead",
    "RowStore",
    "RunningTop",
    "ScoringCost",
    "Top",
    "best_candidates",
    "block_diagonal_values",
    "candidate_logits",
    "candidate_probabilities",
    "fold_values",
    "over_spans",
    "row_error_bound",
    "score_error_bound",
    "scoring_cost",
    "weighted_values",
]
