"""The metrics of one task on some rows, as they are recorded and shown."""

from __future__ import annotations

from pydantic import BaseModel

CUTOFF = 10


class Metrics(BaseModel):
    """The metrics of one task on one part of a dataset. One that is undefined is None, never a made-up number.

    Runs of older versions have the first six only.
    """

    auc: float | None
    gauc: float | None
    """AUC within each user, averaged by the user's number of rows (DIN's and FuxiCTR's weights)."""
    ne: float | None
    logloss: float | None
    rows: int
    """Rows with a label."""
    positive_rate: float
    session_auc: float | None = None
    """AUC within each request, all requests counting the same."""
    calibration: float | None = None
    """Predicted positives divided by observed ones."""
    ece: float | None = None
    """Expected calibration error: mean distance of predicted and observed rates over bins of equally many rows."""
    ndcg: float | None = None
    """NDCG at `cutoff` of the requests that have a positive, their mean."""
    recall: float | None = None
    """Recall at `cutoff` of the requests that have a positive, their mean."""
    cutoff: int = CUTOFF
    missing: int = 0
    """Rows without a label; they are left out."""
