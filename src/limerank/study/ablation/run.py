"""All of the study: train, compare, serve in other precisions, approximate, time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from limerank import files
from limerank.config import TrainConfig
from limerank.data.store.dataset import StoredDataset
from limerank.errors import UsageError
from limerank.models import complete_model
from limerank.progress import Progress
from limerank.study.ablation.costs import CANDIDATES, HISTORY, measure_costs
from limerank.study.ablation.differences import paired
from limerank.study.ablation.kernel_error import KernelPlan, measure_kernels
from limerank.study.ablation.results import (
    AblationStudy,
    Compared,
    Cost,
    KernelStudy,
    RowPrecision,
    Trained,
    values,
)
from limerank.study.ablation.served import CATALOG_REQUESTS, row_precisions
from limerank.study.ablation.variants import (
    LINEAR,
    MHA,
    ROWS,
    Change,
    different_options,
    groups,
    section,
    width_of_rows,
)
from limerank.study.results import making
from limerank.study.trainings import Variant, train_variants
from limerank.training.run import FinishedRun

SKYLINE = "mha"
KERNEL = "kernel.json"


@dataclass(frozen=True)
class AblationPlan:
    """What is done, and how much of it."""

    bases: Sequence[str]
    groups: Sequence[str]
    seeds: Sequence[int]
    train: TrainConfig
    shared: Mapping[str, Any] = field(default_factory=dict)
    """Options of all rankers that have them."""
    history: int = HISTORY
    candidates: int = CANDIDATES
    repeats: int = 9
    catalog_requests: int = CATALOG_REQUESTS
    kernel: KernelPlan | None = None
    """None: by the number of links."""
    quick: bool = False

    @property
    def links(self) -> int:
        """Of the base, LIME-MHA's."""
        return width_of_rows(section(MHA, self.shared))[0]

    def changes(self, with_times: bool) -> list[Change]:
        """The variants that are trained; without times in the log, those that need none."""
        chosen = [
            change
            for name, group in groups(*width_of_rows(section(MHA, self.shared))).items()
            if name in self.groups
            for change in group
            if change.base in self.bases and (with_times or not change.needs_times)
        ]
        if not chosen and ROWS not in self.groups:
            raise UsageError(f"--groups {','.join(self.groups)}: none has a variant of {', '.join(self.bases)}")
        return chosen

    def trained_bases(self, changes: Sequence[Change]) -> list[str]:
        """The bases of these variants; row precisions take all that were asked for."""
        return [base for base in self.bases if ROWS in self.groups or any(one.base == base for one in changes)]

    def kernels(self) -> KernelPlan:
        """What is approximated how well."""
        links = self.links
        return self.kernel or KernelPlan(ranks=[n for n in (links // 4, links // 2, links, 2 * links) if n])


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
        with_times = opened.schema.time is not None
        changes = plan.changes(with_times)
        bases = plan.trained_bases(changes)
        sections = {base: section(base, plan.shared) for base in bases}
        sections |= {change.key: change.section(plan.shared) for change in changes}
        variants = [Variant(key, model, plan.train) for key, model in sections.items()]
        progress.say(f"{len(variants)} variants from {len(plan.seeds)} seeds: {len(variants) * len(plan.seeds)} runs")
        runs = train_variants(
            dataset, variants, plan.seeds, out / "runs", progress, overwrite=overwrite, workers=workers
        )
        by_key = {key: [runs[key, seed] for seed in plan.seeds] for key in sections}
        task = opened.schema.tasks[0].name
        trained = {key: _trained(key, mine, task) for key, mine in by_key.items()}
        rows: list[RowPrecision] = []
        if ROWS in plan.groups:
            for base in bases:
                progress.say(f"serving {base} from rows in fp32, fp16 and u8")
                rows += row_precisions(base, by_key[base], opened, task, plan.catalog_requests)
        kernel, costs = None, list[Cost]()
        if LINEAR in plan.groups and MHA in plan.bases:
            kernel = _kernel(by_key[SKYLINE][0], opened, plan, out, progress, overwrite)
            progress.say("timing rankers of equal rank")
            contestants = {MHA: MHA} | {one.ranker: one.key for one in changes if one.group == LINEAR}
            costs = measure_costs(
                {name: by_key[key][0].ranker(opened) for name, key in contestants.items()},
                opened,
                history=plan.history,
                candidates=plan.candidates,
                repeats=plan.repeats,
            )
        return AblationStudy(
            made=made(),
            caveats=_caveats(plan, with_times),
            dataset=opened.path.name,
            data_fingerprint=opened.fingerprint,
            events=len(opened.column("events/item")),
            task=task,
            links=plan.links,
            train=plan.train.model_dump(mode="json"),
            groups=list(plan.groups),
            trained=list(trained.values()),
            compared=[_compared(change, trained, plan.shared) for change in changes],
            rows=rows,
            kernel=kernel,
            costs=costs,
        )


def _trained(key: str, runs: Sequence[FinishedRun], task: str) -> Trained:
    records = [run.record for run in runs]
    return Trained(
        key=key,
        model=complete_model(runs[0].config.model, "ablation"),
        parameters=records[0].parameters,
        test=[record.test[task] for record in records],
        validation=[record.validation[task] for record in records],
        train_seconds=[record.train_seconds for record in records],
        best_epochs=[record.best_epoch for record in records],
    )


def _compared(change: Change, trained: Mapping[str, Trained], shared: Mapping[str, Any]) -> Compared:
    base, variant = trained[change.base].test, trained[change.key].test
    by_metric = {name: paired(values(base, name), values(variant, name)) for name in ("ne", "auc", "gauc")}
    ne = by_metric["ne"]
    return Compared(
        group=change.group,
        base=change.base,
        name=change.name,
        key=change.key,
        changed=different_options(change, shared),
        verdict="cannot be told" if ne is None else ne.verdict(lower_is_better=True),
        **by_metric,
    )


def _kernel(
    run: FinishedRun, dataset: StoredDataset, plan: AblationPlan, out: Path, progress: Progress, overwrite: bool
) -> KernelStudy:
    """Measured, or what an earlier invocation measured of the same run with the same plan."""
    asked = plan.kernels()
    identity = files.digest_of(
        repr(asked), dataset.fingerprint, files.digest_of((run.path / "model.safetensors").read_bytes())
    )
    kept = out / KERNEL
    if kept.is_file() and not overwrite:
        found = files.read_json(kept, UsageError, "pass --overwrite")
        if found.get("identity") == identity:
            progress.say("kernel errors are kept")
            return KernelStudy.model_validate(found["kernel"])
    with progress.bar("approximating the skyline's attention", asked.work) as bar:
        kernel = measure_kernels(run, dataset, asked, bar)
    files.write_json(kept, {"identity": identity, "kernel": kernel.model_dump(mode="json")})
    return kernel


def _caveats(plan: AblationPlan, with_times: bool) -> list[str]:
    said = [
        "One log, one training recipe for all variants: what is worth nothing here may be worth something elsewhere, "
        "and a variant may want another learning rate than its base.",
        f"Intervals are Student's over {len(plan.seeds)} seeds; they hold the spread of seeds, not of logs or users. "
        "Many comparisons are made, so of twenty variants that change nothing one is expected to look clear.",
    ]
    if not with_times:
        said.append("The log has no times: age buckets, hour and weekday, and the recency bias are left out.")
    if LINEAR in plan.groups:
        said.append(
            "Kernel errors are those of one trained skyline. A low kernel error is not needed for accuracy: a ranker "
            "trains its own queries, keys and values and need not imitate the skyline. PMA and Lightning have no "
            "kernel error: their weights are no fixed function of the skyline's queries and keys."
        )
        said.append(
            "Latencies use trained weights and a made-up request, on one thread. Rows are as wide as LIME's "
            f"(heads times links) for linear-attention, lrea and lightning; rank or length is {plan.links} for the "
            "others. MHA's cost grows with the history."
        )
    return said
