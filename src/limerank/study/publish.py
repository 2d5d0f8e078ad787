"""From a finished run to an active bundle: where training and serving meet."""

from __future__ import annotations

from pathlib import Path

from limerank.errors import if_interrupted
from limerank.progress import Progress
from limerank.serve.bundle import Bundle
from limerank.serve.offline import export
from limerank.serve.store import BundleStore
from limerank.train.run import Run


def publish_run(run: Run, store: Path, progress: Progress, *, row_type: str = "fp16", activate: bool = True) -> Bundle:
    """Run the offline item stage on a run's ranker and dataset, publish the bundle, and make it active if asked."""
    log = run.dataset()
    with if_interrupted(f"interrupted; nothing was activated, {store} ranks as before"):
        bundle = export(
            run.ranker(log),
            run.config.model,
            log,
            store,
            max_history=run.config.train.max_history,
            row_type=row_type,
            metrics={name: metric.model_dump() for name, metric in run.record.test.items()},
            progress=progress,
        )
    return BundleStore(store).activate(bundle.manifest.id) if activate else bundle
