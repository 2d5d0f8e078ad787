"""How many links a log of a given number of interests needs: simulated logs that differ in their topics only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from limerank.config import TrainConfig
from limerank.data.sources.simulated import SimulatedConfig
from limerank.progress import Progress
from limerank.study.scaling.grid import defined
from limerank.study.scaling.results import Gap, InterestCell
from limerank.study.simulated_log import simulated_dataset
from limerank.study.trainings import Failures, Variant, train_variants

BASELINE = "ttsn"
SKYLINES = {"lime-mha": "mha", "lime-xor": "hstu"}


def interest_variants(models: Sequence[str], links: Sequence[int], train: TrainConfig) -> list[Variant]:
    """The baseline, the skylines of some rankers, and those rankers with every number of links."""
    ends = [BASELINE, *(SKYLINES[model] for model in models)]
    return [
        *(Variant(name, {"name": name}, train) for name in ends),
        *(Variant(f"{model}-l{count}", {"name": model, "links": count}, train) for model in models for count in links),
    ]


def run_interests(
    base: SimulatedConfig,
    topics: Sequence[int],
    variants: Sequence[Variant],
    seeds: Sequence[int],
    out: Path,
    progress: Progress,
    *,
    overwrite: bool,
    workers: int | None,
    failures: Failures,
) -> tuple[str, list[InterestCell]]:
    """Train everything on a log for each number of topics; the task, and a cell for each training."""
    cells, task = [], ""
    for count in topics:
        progress.say(f"{count} topics:")
        folder = out / f"topics-{count}"
        config = base.model_copy(update={"topics": count})
        dataset = simulated_dataset(config, folder / "dataset", overwrite=overwrite)
        failed = Failures(progress)
        runs = train_variants(
            dataset,
            variants,
            seeds,
            folder / "runs",
            progress,
            overwrite=overwrite,
            workers=workers,
            failed=failed,
        )
        failed.unless_all(runs, folder)
        failures.taken += [one.model_copy(update={"row": f"{one.row} ({count} topics)"}) for one in failed.taken]
        task = next(iter(next(iter(runs.values())).record.test))
        for run in runs.values():
            test = run.record.test[task]
            cells.append(
                InterestCell(
                    topics=count,
                    model=run.record.model,
                    links=run.config.model.get("links"),
                    seed=run.record.seed,
                    ne=defined(test.ne, run),
                    auc=defined(test.auc, run),
                )
            )
    return task, cells


def gaps_of(cells: Sequence[InterestCell]) -> list[Gap]:
    """The fraction of the NE gap between TTSN and its skyline that each ranker closes, with every number of links."""
    ne = {(cell.topics, cell.model, cell.links, cell.seed): cell.ne for cell in cells}
    gaps = []
    for topics, model, links in dict.fromkeys((c.topics, c.model, c.links) for c in cells if c.links is not None):
        three = ((BASELINE, None), (SKYLINES[model], None), (model, links))
        seeds = sorted({cell.seed for cell in cells})
        seeds = [seed for seed in seeds if all((topics, *which, seed) in ne for which in three)]
        if not seeds:
            continue
        closed = []
        for seed in seeds:
            low, high, own = (ne[topics, *which, seed] for which in three)
            if high < low:  # a skyline that lost has no gap to close
                closed.append((low - own) / (low - high))
        low, high, own = (mean(ne[topics, *which, seed] for seed in seeds) for which in three)
        gaps.append(
            Gap(
                topics=topics,
                model=model,
                skyline=SKYLINES[model],
                links=links,
                closed=closed,
                of_means=(low - own) / (low - high) if high < low else None,
            )
        )
    return gaps
