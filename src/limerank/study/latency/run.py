"""The study from beginning to end: a made-up log, bundles of untrained rankers, every size, what follows from it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from limerank.bench.engine.made_up_store import made_up_dataset
from limerank.bench.machine import copy_gbytes, gemm_gflops
from limerank.errors import if_interrupted
from limerank.progress import Bar, Progress
from limerank.serve.bundles.bundle import Bundle
from limerank.study.latency.goals import are_for, judge
from limerank.study.latency.kept import KeptPoints
from limerank.study.latency.measure import measure_cached, measure_point
from limerank.study.latency.ratios import growth, ratios, slower
from limerank.study.latency.results import LatencyRow, LatencyStudy, MachinePeaks
from limerank.study.latency.served import KEPT, export_untrained, open_contestants
from limerank.study.latency.sweeps import Plan, Point
from limerank.study.results import Made, making
from limerank.threads import available_cores

UNTRAINED = (
    "Weights are untrained: times do not depend on them, except that the integer path of LIME excludes more "
    "candidates the further scores lie apart."
)
BEST_WAY = (
    "With several threads every ranker is served by the engine's workers and by torch's own threads, and its better "
    "way counts."
)
ONE_REQUEST = "One request at a time: how many a service answers per second is what `limerank bench serve` measures."


def run_latency(
    plan: Plan, out: Path, progress: Progress, *, quick: bool = False, overwrite: bool = False
) -> LatencyStudy:
    """Measure what is not measured yet; what is finished is in a file in `out`."""
    kept = KeptPoints(out, plan, available_cores(), overwrite=overwrite)
    load = os.getloadavg()
    with making(quick=quick) as made:
        peaks = kept.peaks(lambda: [measure_peaks(count) for count in plan.threads])
        todo = [(point, count) for point in plan.points for count in plan.threads if point.key(count) not in kept]
        total = len(plan.points) * len(plan.threads)
        if len(todo) < total:
            progress.say(f"{total - len(todo)} of {total} sizes are measured and kept")
        stopped = f"interrupted; {kept.path} holds what was measured, and the same command goes on from there"
        with if_interrupted(stopped), progress.bar("latency", len(todo)) as bar:
            if todo:
                with tempfile.TemporaryDirectory(prefix="limerank-latency-") as folder:
                    _Measuring(plan, Path(folder), kept, peaks, progress, bar).measure(todo)
        rows = kept.rows([point.key(count) for point in plan.points for count in plan.threads])
        return summarize(plan, rows, peaks, made(), load)


def summarize(
    plan: Plan, rows: list[LatencyRow], peaks: list[MachinePeaks], made: Made, load: Sequence[float]
) -> LatencyStudy:
    """What follows from measured rows."""
    found_ratios, found_growth = ratios(rows), growth(rows)
    busy = f"Load average when it began: {load[0]:.2f} on {available_cores()} cores."
    if more := [str(count) for count in plan.threads if count > available_cores()]:
        busy += f" Threads {', '.join(more)}: more than there are cores, so threads wait for each other."
    missing = [name for name in plan.models if plan.model_section(name, plan.width + plan.heads) is None]
    caveats = [UNTRAINED, *([BEST_WAY] if max(plan.threads) > 1 else []), ONE_REQUEST, busy]
    if missing and plan.qk_widths:
        caveats.append(f"Not in the sweep of QK width, because they have no such option: {', '.join(missing)}.")
    return LatencyStudy(
        study="latency",
        made=made,
        caveats=caveats,
        models=list(plan.models),
        width=plan.width,
        heads=plan.heads,
        links=plan.links,
        hidden=plan.head,
        repeats=plan.repeats,
        peaks=peaks,
        rows=rows,
        ratios=found_ratios,
        growth=found_growth,
        slower=slower(rows),
        goals=judge(found_ratios, found_growth) if are_for(plan) else [],
    )


def measure_peaks(threads: int) -> MachinePeaks:
    """This machine's peaks, now, with so many of torch's threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return MachinePeaks(threads=threads, gemm_gflops=gemm_gflops(), copy_gbytes_per_second=copy_gbytes())
    finally:
        torch.set_num_threads(before)


class _Measuring:
    """Bundles in a temporary folder, opened for the sizes that need them."""

    def __init__(
        self, plan: Plan, folder: Path, kept: KeptPoints, peaks: list[MachinePeaks], progress: Progress, bar: Bar
    ) -> None:
        self.plan, self.folder, self.kept, self.progress, self.bar = plan, folder, kept, progress, bar
        self.peaks = {one.threads: one for one in peaks}

    def measure(self, todo: Sequence[tuple[Point, int]]) -> None:
        """All sizes, those of one width of queries and keys with the same bundles."""
        base = [(point, count) for point, count in todo if point.sweep != "qk"]
        if base:
            bundles = self._bundles("base", self.plan.items, self.plan.history_lengths(), self.plan.width)
            self._measure_with(bundles, base)
        for width in self.plan.qk_widths:
            own = [(point, count) for point, count in todo if point.sweep == "qk" and point.qk == width]
            if own:
                # a smaller catalog: wide keys take much room, and times do not depend on how many items there are
                items = 2 * self.plan.base_candidates
                self._measure_with(self._bundles(f"qk-{width}", items, [self.plan.base_history], width), own)

    def _bundles(self, name: str, items: int, histories: Sequence[int], qk: int) -> dict[str, Bundle]:
        self.progress.say(f"bundles of untrained rankers: {items:,} items, QK width {qk:,}")
        dataset = made_up_dataset(self.folder / name, items, histories)
        sections = {model: self.plan.model_section(model, qk) for model in self.plan.models}
        return {
            model: export_untrained(dataset, section, self.folder / name / model)
            for model, section in sections.items()
            if section is not None
        }

    def _measure_with(self, bundles: dict[str, Bundle], todo: Sequence[tuple[Point, int]]) -> None:
        for count in dict.fromkeys(threads for _, threads in todo):
            own = [point for point, threads in todo if threads == count]
            with open_contestants(bundles, count) as contestants:
                for point in own:
                    self.bar.tell(f"{point.candidates:,} x {point.history:,}, QK {point.qk:,}, {count} threads")
                    rows = measure_point(point, contestants(), self.plan, count, self.peaks[count])
                    longest = point.sweep == "history" and point.history == max(self.plan.histories)
                    if longest and self.plan.extras:
                        with open_contestants(bundles, count, states=KEPT) as keeping:
                            rows += measure_cached(point, keeping(), self.plan, count, self.peaks[count])
                    self.kept.add(point.key(count), rows)
                    self.bar.advance()
