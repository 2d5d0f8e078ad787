"""Item rows times a user's matrix: the light interaction stage of a factorized ranker.

A factorized ranker's interaction with candidate c is `o_c = [w_(c,h) V_h]_h`, with cached weights `w_c` [H, l] and the
request's link values `V` [H, l, v]. The head's first layer is `z_c = o_c W + s_c + r`, `s_c` cached per item and `r`
computed once per request. Two orders of the same products:

* plain:  `o_c` first (for one request as one GEMM with the block-diagonal of the `V_h`), then `o_c W`;
* folded: `G = [V_h W_h]_h` [H*l, hidden] once per request, then `w_c G`, one GEMM.
"""

from limerank.ops.candidate.cost import ScoringCost, scoring_cost
from limerank.ops.candidate.scoring import block_diagonal_values, fold_values, weighted_values

__all__ = ["ScoringCost", "block_diagonal_values", "fold_values", "scoring_cost", "weighted_values"]
