"""What a reader of an ablation must know before believing it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from limerank.study.ablation.results import AblationStudy
from limerank.study.ablation.variants import LINEAR
from limerank.study.simulated_log import shaped_by_lime


def caveats_of(study: AblationStudy, origin: Mapping[str, Any], *, with_times: bool) -> list[str]:
    """A sentence or a few each; `origin` is what the dataset says of its log."""
    said = [
        "One log, one training recipe for all variants: what is worth nothing here may be worth something elsewhere, "
        "and a variant may want another learning rate than its base.",
        f"Intervals are Student's over {len(study.made.seeds)} seeds; they hold the spread of seeds, not of logs or "
        "users. Many comparisons are made, so of twenty variants that change nothing one is expected to look clear.",
    ]
    said += shaped_by_lime(origin)
    if not with_times:
        said.append("The log has no times: age buckets, hour and weekday, and the recency bias are left out.")
    if LINEAR in study.groups:
        said += [
            _training_of_linear(study),
            "Kernel errors are those of one trained skyline. A low kernel error is not needed for accuracy: a ranker "
            "trains its own queries, keys and values and need not imitate the skyline. PMA and Lightning have no "
            "kernel error: their weights are no fixed function of the skyline's queries and keys.",
            "Latencies use trained weights and a made-up request, on one thread. Rows are as wide as LIME's "
            f"(heads times links) for linear-attention, lrea and lightning; rank or length is {study.links} for the "
            "others. MHA's cost grows with the history.",
        ]
    for kept in study.kept:
        said.append(
            f"Not made anew but taken from {kept.file}: {', '.join(kept.groups)}; made on {kept.made.started[:10]}, "
            f"revision {(kept.made.revision or 'unknown')[:12]}, by `{kept.made.command}`. What was trained both there "
            "and here and differs is called anew, and each variant is held against a base of its own time."
        )
    return said + [failure.said for failure in study.failures]


def _training_of_linear(study: AblationStudy) -> str:
    found = study.found
    if found is None:
        return (
            "In the group linear all rankers are trained with the setting that is LIME-MHA's default, and nothing was "
            "searched for its rivals: a setting of their own may suit them better (--found)."
        )
    same = "this log" if found.data_fingerprint == study.data_fingerprint else f"another log ({found.log})"
    return (
        f"In the group linear every ranker, the base included, is trained with what {found.trials_per_row} trials each "
        f"found for it on the validation part of {same} ({found.file}); linear-attention, lrea and lightning were "
        "searched with rows of their default width."
    )
