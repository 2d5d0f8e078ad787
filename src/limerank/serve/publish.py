"""From a trained ranker to a bundle that serves: the offline item stage, one verification, activation."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from limerank.data.store.dataset import StoredDataset
from limerank.errors import if_interrupted
from limerank.models import Ranker
from limerank.progress import Progress
from limerank.serve.bundle import Bundle
from limerank.serve.offline import export
from limerank.serve.store import BundleStore

RowType = Literal["fp16", "fp32", "u8"]
"""The precision of stored item rows."""


def publish(
    ranker: Ranker,
    model: dict[str, Any],
    dataset: StoredDataset,
    store: Path,
    *,
    max_history: int,
    row_type: RowType = "fp16",
    metrics: dict[str, Any] | None = None,
    activate: bool = True,
    progress: Progress | None = None,
) -> Bundle:
    """Compute item rows, publish them with all a request needs, and make the bundle active if asked.

    The bundle is verified once, when it is whole.
    """
    with if_interrupted(f"interrupted; nothing was activated, {store} ranks as before"):
        bundle = export(
            ranker,
            model,
            dataset,
            store,
            max_history=max_history,
            row_type=row_type,
            metrics=metrics,
            progress=progress,
        )
    if activate:
        BundleStore(store).make_active(bundle)
    return bundle
