"""A second device that every machine has, so that code which moves tensors is run and not only read.

Its tensors call themselves `meta` and hold their numbers on the CPU. Like a GPU's they refuse to meet a tensor of the
CPU that has a dimension, have no `numpy()`, and come back by `.cpu()` alone. Inside `second_device()` whatever is made
on, or sent to, the device `meta` is such a tensor.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = torch.device("meta")
aten = torch.ops.aten
CROSSES = {aten.copy_.default, aten._to_copy.default}


class Elsewhere(Tensor):
    """A tensor of the second device."""

    here: Tensor

    @staticmethod
    def __new__(cls, here: Tensor) -> Elsewhere:
        place: dict[str, Any] = (
            {} if here.is_sparse else {"strides": here.stride(), "storage_offset": here.storage_offset()}
        )
        made: Elsewhere = Tensor._make_wrapper_subclass(
            cls, here.size(), dtype=here.dtype, layout=here.layout, device=DEVICE, **place
        )
        made.here = here
        return made

    def tolist(self) -> Any:
        return self.here.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError("a tensor of the second device has no numpy(); call cpu() first")

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _there(func, args, kwargs or {})


def _no_gradients(mode: bool = True) -> AbstractContextManager[object]:
    return torch.no_grad() if mode else nullcontext()


@contextmanager
def second_device() -> Iterator[None]:
    """While it is open there is a second device.

    Tensors that are made of others cannot be viewed in torch's inference mode; no_grad stands in for it. Torch warns
    that nothing can be loaded into tensors of `meta`; into these it can.
    """
    inference_mode, torch.inference_mode = torch.inference_mode, _no_gradients  # type: ignore[misc, assignment]
    try:
        with warnings.catch_warnings(), SecondDevice():
            warnings.filterwarnings("ignore", "for .*: copying from a non-meta parameter")
            yield
    finally:
        torch.inference_mode = inference_mode  # type: ignore[misc]


class SecondDevice(TorchDispatchMode):
    """Sends what concerns the second device there."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        device = kwargs.get("device")
        asked = device is not None and torch.device(device) == DEVICE
        if not asked and not any(isinstance(one, Elsewhere) for one in pytree.tree_leaves((args, kwargs))):
            return func(*args, **kwargs)
        with self:  # what consists of other operations is taken apart, as autograd does it outside of inference
            whole = func.decompose(*args, **kwargs)
        return _there(func, args, kwargs) if whole is NotImplemented else whole


def _there(func: Any, args: Any, kwargs: Any) -> Any:
    given = pytree.tree_leaves((args, kwargs))
    strangers = [one for one in given if isinstance(one, Tensor) and not isinstance(one, Elsewhere) and one.dim()]
    if strangers and func not in CROSSES:
        raise RuntimeError(f"{func}: a tensor of the CPU meets one of the second device")
    inside = pytree.tree_map_only(Elsewhere, lambda one: one.here, (args, kwargs))
    positional, named = pytree.tree_map_only(torch.device, lambda _: torch.device("cpu"), inside)
    result = func(*positional, **named)
    back = func is aten._to_copy.default and kwargs.get("device") == torch.device("cpu")
    if back or func is aten.copy_.default:
        return result if back else args[0]
    mine = {id(one.here): one for one in given if isinstance(one, Elsewhere)}
    return pytree.tree_map_only(Tensor, lambda one: mine[id(one)] if id(one) in mine else Elsewhere(one), result)
