"""The whole study: a log with long histories, trainings, singular values, controls, other numbers of links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from limerank import files
from limerank.config import TrainConfig
from limerank.data.sources.simulated import SimulatedConfig
from limerank.data.store.dataset import StoredDataset
from limerank.errors import UsageError
from limerank.models import build_ranker
from limerank.models.hstu import HSTURanker
from limerank.models.lime import LimeRanker
from limerank.progress import Progress
from limerank.study.results import Made, making
from limerank.study.simulated_log import shaped_by_lime
from limerank.study.spectrum import measuring, paper
from limerank.study.spectrum.by_links import links_of, ranks_by_links, train_with_links
from limerank.study.spectrum.energy import DEFINITIONS, effective_rank, energy_at, rank_for
from limerank.study.spectrum.measuring import Measured, measure_pairs
from limerank.study.spectrum.pairs import Pairs, choose_pairs
from limerank.study.spectrum.results import (
    CROSS,
    FRACTION,
    PERSONALIZED,
    PRODUCT,
    RANDOM_HEADS,
    RANDOM_SCORES,
    RAW_LINKS,
    SELF,
    TRAINED,
    UNTRAINED,
    Captured,
    HeadSpectrum,
    LinkRanks,
    Spectrum,
    SpectrumStudy,
    Spread,
    TrainedRanker,
)
from limerank.study.spectrum.weights import RecordedHSTU
from limerank.study.trainings import Variant, train_variants
from limerank.training.run import WEIGHTS, FinishedRun

SKYLINE, XOR, MHA = "hstu", "lime-xor", "lime-mha"
RANKERS = (SKYLINE, XOR, MHA)
PAIRS_PER_CONTROL = 4


@dataclass(frozen=True)
class SpectrumPlan:
    """Sizes of a study."""

    pairs: int = 24
    history: int = paper.HISTORY
    candidates: int = paper.CANDIDATES
    epochs: int = 3
    batch_requests: int = 16
    links: tuple[int, ...] = (8, 16, 32, 64)
    """Numbers of links with which LIME rankers are trained, besides their own."""
    seed: int = 1

    @property
    def controls(self) -> int:
        """Pairs of the untrained ranker, and draws of random matrices."""
        return max(2, self.pairs // PAIRS_PER_CONTROL)

    def training(self) -> TrainConfig:
        """Rankers are trained on histories as long as those that are looked at."""
        return TrainConfig(epochs=self.epochs, batch_requests=self.batch_requests, max_history=self.history)

    def quick(self) -> SpectrumPlan:
        """The same, small."""
        return replace(self, pairs=4, history=64, candidates=64, epochs=1, links=(4, 32))


LONG_LOG = SimulatedConfig(users=120, items=3000, sessions=90, slots=24)
"""Few users with about 1,400 events each: the test part has requests with 1,024 events of history."""
QUICK_LOG = SimulatedConfig(users=40, items=300, sessions=16, slots=12)


def run_spectrum(
    dataset: Path,
    given: Sequence[FinishedRun],
    plan: SpectrumPlan,
    out: Path,
    progress: Progress,
    *,
    quick: bool = False,
    overwrite: bool = False,
    workers: int | None = None,
) -> SpectrumStudy:
    """Train what is not given, and look at it; runs and singular values that are there are kept."""
    opened = StoredDataset.open(dataset)
    pairs = choose_pairs(opened, plan.pairs, plan.history, plan.candidates, plan.seed)
    with making([plan.seed], quick=quick) as made:
        runs = _runs(dataset, opened, given, plan, out, progress, overwrite=overwrite, workers=workers)
        hstu, xor, mha = (runs[name].ranker(opened) for name in RANKERS)
        assert isinstance(hstu, HSTURanker)
        assert isinstance(xor, LimeRanker)
        assert isinstance(mha, LimeRanker)
        torch.manual_seed(plan.seed)
        fresh = build_ranker(runs[SKYLINE].config.model, opened.encoders.space(), len(opened.schema.tasks), "hstu")
        assert isinstance(fresh, HSTURanker)
        kept = out / "singular-values" / _key(runs, pairs, plan)
        with progress.bar("singular values", plan.pairs + plan.controls) as bar:
            trained = measure_pairs(RecordedHSTU(hstu), mha, pairs, plan.pairs, kept / "trained", bar)
            untrained = measure_pairs(RecordedHSTU(fresh), None, pairs, plan.controls, kept / "untrained", bar)
        links = measuring.link_values(xor, pairs)
        others = train_with_links(
            dataset,
            {name: runs[name] for name in (XOR, MHA)},
            plan.links,
            plan.seed,
            out / "runs",
            progress,
            overwrite=overwrite,
            workers=workers,
        )
        by_links = ranks_by_links(others, opened, pairs)
        return _result(made(), opened, runs, pairs, plan, hstu, trained, untrained, links, by_links)


def _runs(
    dataset: Path,
    opened: StoredDataset,
    given: Sequence[FinishedRun],
    plan: SpectrumPlan,
    out: Path,
    progress: Progress,
    *,
    overwrite: bool,
    workers: int | None,
) -> dict[str, FinishedRun]:
    runs: dict[str, FinishedRun] = {}
    for run in given:
        name = run.record.model
        if name not in RANKERS or name in runs:
            raise UsageError(f"--run {run.path}: is '{name}'; give at most one run each of {', '.join(RANKERS)}")
        if run.record.data_fingerprint != opened.fingerprint:
            raise UsageError(f"--run {run.path}: was trained on other data than {opened.path}")
        runs[name] = run
    missing = [Variant(name, {"name": name}, plan.training()) for name in RANKERS if name not in runs]
    if missing:
        made = train_variants(
            dataset, missing, [plan.seed], out / "runs", progress, overwrite=overwrite, workers=workers
        )
        runs |= {name: run for (name, _), run in made.items()}
    return {name: runs[name] for name in RANKERS}


def _key(runs: Mapping[str, FinishedRun], pairs: Pairs, plan: SpectrumPlan) -> str:
    """Names what singular values were measured of: other weights, pairs or sizes never mix."""
    weights = [files.sha256_of_file(runs[name].path / WEIGHTS) for name in (SKYLINE, MHA)]
    sizes = f"{plan.history} {plan.candidates} {plan.seed} {runs[SKYLINE].record.data_fingerprint}"
    return files.digest_of(*weights, sizes, pairs.requests.tobytes(), pairs.candidates.tobytes())[:16]


def _result(
    made: Made,
    opened: StoredDataset,
    runs: Mapping[str, FinishedRun],
    pairs: Pairs,
    plan: SpectrumPlan,
    hstu: HSTURanker,
    trained: Measured,
    untrained: Measured,
    links: Measured,
    by_links: list[LinkRanks],
) -> SpectrumStudy:
    count = links_of(runs[XOR])
    ranks = sorted({paper.LINKS, count})
    shapes = {SELF: (plan.history, plan.history), CROSS: (plan.candidates, plan.history)}
    names = {SELF: "own", CROSS: "cross"}
    activation = hstu.options.activation
    head_width = _head_width(hstu)
    spectra = []
    for matrix, shape in shapes.items():
        spectra += [
            Spectrum.of(TRAINED, matrix, shape, trained[names[matrix]], ranks),
            Spectrum.of(UNTRAINED, matrix, shape, untrained[names[matrix]], ranks),
        ]
        for source, width in ((RANDOM_HEADS, head_width), (RANDOM_SCORES, None)):
            values = measuring.random_values(
                *shape, plan.controls, activation, causal=matrix == SELF, head_width=width, seed=plan.seed
            )
            spectra.append(Spectrum.of(source, matrix, shape, values, ranks))
    spectra.append(Spectrum.of(MHA, PRODUCT, shapes[CROSS], trained["product"], ranks))
    link_shape = (count, int(runs[XOR].config.model["width"]))
    for source, matrix, name in (
        (XOR, RAW_LINKS, "links"),
        (XOR, PERSONALIZED, "personalized"),
        (RANDOM_SCORES, RAW_LINKS, "random"),
    ):
        spectra.append(Spectrum.of(source, matrix, link_shape, links[name], ranks))
    return SpectrumStudy(
        made=made,
        caveats=[*_caveats(plan, pairs, runs), *shaped_by_lime(opened.manifest.origin)],
        dataset=opened.path.name,
        data_fingerprint=opened.fingerprint,
        pairs=len(pairs),
        control_pairs=plan.controls,
        users=pairs.users,
        history=plan.history,
        candidates=plan.candidates,
        links=count,
        activation=activation,
        rankers={name: _facts(run) for name, run in runs.items()},
        spectra=spectra,
        by_head=[one for matrix in shapes for one in _by_head(matrix, trained[names[matrix]], count)],
        captured=_captured(trained, links_of(runs[MHA])),
        by_links=by_links,
    )


def _by_head(matrix: str, values: torch.Tensor, links: int) -> list[HeadSpectrum]:
    """Means over pairs of [pairs, layers, H, r]."""
    _, layers, heads, _ = values.shape
    return [
        HeadSpectrum(
            matrix=matrix,
            layer=layer + 1,
            head=head + 1,
            energy_at_links={d: float(energy_at(values[:, layer, head], links, d).mean()) for d in DEFINITIONS},
            rank_for_90={d: float(rank_for(values[:, layer, head], FRACTION, d).double().mean()) for d in DEFINITIONS},
            effective_rank=float(effective_rank(values[:, layer, head]).mean()),
        )
        for layer in range(layers)
        for head in range(heads)
    ]


def _captured(trained: Measured, rank: int) -> Captured:
    by_links = trained["captured_links"]
    return Captured(
        rank=rank,
        best=Spread.of(energy_at(trained["cross"], rank, "frobenius")),
        links=Spread.of(by_links.max(-1).values),
        links_all_heads=Spread.of(by_links),
        random=Spread.of(trained["captured_random"]),
    )


def _head_width(hstu: HSTURanker) -> int:
    """Of queries and keys; where the ranker has an option of its own for it, by that."""
    options: dict[str, Any] = hstu.options.model_dump()
    return int(options.get("query_width") or options["width"]) // hstu.options.heads


def _facts(run: FinishedRun) -> TrainedRanker:
    return TrainedRanker(
        run=run.path.name,
        model=run.config.model,
        train=run.config.train.model_dump(mode="json"),
        test={task: {"ne": metrics.ne, "auc": metrics.auc} for task, metrics in run.record.test.items()},
        train_seconds=run.record.train_seconds,
    )


def _caveats(plan: SpectrumPlan, pairs: Pairs, runs: Mapping[str, FinishedRun]) -> list[str]:
    model = runs[SKYLINE].config.model
    width, heads = int(model.get("query_width") or model["width"]), int(model["heads"])
    said = [
        f"{len(pairs)} pairs of {pairs.users} users (the paper: {paper.PAIRS}); pairs of one user are not independent.",
        f"Scores of one head are products of vectors of width {width // heads}: before the activation their matrix has "
        f"at most that rank, trained or not. The activation and the mask are what makes the rank higher.",
        "One training seed for each ranker: the spread is over pairs, layers and heads, not over trainings.",
        f"L is {model.get('links', runs[XOR].config.model['links'])} x {runs[XOR].config.model['width']}: its rank is "
        "at most the smaller of the two, and random links have nearly full rank as well.",
    ]
    short = [name for name, run in runs.items() if run.config.train.max_history < plan.history]
    if short:
        said.append(
            f"{', '.join(short)}: trained on shorter histories than the {plan.history:,} events looked at; SiLU "
            "attention is divided by the length, so its weights there were never trained."
        )
    return said
