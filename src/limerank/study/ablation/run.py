"""All of the study: train, compare, serve in other precisions, approximate, time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from limerank import files
from limerank.data.store.dataset import StoredDataset
from limerank.errors import UsageError
from limerank.models import complete_model
from limerank.progress import Progress
from limerank.study.ablation.caveats import caveats_of
from limerank.study.ablation.contests import Contest, as_it_is, contests
from limerank.study.ablation.differences import paired
from limerank.study.ablation.kept import read_kept, with_kept
from limerank.study.ablation.linear.costs import measure_costs
from limerank.study.ablation.linear.kernel_error import measure_kernels
from limerank.study.ablation.plan import AblationPlan
from limerank.study.ablation.results import (
    AblationStudy,
    Compared,
    Cost,
    KernelStudy,
    RowPrecision,
    Trained,
    values,
)
from limerank.study.ablation.served import row_precisions
from limerank.study.ablation.variants import LINEAR, MHA, ROWS
from limerank.study.results import making
from limerank.study.trainings import Failures, train_variants
from limerank.training.run import FinishedRun

SKYLINE = "mha"
KERNEL = "kernel.json"

Runs = Mapping[int, FinishedRun]
"""Of one variant, by seed: those that could be finished."""


def run_ablation(
    dataset: Path,
    plan: AblationPlan,
    out: Path,
    progress: Progress,
    *,
    overwrite: bool = False,
    workers: int | None = None,
) -> AblationStudy:
    """Everything that was asked for; finished trainings and kernels of the same are kept."""
    with making(plan.seeds, quick=plan.quick) as made:
        opened = StoredDataset.open(dataset)
        task, train = opened.schema.tasks[0].name, plan.train.model_dump(mode="json")
        result = AblationStudy(
            made=made(),
            dataset=opened.path.name,
            data_fingerprint=opened.fingerprint,
            events=len(opened.column("events/item")),
            task=task,
            links=plan.links,
            train=train,
            groups=list(plan.groups),
            trained=[],
            compared=[],
            rows=[],
            kernel=None,
            costs=[],
            found=plan.found if LINEAR in plan.groups else None,
        )
        earlier = None if plan.keep is None else read_kept(plan.keep, result)
        with_times = opened.schema.time is not None
        held = contests(plan.changes(with_times), plan.train, plan.shared, plan.found)
        bases = [as_it_is(base, plan.train, plan.shared) for base in plan.bases if ROWS in plan.groups]
        variants = {one.name: one for one in bases} | {one.base.name: one.base for one in held}
        variants |= {one.variant.name: one.variant for one in held}
        progress.say(f"{len(variants)} variants from {len(plan.seeds)} seeds: {len(variants) * len(plan.seeds)} runs")
        failures = Failures(progress)
        runs = train_variants(
            dataset,
            list(variants.values()),
            plan.seeds,
            out / "runs",
            progress,
            overwrite=overwrite,
            workers=workers,
            failed=failures,
        )
        failures.unless_all(runs, out)
        by_key: dict[str, Runs] = {
            key: {seed: runs[key, seed] for seed in plan.seeds if (key, seed) in runs} for key in variants
        }
        by_key = {key: own for key, own in by_key.items() if own}
        result.failures = failures.taken
        chosen = {one.base.name: one.base_chosen for one in held} | {one.variant.name: one.chosen for one in held}
        result.trained = [_trained(key, own, task, plan.seeds, chosen.get(key, {})) for key, own in by_key.items()]
        result.compared = [compared for one in held if (compared := _compared(one, result, plan.seeds)) is not None]
        for base in bases:
            if base.name in by_key:
                own = list(by_key[base.name].values())
                result.rows += _rows(base.name, own, opened, plan, out, progress, overwrite)
        if LINEAR in plan.groups and MHA in plan.bases:
            linear = [one for one in held if one.change.group == LINEAR]
            names = {MHA: linear[0].base.name} | {one.change.ranker: one.variant.name for one in linear}
            first = {ranker: next(iter(by_key[key].values())) for ranker, key in names.items() if key in by_key}
            if SKYLINE in first:
                result.kernel = _kernel(first[SKYLINE], opened, plan, out, progress, overwrite)
            progress.say("timing rankers of equal rank")
            result.costs = _costs(first, opened, plan)
        if plan.keep is not None and earlier is not None:
            result = with_kept(result, plan.keep.name, earlier)
        caveats = caveats_of(result, opened.manifest.origin, with_times=with_times)
        return result.model_copy(update={"made": made(), "caveats": caveats})


def _trained(key: str, runs: Runs, task: str, seeds: Sequence[int], chosen: Mapping[str, object]) -> Trained:
    records = [run.record for run in runs.values()]
    return Trained(
        key=key,
        model=complete_model(next(iter(runs.values())).config.model, "ablation"),
        parameters=records[0].parameters,
        test=[record.test[task] for record in records],
        validation=[record.validation[task] for record in records],
        train_seconds=[record.train_seconds for record in records],
        best_epochs=[record.best_epoch for record in records],
        seeds=[] if len(runs) == len(seeds) else list(runs),
        chosen=dict(chosen),
    )


def _compared(one: Contest, result: AblationStudy, seeds: Sequence[int]) -> Compared | None:
    """In the seeds that both have; None if there are none."""
    of_seed = []
    for key in (one.base.name, one.variant.name):
        trained = next((mine for mine in result.trained if mine.key == key), None)
        of_seed.append({} if trained is None else dict(zip(trained.seeds or seeds, trained.test, strict=True)))
    base, variant = of_seed
    both = [seed for seed in seeds if seed in base and seed in variant]
    by_metric = {
        name: paired(values([base[seed] for seed in both], name), values([variant[seed] for seed in both], name))
        for name in ("ne", "auc", "gauc")
    }
    ne = by_metric["ne"]
    if not both:
        return None
    return Compared(
        group=one.change.group,
        base=one.base.name,
        name=one.change.name,
        key=one.variant.name,
        changed=one.changed,
        verdict="cannot be told" if ne is None else ne.verdict(lower_is_better=True),
        **by_metric,
    )


def _costs(runs: Mapping[str, FinishedRun], dataset: StoredDataset, plan: AblationPlan) -> list[Cost]:
    rankers = {name: run.ranker(dataset) for name, run in runs.items()}
    sizes = {"history": plan.history, "candidates": plan.candidates, "repeats": plan.repeats}
    return measure_costs(rankers, dataset, **sizes)


def _kernel(
    run: FinishedRun, dataset: StoredDataset, plan: AblationPlan, out: Path, progress: Progress, overwrite: bool
) -> KernelStudy:
    """Measured, or what an earlier invocation measured of the same run with the same plan."""
    asked = plan.kernels()
    kept, identity = out / KERNEL, _identity(repr(asked), dataset, [run])
    if not overwrite and (found := _kept(kept, identity)) is not None:
        progress.say("kernel errors are kept")
        return KernelStudy.model_validate(found["kernel"])
    with progress.bar("approximating the skyline's attention", asked.work) as bar:
        kernel = measure_kernels(run, dataset, asked, bar)
    files.write_json(kept, {"identity": identity, "kernel": kernel.model_dump(mode="json")})
    return kernel


def _rows(
    model: str,
    runs: Sequence[FinishedRun],
    dataset: StoredDataset,
    plan: AblationPlan,
    out: Path,
    progress: Progress,
    overwrite: bool,
) -> list[RowPrecision]:
    """Served in each precision, or what an earlier invocation found of the same runs."""
    kept, identity = out / f"rows-{model}.json", _identity(str(plan.catalog_requests), dataset, runs)
    if not overwrite and (found := _kept(kept, identity)) is not None:
        progress.say(f"rows of {model} are kept")
        return [RowPrecision.model_validate(one) for one in found["rows"]]
    task = dataset.schema.tasks[0].name
    with progress.bar(f"serving {model} from rows in fp32, fp16 and u8", len(runs)) as bar:
        rows = row_precisions(model, runs, dataset, task, plan.catalog_requests, bar)
    files.write_json(kept, {"identity": identity, "rows": [one.model_dump(mode="json") for one in rows]})
    return rows


def _identity(asked: str, dataset: StoredDataset, runs: Sequence[FinishedRun]) -> str:
    weights = [files.digest_of((run.path / "model.safetensors").read_bytes()) for run in runs]
    return files.digest_of(asked, dataset.fingerprint, *weights)


def _kept(path: Path, identity: str) -> dict[str, Any] | None:
    """What was measured of the same; None if nothing was, or of something else."""
    found = files.read_json(path, UsageError, "pass --overwrite") if path.is_file() else {}
    return found if found.get("identity") == identity else None
