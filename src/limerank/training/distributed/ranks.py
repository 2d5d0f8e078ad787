"""The processes of one training, and what they tell each other besides gradients.

`Ranks()` is a process alone; everything here is then nothing. Otherwise each method is called by all ranks at the same
point of their work. Messages are JSON and plain arrays, on the CPU (gloo), whatever gradients travel by.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch import distributed as dist

from limerank.data.batches import Portion
from limerank.errors import LimerankError

Arrays = Mapping[str, NDArray[Any]]
LOST = ("gloo", "nccl", "closed by peer", "reset by peer", "broken pipe", "socket")
"""What the words of torch have in common when a process that it talks to is gone."""


@dataclass(frozen=True)
class Ranks:
    """This process's number among those that train together. The first one writes, prints and publishes."""

    rank: int = 0
    size: int = 1

    @classmethod
    def here(cls) -> Ranks:
        """Those of the process group that is open, if there is one."""
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        return cls()

    @property
    def is_first(self) -> bool:
        """Whether this is the one that writes, prints and publishes."""
        return self.rank == 0

    @property
    def number_here(self) -> int:
        """This one's number on its machine."""
        return 0 if self.size == 1 else int(os.environ.get("LOCAL_RANK", self.rank))

    @property
    def started_again(self) -> bool:
        """Whether torchrun started these processes again, after one of them had failed."""
        return self.size > 1 and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"

    @property
    def portion(self) -> Portion:
        """Which requests of each batch this rank reads."""
        return Portion(self.rank, self.size)

    def any(self, *flags: bool) -> list[bool]:
        """Which of these are so on any rank."""
        if self.size == 1:
            return list(flags)
        counted = torch.tensor(flags, dtype=torch.int32)
        dist.all_reduce(counted, dist.ReduceOp.MAX)
        return [bool(flag) for flag in counted]

    def told(self, text: str) -> str:
        """What the first rank says."""
        if self.size == 1:
            return text
        written = torch.frombuffer(bytearray(text.encode() or b"\0"), dtype=torch.uint8)
        length = torch.tensor([len(written) if text else 0])
        dist.broadcast(length, 0)
        if not int(length):
            return ""
        heard = written if self.is_first else torch.empty(int(length), dtype=torch.uint8)
        dist.broadcast(heard, 0)
        return heard.numpy().tobytes().decode()

    def gathered(self, arrays: Arrays) -> list[Arrays]:
        """The arrays of all ranks, in their order, on the first; nothing on the others."""
        if self.size == 1:
            return [arrays]
        if self.is_first:
            return [arrays, *(_received(rank) for rank in range(1, self.size))]
        _send(arrays)
        return []

    def of_first(self, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """The tensors of the first rank, one after the other, on every rank; on the CPU."""
        if self.size == 1:
            yield from tensors.items()
            return
        names = [(name, list(one.shape), str(one.dtype).removeprefix("torch.")) for name, one in tensors.items()]
        for name, shape, kind in json.loads(self.told(json.dumps(names))):
            own = tensors[name].cpu().contiguous() if self.is_first else torch.empty(shape, dtype=getattr(torch, kind))
            dist.broadcast(own, 0)
            yield name, own

    def same_start(self, module: nn.Module) -> None:
        """Give every rank the weights of the first: other processors round other starts."""
        if self.size > 1:
            for one in (*module.parameters(), *module.buffers()):
                if one.numel():
                    whole = one.detach().cpu().contiguous()
                    dist.broadcast(whole, 0)
                    one.detach().copy_(whole)

    def wait(self) -> None:
        """Until all are here."""
        self.any(False)


def is_lost(error: BaseException) -> bool:
    """Whether an error means that another process is gone."""
    if isinstance(error, LimerankError) or not isinstance(error, RuntimeError):
        return False
    return isinstance(error, dist.DistError) or any(word in str(error).lower() for word in LOST)


def _send(arrays: Arrays) -> None:
    """To the first rank: what is in it, then each array as bytes."""
    about = json.dumps([(name, list(one.shape), one.dtype.str) for name, one in arrays.items()]).encode()
    dist.send(torch.tensor([len(about)]), 0)
    dist.send(torch.frombuffer(bytearray(about), dtype=torch.uint8), 0)
    for one in arrays.values():
        if one.size:
            dist.send(torch.from_numpy(np.ascontiguousarray(one).reshape(-1).view(np.uint8)), 0)


def _received(rank: int) -> Arrays:
    length = torch.empty(1, dtype=torch.int64)
    dist.recv(length, rank)
    about = torch.empty(int(length), dtype=torch.uint8)
    dist.recv(about, rank)
    arrays = {}
    for name, shape, kind in json.loads(about.numpy().tobytes()):
        one = np.empty(shape, dtype=np.dtype(kind))
        if one.size:
            dist.recv(torch.from_numpy(one.reshape(-1).view(np.uint8)), rank)
        arrays[name] = one
    return arrays
