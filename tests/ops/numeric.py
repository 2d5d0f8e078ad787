"""How op tests compare numbers: against fp64, with the reference's own rounding as the yardstick."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

LENGTHS = [0, 1, 2, 15, 16, 17, 63, 64, 65, 1000, 0]


def rms(values: Tensor) -> float:
    """Root mean square; zero for nothing."""
    return float(values.double().square().mean().sqrt()) if values.numel() else 0.0


def assert_three_way(
    got: Sequence[Tensor],
    same_precision: Sequence[Tensor],
    truth: Sequence[Tensor],
    factor: float,
    names: Sequence[str],
) -> None:
    """Error against fp64 at most `factor` times the error of the reference in the same precision.

    The floor is one unit in the last place of the largest result: the reference may be exact, as the gradient of a
    softmax over one link is, where recomputing subtracts two equal numbers.
    """
    largest = max(rms(exact) for exact in truth)
    for name, ours, theirs, exact in zip(names, got, same_precision, truth, strict=True):
        assert ours.shape == exact.shape, f"{name}: {list(ours.shape)} instead of {list(exact.shape)}"
        assert torch.isfinite(ours).all(), f"{name} is not finite"
        error, allowed = rms(ours.double() - exact), rms(theirs.double() - exact)
        floor = torch.finfo(ours.dtype).eps * largest
        assert error <= factor * allowed + floor, f"{name}: error {error:.3g}, the reference's own {allowed:.3g}"


@contextmanager
def poisoned_buffers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every freshly allocated floating tensor is full of NaN: what is not written shows."""

    def poisoned(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def empty(*args: Any, **kwargs: Any) -> Tensor:
            tensor = make(*args, **kwargs)
            return tensor.fill_(torch.nan) if tensor.is_floating_point() else tensor

        return empty

    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", poisoned(torch.empty))
        patch.setattr(torch, "empty_like", poisoned(torch.empty_like))
        patch.setattr(torch.Tensor, "new_empty", poisoned(torch.Tensor.new_empty))
        yield
