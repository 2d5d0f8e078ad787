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


def explain_backends(device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> list[BackendReport]:
    """What every backend says about inputs of this device and dtype, as `xor_attention` would decide now."""
    device = torch.device(device)
    preferred, source = _preferred("auto")
    reasons = {name: why_not(name, device, dtype) for name in NAMES}
    automatic = "triton" if device.type == "cuda" and reasons["triton"] is None else "chunked"
    chosen = automatic if preferred == "auto" else preferred
    reports = []
    for name in NAMES:
        reason = reasons[name] or _ABOUT[name]
        if name == chosen:
            reason += f"; chosen by {source}"
        reports.append(BackendReport(name, reasons[name] is None, name == chosen, reason))
    return reports


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def resolve(requested: str, device: torch.device, dtype: torch.dtype) -> str:
    """The backend for a call; an error when it cannot run."""
    name, source = _preferred(requested)
    if name == "auto":
        name = "triton" if device.type == "cuda" and why_not("triton", device, dtype) is None else "chunked"
        if (device.type, name) not in _logged:
            _logged.add((device.type, name))
            _log.info("xor_attention on %s: backend %s (%s)", device.type, name, _ABOUT[name])
    problem = why_not(name, device, dtype)
    if problem is not None:
        raise UnavailableError(f"xor_attention backend '{name}', chosen by {source}, cannot run: {problem}")
    return name


def why_not(name: str, device: torch.device, dtype: torch.dtype) -> str | None:
    """Why a backend cannot run inputs of this device and dtype; None when it can."""
    return triton_backend.why_not(device, dtype) if name == "triton" else None


def _preferred(requested: str) -> tuple[str, str]:
    if _known(requested, "backend", "auto") != "auto":
        return requested, "the argument"
    inside = _chosen.get()
    if inside is not None:
        return inside, "use_backend"
    variable = os.environ.get(VARIABLE)
    if variable:
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
    "triton": "compiled kernels for CUDA",
}
