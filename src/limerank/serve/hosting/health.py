"""Why an engine serves less well than it could."""

from __future__ import annotations

from collections.abc import Iterator

from limerank.errors import LimerankError
from limerank.serve.engine import Engine

HOUR = 3600


def problems_of(engine: Engine, max_age_hours: float | None) -> Iterator[str]:
    """Rows that are lost, a bundle that is too old, upserts that it cannot serve, an overlay that cannot be read."""
    if (missing := engine.missing()) is not None:
        yield missing.said
    manifest = engine.bundle.manifest
    age = manifest.age_seconds() / HOUR
    if max_age_hours is not None and age > max_age_hours:
        yield f"bundle {manifest.id} is {age:.1f} hours old, more than {max_age_hours:g}; export a new one"
    try:
        unfit = [item for item, entry in engine.catalog.overlay.entries.items() if entry.unfit is not None]
    except LimerankError as damaged:
        yield str(damaged)
        return
    if unfit:
        more = f" and {len(unfit) - 1} more" if len(unfit) > 1 else ""
        yield f"bundle {manifest.id} cannot serve upserted item '{unfit[0]}'{more}; see `limerank catalog show`"
