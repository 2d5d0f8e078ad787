"""Exponents in N and M: claimed by the paper, counted in operators that run, measured in milliseconds as served."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from limerank.progress import Progress
from limerank.study.complexity.results import ComplexityRow, ComplexityStudy, Exponents
from limerank.study.latency.ratios import exponent
from limerank.study.latency.results import Growth
from limerank.study.latency.run import run_latency
from limerank.study.latency.sweeps import Plan, doubling
from limerank.study.paper_latency import architecture_of
from limerank.study.results import making
from limerank.study.work_count import Polynomial
from limerank.study.zoo import LARGE, complexities, leading_terms

MODELS = ("hstu", "mha", "sim", "twin", "ttsn", "lime-mha", "lime-xor")
COUNTED = (
    "Counted work is that of the equations on the path that can be trained, from item rows on; what is served leaves "
    "more out (tables of events, absorbed projections), so its constants differ and its powers need not. Counts are a "
    "polynomial through small sizes, where causal kernels skip less of a tile: the N² of HSTU is some 20 % too small."
)
FINITE = (
    "An exponent over a finite range is a mix: of terms, and of what a call costs whatever its size. It approaches the "
    "highest power as the size grows."
)
MATTERS = 5e-3
"""A term that is a smaller part of the work at large sizes is a trace of blocks and paddings."""


def complexity_plan(models: Sequence[str] = MODELS, threads: int = 1) -> Plan:
    """The long ends of both sweeps."""
    return Plan(
        models=tuple(models),
        candidates=doubling(8_192, 32_768),
        histories=doubling(4_096, 16_384),
        qk_widths=(),
        threads=(threads,),
        repeats=5,
        extras=False,
    )


def quick_complexity_plan(models: Sequence[str] = MODELS, threads: int = 1) -> Plan:
    """Seconds: shows that the study works."""
    return Plan(
        models=tuple(models),
        candidates=(64, 256),
        histories=(64, 256),
        qk_widths=(),
        base_candidates=64,
        base_history=64,
        width=32,
        links=8,
        head=16,
        threads=(threads,),
        repeats=2,
        extras=False,
    )


def run_complexity(
    plan: Plan, out: Path, progress: Progress, *, quick: bool = False, overwrite: bool = False
) -> ComplexityStudy:
    """Count, measure (kept in `out` size by size, as in the study of latency), and put side by side."""
    with making(quick=quick) as made:
        timed = run_latency(plan, out, progress, quick=quick, overwrite=overwrite)
        rows = []
        with progress.bar("counting", len(plan.models)) as bar:
            for model in plan.models:
                rows.append(complexity_row(model, plan, timed.growth))
                bar.advance()
        return ComplexityStudy(
            study="complexity",
            made=made(),
            caveats=[FINITE, COUNTED, *timed.caveats],
            width=plan.width,
            links=plan.links,
            threads=plan.threads[0],
            peaks=timed.peaks,
            rows=rows,
            growth=timed.growth,
            times=timed.rows,
        )


def complexity_row(model: str, plan: Plan, growth: Sequence[Growth]) -> ComplexityRow:
    """One ranker: the paper's claim, counted terms, and all exponents."""
    user, candidates = complexities(model)
    printed = architecture_of(model)

    def exponents(along: Literal["N", "M"], sizes: Sequence[int], fixed: int) -> Exponents:
        found = {one.what: one.exponent for one in growth if (one.model, one.along) == (model, along)}
        other = {"N": "M", "M": "N"}[along]
        letters = [{along: size, other: fixed, "l": plan.links, "d": plan.width} for size in sizes]
        return Exponents(
            claimed=None if printed is None else printed.claimed[along],
            degree=max(degree(user, along), degree(candidates, along)),
            counted=exponent(sizes, [user(at) + candidates(at) for at in letters]),
            measured=found.get("total"),
            measured_user=found.get("user"),
            measured_interact=found.get("interact"),
            first=min(sizes),
            last=max(sizes),
            fixed=fixed,
        )

    return ComplexityRow(
        model=model,
        column=None if printed is None else printed.column,
        claimed=None if printed is None else printed.complexity,
        corrected=None if printed is None else printed.corrected,
        user_terms=leading_terms(user),
        candidate_terms=leading_terms(candidates),
        along_n=exponents("N", plan.histories, plan.base_candidates),
        along_m=exponents("M", plan.candidates, plan.base_history),
    )


def degree(polynomial: Polynomial, letter: str) -> int:
    """The highest power of a size among the terms that matter when all sizes are large."""
    if letter not in polynomial.letters:
        return 0
    position, least = polynomial.letters.index(letter), MATTERS * polynomial(LARGE)
    return max(
        (e[position] for e in polynomial.coefficients if polynomial.term(e, LARGE) > least),
        default=0,
    )
