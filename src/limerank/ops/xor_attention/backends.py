"""Which backend runs, and why.

An explicit `backend=` wins over `use_backend(...)`, which wins over the environment variable LIMERANK_XOR_BACKEND,
which wins over `auto`. A backend that was asked for and cannot run is an error with the reason, never another backend.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch

from limerank.errors import ArgumentError, UnavailableError, did_you_mean
from limerank.ops.checks import FLOATING
from limerank.ops.xor_attention import triton_backend

NAMES = ("reference", "chunked", "triton")
VARIABLE = "LIMERANK_XOR_BACKEND"

_chosen: ContextVar[str | None] = ContextVar("limerank_xor_backend", default=None)
_logged: set[tuple[str, str]] = set()
_log = logging.getLogger("limerank.ops.xor_attention")


@dataclass(frozen=True)
class BackendReport:
    """Whether a backend can run these inputs, whether it is the one that would, and why."""

    name: str
    runs: bool
    chosen: bool
    reason: str


@contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Every `xor_attention(backend="auto")` inside the block uses this backend."""
    token = _chosen.set(_known(name, "use_backend"))
    try:
        yield
    finally:
        _chosen.reset(token)


class BackendReports(list[BackendReport]):
    """One report per backend; prints as a line each."""

    def __str__(self) -> str:
        return "\n".join(
            f"{'*' if one.chosen else ' '} {one.name:9} {'runs' if one.runs else 'cannot':6}  {one.reason}"
            for one in self
        )


def explain_backends(
    device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32, widest_head: int = 0
) -> BackendReports:
    """What every backend says about such inputs, as `xor_attention` would decide now; print it."""
    if dtype not in FLOATING:
        raise ArgumentError(f"dtype must be a floating type, not {dtype}")
    device = torch.device(device)
    preferred, source = _preferred("auto")
    reasons = {name: why_not(name, device, dtype, widest_head) for name in NAMES}
    chosen = _automatic(device, dtype, widest_head) if preferred == "auto" else preferred
    reports = BackendReports()
    for name in NAMES:
        reason = reasons[name] or _ABOUT[name]
        if name == chosen:
            reason += f"; chosen by {source}"
        reports.append(BackendReport(name, reasons[name] is None, name == chosen, reason))
    return reports


def resolve(requested: str, device: torch.device, dtype: torch.dtype, widest: int = 0) -> str:
    """The backend for a call with heads up to `widest` numbers wide; an error when it cannot run."""
    name, source = _preferred(requested)
    if name == "auto":
        name = _automatic(device, dtype, widest)
        if (device.type, name) not in _logged:
            _logged.add((device.type, name))
            _log.info("xor_attention on %s: backend %s (%s)", device.type, name, _ABOUT[name])
    problem = why_not(name, device, dtype, widest)
    if problem is not None:
        raise UnavailableError(f"xor_attention backend '{name}', chosen by {source}, cannot run: {problem}")
    return name


# While a graph is traced the choice is a constant of the graph. torch.compiler.assume_constant_result sets this and no
# more, but imports torch._dynamo, and with it triton, for everybody who imports this module.
resolve._dynamo_marked_constant = True  # type: ignore[attr-defined]


def why_not(name: str, device: torch.device, dtype: torch.dtype, widest: int = 0) -> str | None:
    """Why a backend cannot run inputs of this device and dtype with heads this wide; None when it can."""
    if name != "triton":
        return None
    if widest > triton_backend.WIDEST_HEAD:
        return f"heads are {widest} wide, its limit is {triton_backend.WIDEST_HEAD}; use backend='chunked'"
    return triton_backend.why_not(device, dtype)


def _automatic(device: torch.device, dtype: torch.dtype, widest: int) -> str:
    on_gpu = device.type == "cuda" and why_not("triton", device, dtype, widest) is None
    return "triton" if on_gpu else "chunked"


def _preferred(requested: str) -> tuple[str, str]:
    if _known(requested, "backend", "auto") != "auto":
        return requested, "the argument"
    inside = _chosen.get()
    if inside is not None:
        return inside, "use_backend"
    variable = os.environ.get(VARIABLE)
    if variable and variable != "auto":
        return _known(variable, f"the environment variable {VARIABLE}", "auto"), f"the environment variable {VARIABLE}"
    return "auto", "auto"


def _known(name: str, where: str, *more: str) -> str:
    known = (*NAMES, *more)
    if name not in known:
        raise ArgumentError(f"{where}: no backend '{name}'{did_you_mean(str(name), known)}")
    return name


_ABOUT = {
    "reference": "explicit mask, any device and floating dtype, quadratic: the specification",
    "chunked": "pure torch, streams over the history, any device and floating dtype",
    "triton": "fused kernels for CUDA, or slowly in triton's interpreter",
}
