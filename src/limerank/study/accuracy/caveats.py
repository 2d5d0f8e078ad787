"""What a reader of the table must know before believing it."""

from __future__ import annotations

from limerank.study.accuracy.gaps import BASELINE
from limerank.study.accuracy.results import AccuracyStudy
from limerank.study.paper import LABEL_B, LEADERBOARD_NOTE, TAOBAO_AD
from limerank.study.simulated_log import shaped_by_lime

FEW_USERS, FEW_SEEDS = 1000, 3


def caveats_of(study: AccuracyStudy) -> list[str]:
    """A sentence each."""
    dataset, said = study.dataset, []
    if dataset.published is None:
        said.append(
            f"This is not a dataset of the paper's {LABEL_B}, so no figure of the paper can stand beside ours; orders "
            "and gaps can be compared, figures cannot."
        )
    if dataset.source == "simulated":
        said.append("The log is simulated: what wins here wins on a log whose users behave as we wrote them.")
    said += shaped_by_lime(dataset.origin)
    if dataset.published == TAOBAO_AD.name:
        said.append(f"Public leaderboard: {LEADERBOARD_NOTE}.")
    if dataset.select_on_test:
        said.append("The dataset selects on its test part, as leaderboards do: all figures are a little too good.")
    if dataset.test_users < FEW_USERS:
        said.append(
            f"The test part has {dataset.test_users:,} user{'s' * (dataset.test_users != 1)}: intervals are wide."
        )
    seeds = len(study.made.seeds)
    if seeds < FEW_SEEDS:
        one = seeds == 1
        said.append(
            "One seed: intervals are over users alone and do not know what another seed would change."
            if one
            else f"{seeds} seeds say little about the spread that seeds add."
        )
    if study.search is None:
        said.append(
            "Nothing was searched: every row has one configuration, which may suit one ranker more than another."
        )
    elif study.search.found_in is not None:
        same = study.search.found_fingerprint == study.dataset.fingerprint
        where = "this log by another study" if same else f"another log, {study.search.found_on}"
        said.append(f"Options were searched on {where} ({study.search.found_in}), and are used as they were found.")
    late = [row.name for row in study.rows if all(run.best_epoch == row.train["epochs"] for run in row.runs)]
    if late:
        said.append(
            "Best at the last epoch in every seed, where the learning rate is lowest; longer trainings may do better: "
            f"{', '.join(late)}."
        )
    revisions = {run.revision[:12] for row in study.rows for run in row.runs if run.revision is not None}
    if len(revisions) > 1:
        said.append(f"Runs were trained by {len(revisions)} revisions of the code: {', '.join(sorted(revisions))}.")
    said += [failure.said for failure in study.failures]
    if study.row(BASELINE) is None:
        said.append(f"{BASELINE} was not trained, so there is no baseline to compare with.")
    return said
