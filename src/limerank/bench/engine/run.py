"""`limerank bench engine`: rankings of real bundles by real engines, contestants of a group in turns, medians."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from limerank.bench.engine.appending import measure_append
from limerank.bench.engine.goals import INDUSTRIAL, LARGE, SMALL, ids_goal, judge
from limerank.bench.engine.ids import measure_ids
from limerank.bench.engine.made_up_store import made_up_dataset, made_up_export, user_with
from limerank.bench.engine.results import EngineBench, EngineRow, Exported
from limerank.bench.machine import copy_gbytes, gemm_gflops, interleaved_medians
from limerank.bench.threads import busy_processes
from limerank.bench.train.results import Spread
from limerank.models import RANKERS, RankerOptions
from limerank.ops.candidate.integer import fast
from limerank.progress import Progress
from limerank.serve.bundles import offline
from limerank.serve.bundles.bundle import Bundle
from limerank.serve.engine import Engine
from limerank.serve.ranking import Ranking
from limerank.threads import available_cores

TOP = 100
LARGE_SIZES = {"width": 32, "heads": 4, "links": 32, "head": (64,)}
"""H * l = 128, hidden 64."""
INDUSTRIAL_SIZES = {"width": 256, "heads": 4, "links": 32, "head": (96,)}
INDUSTRIAL_ITEMS, LONG, SHORT = 32_768, 16_384, 16
SLOW = ("mha", "hstu")
SLOW_ROUNDS = 3
"""Skylines take seconds, so they run in fewer rounds."""
KEPT = 2**28
EPOCHS = 2
"""Of training the ranker of the large catalog: what its bound excludes depends on how scores lie apart."""


@dataclass
class Contestant:
    """One kind of request to one engine, and the answers it got."""

    group: str
    model: str
    engine: Engine
    history: int
    item_ids: list[str] | None = None
    forced: str | None = None
    burner: bool = False
    answers: list[Ranking] = field(default_factory=list)

    def ask(self) -> Ranking:
        """One request."""
        return self.engine.answer(user_with(self.history), self.item_ids, limit=TOP)

    def row(self) -> EngineRow:
        """Medians of all answers."""
        last, times = self.answers[-1], [answer.milliseconds for answer in self.answers]
        return EngineRow(
            group=self.group,
            model=self.model,
            candidates=last.candidates,
            history=last.history_used,
            forced=self.forced,
            path=last.path,
            user_state=last.user_state,
            threads=self.engine.workers.threads,
            burner=self.burner,
            user_ms=median(one["user"] for one in times),
            interact_ms=median(one["interact"] for one in times),
            total_ms=median(one["total"] for one in times),
            total=Spread.of([one["total"] / 1000 for one in times]),
            rescored=last.rescored if last.path == "integer" else None,
            fell_back=sum(answer.fell_back for answer in self.answers),
        )


def run_engine_bench(
    progress: Progress,
    *,
    items: int = 1_000_000,
    industrial_items: int = INDUSTRIAL_ITEMS,
    long: int = LONG,
    threads: Sequence[int] | None = None,
    repeats: int = 9,
    epochs: int = EPOCHS,
    ids: int = 10_000_000,
    skylines: bool = True,
) -> EngineBench:
    """Measure all groups in a temporary folder, which takes about 2 GB for a million items."""
    counts = list(threads or sorted({1, available_cores()}))
    load = os.getloadavg()
    models = ["lime-mha", "lime-xor", *(SLOW if skylines else ())]
    with tempfile.TemporaryDirectory(prefix="limerank-bench-") as folder:
        path = Path(folder)
        progress.say("making a large catalog and a trained ranker of it")
        dataset = made_up_dataset(path / "large", items, [100])
        large = made_up_export(dataset, _options("lime-mha", LARGE_SIZES), path / "large-bundle", epochs=epochs)
        rows, read_ms = _measure_large(large.bundle, counts, repeats, progress)
        dataset = made_up_dataset(path / "industrial", industrial_items, (SHORT, 100, long))
        exported = {
            model: made_up_export(dataset, _options(model, INDUSTRIAL_SIZES), path / f"{model}-bundle", epochs=0)
            for model in models
        }
        bundles = {model: one.bundle for model, one in exported.items()}
        for count in counts:
            rows += _measure_industrial(bundles, count, long, repeats, progress)
        appends = [measure_append(bundles[model], user_with(long), repeats) for model in ("lime-mha", "lime-xor")]
        opened = measure_ids(path, ids)
    exports = [_rate("lime-mha", LARGE_SIZES, large), _rate("lime-mha", INDUSTRIAL_SIZES, exported["lime-mha"])]
    return EngineBench(
        torch=torch.__version__,
        processor=platform.processor() or platform.machine(),
        cores=available_cores(),
        vnni=fast(128, 64) is not None,
        repeats=repeats,
        load_average=[*load, *os.getloadavg()],
        gemm_gflops=gemm_gflops(),
        copy_gbytes_per_second=copy_gbytes(),
        items=items,
        read_ms=read_ms,
        rows=rows,
        appends=appends,
        exports=exports,
        ids=opened,
        goals=[*judge(rows, read_ms, appends, exports, max(counts)), ids_goal(opened)],
    )


def _options(model: str, sizes: dict[str, Any]) -> RankerOptions:
    known = RANKERS[model].options_type
    return known(**{name: value for name, value in sizes.items() if name in known.model_fields})


def _rate(model: str, sizes: dict[str, Any], exported: offline.Exported) -> Exported:
    return Exported(
        model=model,
        width=sizes["width"],
        items=exported.bundle.manifest.items,
        threads=available_cores(),
        items_per_second=exported.items_per_second,
    )


def _measure_large(
    bundle: Bundle, counts: Sequence[int], repeats: int, progress: Progress
) -> tuple[list[EngineRow], dict[str, float]]:
    """The exhaustive scan: by integers and in fp32, with each number of threads, alone and beside a busy process."""
    rows: list[EngineRow] = []
    with _engines() as opened:
        engines = {(count, forced): opened(bundle, count, forced) for count in counts for forced in (None, "fp32")}
        for burner in (False, True):
            group = [
                Contestant(LARGE, "lime-mha", engine, 100, forced=forced, burner=burner)
                for (_, forced), engine in engines.items()
            ]
            with busy_processes(int(burner)):
                _take_turns(
                    group, repeats, progress, f"{bundle.manifest.items - 1:,} items" + " beside a burner" * burner
                )
            rows += [one.row() for one in group]
        read_ms = {str(count): _read_ms(engines[count, None], repeats) for count in counts}
    return rows, read_ms


def _measure_industrial(
    bundles: dict[str, Bundle], threads: int, long: int, repeats: int, progress: Progress
) -> list[EngineRow]:
    """Long and short histories, many and few candidates; d = 256, H = 4, l = 32, head 96, untrained."""
    rows: list[EngineRow] = []
    with _engines() as opened:
        engines = {model: opened(bundle, threads) for model, bundle in bundles.items()}
        lime = [model for model in bundles if model not in SLOW]
        fp32 = opened(bundles["lime-mha"], threads, "fp32")
        few, some = _names(bundles["lime-mha"], 16), _names(bundles["lime-mha"], 1024)
        group = [Contestant(INDUSTRIAL, model, engine, long) for model, engine in engines.items()]
        group += [Contestant(INDUSTRIAL, "lime-mha", fp32, long, forced="fp32")]
        group += [Contestant(INDUSTRIAL, model, engine, long, some) for model, engine in engines.items()]
        for model in lime:
            kept = opened(bundles[model], threads, states=KEPT)
            group += [Contestant(INDUSTRIAL, model, kept, long, some)]
            group += [Contestant(INDUSTRIAL, model, engines[model], SHORT)]
            group += [Contestant(INDUSTRIAL, model, engines[model], long, few)]
        _take_turns(group, repeats, progress, f"d 256, {threads} workers")
        rows += [one.row() for one in group]
        small = [Contestant(SMALL, model, engine, 100, some[:100]) for model, engine in engines.items()]
        _take_turns(
            small, 10 * repeats, progress, f"100 events x 100 candidates, {threads} thread{'s' * (threads > 1)}"
        )
        rows += [one.row() for one in small]
    return rows


@contextmanager
def _engines() -> Iterator[Callable[..., Engine]]:
    """Opens engines, which are closed together."""
    with ExitStack() as stack:

        def opened(bundle: Bundle, threads: int, forced: str | None = None, states: int = 0) -> Engine:
            engine = stack.enter_context(Engine(bundle, threads=threads, states=states))
            if forced == "fp32":
                engine.stages.scorer.pays_from = None
            return engine

        yield opened


def _take_turns(group: Sequence[Contestant], repeats: int, progress: Progress, what: str) -> None:
    """Each contestant answers once to warm up, then once per round."""
    with progress.bar(what, repeats + 1) as bar:
        for round_number in range(repeats + 1):
            for one in group:
                if one.model in SLOW and one.group == INDUSTRIAL and round_number > SLOW_ROUNDS:
                    continue
                answer = one.ask()
                if round_number:
                    one.answers.append(answer)
            bar.advance()


def _names(bundle: Bundle, count: int) -> list[str]:
    """Some items of a bundle, at random."""
    draw = np.random.default_rng(1)
    return bundle.item_ids.names_of(draw.choice(bundle.manifest.items - 1, count, replace=False) + 1)


def _read_ms(engine: Engine, repeats: int) -> float:
    """Reading the bytes of integer rows once, or of the stored rows where there are none, dealt like a scan."""
    integer = engine.stages.scorer.integer_rows
    tables = (
        [engine.bundle.rows.rows, engine.bundle.rows.head_part]
        if integer is None
        else [integer.rows, integer.head_part]
    )
    numbers = [_as_numbers(table) for table in tables]
    works = [partial(torch.sum, part) for table in numbers for part in table.chunk(16)]
    return 1000 * interleaved_medians([lambda: engine.workers.deal(works)], repeats)[0]


def _as_numbers(table: Tensor) -> Tensor:
    """Bytes as wide numbers: to add them up then costs no more than reading them."""
    flat = table.flatten().view(torch.uint8)
    return flat[: len(flat) // 8 * 8].view(torch.int64)
