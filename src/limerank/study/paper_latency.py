"""What the paper prints about latency: table `tab:latency_comparison_vertical` and table `tab:arch_comparison`.

The caption says seconds; the figure of the same numbers says milliseconds, which is what they are. The sizes that are
held fixed, the GPU and the batch are not printed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

COLUMNS = ("lime-mha", "mha", "hstu", "lime-xor")
"""In the table's order."""

_CANDIDATES = """
16    1.16 0.82 2.59 2.07
32    1.31 0.87 2.64 2.10
64    1.15 0.84 2.59 2.13
128   1.27 0.87 2.52 2.16
256   1.18 0.85 2.62 2.06
512   1.15 0.87 2.63 2.10
1024  1.15 1.06 2.68 2.12
2048  1.13 1.53 2.70 2.07
4096  1.13 1.56 2.93 2.15
8192  1.10 3.40 4.83 2.08
16384 1.15 5.88 7.36 2.06
32768 1.16 9.53 11.77 2.15
"""
_HISTORY = """
16    1.13 0.83 1.91 2.71
32    1.14 0.82 1.91 2.11
64    1.15 0.82 1.94 2.08
128   1.13 0.83 2.06 2.03
256   1.10 0.80 1.90 2.03
512   1.11 0.88 1.96 2.10
1024  1.11 1.06 2.27 2.08
2048  1.14 1.55 2.92 2.06
4096  1.14 2.66 7.58 2.11
8192  1.24 3.94 13.65 2.15
16384 1.36 8.55 41.64 2.12
"""
_QK = """
16   1.22 1.28 7.46 2.56
32   1.28 1.38 7.10 2.55
64   1.25 1.31 7.02 2.57
128  1.26 1.44 7.21 2.59
256  1.26 1.88 8.18 2.65
512  1.24 1.66 7.54 2.64
1024 1.30 3.13 11.02 2.90
2048 1.51 3.31 10.78 3.36
4096 3.07 13.57 35.23 7.93
"""


def _read(text: str) -> dict[int, dict[str, float]]:
    rows = (line.split() for line in text.strip().splitlines())
    return {int(size): dict(zip(COLUMNS, map(float, values), strict=True)) for size, *values in rows}


PAPER_MS: Mapping[str, Mapping[int, Mapping[str, float]]] = {
    "candidates": _read(_CANDIDATES),
    "history": _read(_HISTORY),
    "qk": _read(_QK),
}
"""Milliseconds by sweep, size and ranker."""


def paper_ratio(sweep: str, size: int, skyline: str, lime: str) -> float | None:
    """How many times longer the skyline takes than the LIME ranker in the paper; None where it prints nothing."""
    printed = PAPER_MS.get(sweep, {}).get(size, {})
    return printed[skyline] / printed[lime] if {skyline, lime} <= printed.keys() else None


@dataclass(frozen=True)
class Architecture:
    """One column of the architecture table, and what its complexity leaves out."""

    column: str
    rankers: tuple[str, ...]
    interaction: str
    latency: str
    complexity: str
    precomputation: str
    claimed: Mapping[str, float]
    """The exponents in N and in M of the printed complexity where both are long."""
    corrected: str
    """With the width d and the projections, which the printed one leaves out."""


ARCHITECTURES = (
    Architecture(
        "Transformers (HSTU)", ("hstu",), "deep", "high", "O(MN + N²)", "minimal", {"N": 2, "M": 1},
        "n layers: O(n(N² d + N d² + M N d + M d²)); target attention alone (MHA) has no N²",
    ),
    Architecture(
        "SIM/TWIN", ("sim", "twin"), "medium", "medium", "O(MN)", "minimal", {"N": 1, "M": 1},
        "search O(M N d), or O(M N) over cached scores, then O(M k d) for the k events found",
    ),
    Architecture(
        "Two-Tower", ("ttsn",), "limited, late", "low", "O(N)", "item embeddings", {"N": 1, "M": 0},
        "O(N d + M d): every candidate is scored",
    ),
    Architecture(
        "LIME", ("lime-mha", "lime-xor"), "deep", "low", "O(ML + NL)", "QK attention weights", {"N": 1, "M": 1},
        "user stage O(n N (d² + l d)), d² dominates while d > 0.8 l; candidates O(M l d), free of N",
    ),
)  # fmt: skip


def architecture_of(ranker: str) -> Architecture | None:
    """The column that a ranker stands in."""
    return next((one for one in ARCHITECTURES if ranker in one.rankers), None)
