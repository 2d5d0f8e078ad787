"""XOR attention on GPUs: launches the kernels of `triton_kernels`, which explains the structure.

The four functions take raw tensors and the values of `offsets` (`bounds`); any strides. Outputs and gradients are new
and contiguous. Sums run in an order that depends on one user's history length only, so two runs agree bit by bit, and
so do a user's results alone and in any batch.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from limerank.errors import ArgumentError
from limerank.ops.xor_attention.strided import Strided

WIDEST_HEAD = 256


def why_not(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why this backend cannot run here, or None when it can."""
    if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return (
            f"the triton backend needs a CUDA device, not {device.type}; to run its kernels slowly in the interpreter, "
            "set TRITON_INTERPRET=1 in the environment before Python starts"
        )
    if device.type == "cuda" and not torch.cuda.is_available():
        return "torch finds no CUDA device"
    try:
        import triton

        from limerank.ops.xor_attention import triton_kernels
    except Exception as problem:  # a broken wheel fails in many ways, and none of them may take down the other backends
        return f"triton cannot be imported ({type(problem).__name__}: {problem}): pip install 'limerank[triton]'"
    if not isinstance(triton_kernels.attend, triton.JITFunction):
        if dtype != torch.float32:
            return f"triton's interpreter is trusted with float32 only, not {dtype}: it computes bfloat16 wrongly"
        return None
    if device.type != "cuda":
        return "TRITON_INTERPRET was set after the kernels were imported; set it before Python starts"
    if dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return f"the triton backend computes float16, bfloat16 and float32, not {dtype}"
    major, minor = torch.cuda.get_device_capability(device)
    if major < 8:
        return f"the triton backend needs compute capability 8.0 or newer; {device} has {major}.{minor}"
    return None


@dataclass(frozen=True)
class Plan:
    """Sizes of blocks and pieces; a function of the shapes only, never of the batch or of a measurement."""

    rows: int
    links: int
    piece: int
    warps: int
    stages: int

    @property
    def options(self) -> dict[str, int | bool]:
        """How triton compiles. Fused multiply-adds are asked for by name, because its default is about to change."""
        return {"num_warps": self.warps, "num_stages": self.stages, "enable_fp_fusion": True}


def plan(a: int, v: int, links: int, dtype: torch.dtype) -> Plan:
    """Blocks that fit a multiprocessor of compute capability 8.0: 163 KB of shared memory and 255 registers per thread.

    A program keeps its own two tiles and two pairs of the tiles it reads in shared memory, because one pair is loaded
    while the other is used. Half precision runs on tensor cores. float32 does not (`ieee` forbids TF32): its operands
    pass through registers, which spill to memory unless blocks are small and spread over eight warps. With these
    sizes the compiler reports at most 83 KB and next to no spills (tests/ops/triton_compile.py prints both).

    A piece has at least 512 rows, so that writing and adding parts is little work next to reading the history, and more
    for many links, because a part is as long as there are links.
    """
    widest = max(padded(a), padded(v))
    if widest > WIDEST_HEAD:
        raise ArgumentError(
            f"the triton backend supports heads up to {WIDEST_HEAD} wide, but a = {a} and v = {v}; use chunked"
        )
    if dtype == torch.float32:
        rows, warps = 32 if widest <= 64 else 16, 8
    else:
        rows, warps = (64, 4) if widest <= 128 else (32, 8)
    piece = max(512, 8 * padded(links))
    return Plan(rows=rows, links=min(padded(links), 32, rows), piece=piece, warps=warps, stages=2)


def padded(size: int) -> int:
    """The next power of two that `tl.dot` accepts."""
    return max(16, 1 << max(size - 1, 0).bit_length())


def of_links(tensor: Tensor) -> Strided:
    """[B, l, H, width] or [B, l, H]."""
    return Strided(tensor, *tensor.stride(), *(() if tensor.dim() == 4 else (0,)))


def of_history(tensor: Tensor) -> Strided:
    """[sum_n, H, width] or [sum_n, H]."""
    return Strided(tensor, 0, *tensor.stride(), *(() if tensor.dim() == 3 else (0,)))


@dataclass(frozen=True)
class Work:
    """Histories cut into items (user, first row, row after the last, keys per query), user by user."""

    items: Tensor
    bounds: Tensor


def cut(bounds: list[int], longest: int, keys: int | None, device: torch.device) -> Work:
    """Items of at most `longest` rows. `keys` per query, or the user's own history length if None."""
    edges = torch.tensor(bounds)
    lengths = edges.diff()
    counts = (lengths + longest - 1) // longest
    last = counts.cumsum(0)
    user = torch.repeat_interleave(torch.arange(len(counts)), counts)
    first = edges[user] + (torch.arange(len(user)) - (last - counts)[user]) * longest
    stop = torch.minimum(first + longest, edges[user + 1])
    per_query = lengths[user] if keys is None else torch.full_like(user, keys)
    items = torch.stack((user, first, stop, per_query), 1)
    return Work(items.to(device), torch.cat((last.new_zeros(1), last)).to(device))


@dataclass(frozen=True)
class Call:
    """What all launches of one call share."""

    a: int
    v: int
    links: int
    heads: int
    scale: float
    softmax: bool
    plan: Plan

    @property
    def tiles(self) -> int:
        """Blocks of links."""
        return -(-self.links // self.plan.links)

    def own_rows(self, kernel: str, work: Work, *tensors: Strided | None) -> None:
        """Run a kernel whose programs own the history rows of an item."""
        self._launch(kernel, work, (len(work.items), self.heads), tensors, self.plan.rows, self.plan.links, False)

    def own_links(self, kernel: str, work: Work, *tensors: Strided | None) -> None:
        """Run a kernel whose programs own links and read the history rows of an item."""
        grid = (len(work.items), self.heads, self.tiles)
        self._launch(kernel, work, grid, tensors, self.plan.links, self.plan.rows, True)

    def _launch(
        self,
        kernel: str,
        work: Work,
        grid: tuple[int, ...],
        tensors: tuple[Strided | None, ...],
        own: int,
        read: int,
        links_own: bool,
    ) -> None:
        sizes = (self.a, padded(self.a), self.v, padded(self.v), own, read, links_own, self.softmax)
        arguments = (*tensors, work.items, self.links, self.scale, *sizes)
        launch(kernel, grid, arguments, work.items, self.plan)

    def parts(self, work: Work, *widths: int) -> Tensor:
        """Room for every item's part of a link-side result."""
        return torch.empty(
            (len(work.items), self.links, self.heads, *widths), dtype=torch.float32, device=work.items.device
        )

    def add(self, parts: Tensor, work: Work, dtype: torch.dtype) -> Tensor:
        """The parts of every user added: [items, l, H, width] to [B, l, H, width]."""
        users, width = len(work.bounds) - 1, parts.shape[-1]
        result = torch.empty((users, *parts.shape[1:]), dtype=dtype, device=parts.device)
        tensors = (of_links(parts), of_links(result))
        arguments = (*tensors, work.bounds, self.links, width, padded(width), self.plan.links)
        launch("sum_parts", (users, self.heads, self.tiles), arguments, parts, self.plan)
        return result

    def merge(
        self, parts: Tensor, peaks: Tensor, masses: Tensor, work: Work, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """The softmax over all parts of every user: output [B, l, H, v] and lse [B, l, H]."""
        users = len(work.bounds) - 1
        out = torch.empty((users, *parts.shape[1:]), dtype=dtype, device=parts.device)
        lse = torch.empty((users, *peaks.shape[1:]), dtype=torch.float32, device=parts.device)
        tensors = tuple(map(of_links, (parts, peaks, masses, out, lse)))
        arguments = (*tensors, work.bounds, self.links, self.v, padded(self.v), self.plan.links)
        launch("merge_parts", (users, self.heads, self.tiles), arguments, parts, self.plan)
        return out, lse


def launch(kernel: str, grid: tuple[int, ...], arguments: tuple[Any, ...], like: Tensor, chosen: Plan) -> None:
    """Run one kernel on the device of `like`; a grid without programs is nothing to do."""
    from limerank.ops.xor_attention import triton_kernels

    if 0 in grid:
        return
    with torch.cuda.device_of(like):
        getattr(triton_kernels, kernel)[grid](*arguments, **chosen.options)


def call_of(q: Tensor, v: Tensor, links: Tensor, activation: str, scale: float) -> Call:
    """From queries and values of any side and a link tensor [B, l, H, width]."""
    a, values, count = q.shape[-1], v.shape[-1], links.shape[1]
    return Call(
        a, values, count, links.shape[2], float(scale), activation == "softmax", plan(a, values, count, q.dtype)
    )


def pool_forward(
    q_t: Tensor, k_s: Tensor, v_s: Tensor, bounds: list[int], *, activation: str, scale: float
) -> tuple[Tensor, Tensor]:
    """Links read the history: out_t [B, l, H, v] and lse_t [B, l, H] (SiLU: [0])."""
    call = call_of(q_t, v_s, q_t, activation, scale)
    work = cut(bounds, call.plan.piece, None, q_t.device)
    inputs = (of_links(q_t), of_history(k_s), of_history(v_s))
    parts = call.parts(work, call.v)
    if not call.softmax:
        call.own_links("attend", work, *inputs, of_links(parts), None, None)
        return call.add(parts, work, q_t.dtype), q_t.new_empty(0, dtype=torch.float32)
    peaks, masses = call.parts(work), call.parts(work)
    call.own_links("attend", work, *inputs, *map(of_links, (parts, peaks, masses)))
    return call.merge(parts, peaks, masses, work, q_t.dtype)


def spread_forward(
    q_s: Tensor, k_t: Tensor, v_t: Tensor, bounds: list[int], *, activation: str, scale: float
) -> tuple[Tensor, Tensor]:
    """History rows read the links: out_s [sum_n, H, v] and lse_s [sum_n, H] (SiLU: [0])."""
    call = call_of(q_s, v_t, k_t, activation, scale)
    work = cut(bounds, call.plan.rows, max(call.links, 1), q_s.device)
    out = torch.empty((len(q_s), call.heads, call.v), dtype=q_s.dtype, device=q_s.device)
    lse = torch.empty((len(q_s), call.heads) if call.softmax else (0,), dtype=torch.float32, device=q_s.device)
    inputs = (of_history(q_s), of_links(k_t), of_links(v_t))
    call.own_rows("attend", work, *inputs, of_history(out), of_history(lse) if call.softmax else None, None)
    return out, lse


def pool_backward(
    d_out_t: Tensor,
    q_t: Tensor,
    k_s: Tensor,
    v_s: Tensor,
    out_t: Tensor,
    lse_t: Tensor,
    bounds: list[int],
    *,
    activation: str,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `pool_forward`: d_q_t, d_k_s, d_v_s."""
    call = call_of(q_t, v_s, q_t, activation, scale)
    pieces, blocks = (cut(bounds, longest, None, q_t.device) for longest in (call.plan.piece, call.plan.rows))
    saved = (of_links(out_t), of_links(lse_t)) if call.softmax else (None, None)
    inputs = (of_links(d_out_t), of_links(q_t), of_history(k_s), of_history(v_s), *saved)
    parts = call.parts(pieces, call.a)
    call.own_links("grad_queries", pieces, *inputs, of_links(parts))
    d_k, d_v = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (k_s, v_s))
    call.own_rows("grad_keys_and_values", blocks, *inputs, of_history(d_k), of_history(d_v))
    return call.add(parts, pieces, q_t.dtype), d_k, d_v


def spread_backward(
    d_out_s: Tensor,
    q_s: Tensor,
    k_t: Tensor,
    v_t: Tensor,
    out_s: Tensor,
    lse_s: Tensor,
    bounds: list[int],
    *,
    activation: str,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `spread_forward`: d_q_s, d_k_t, d_v_t."""
    call = call_of(q_s, v_t, k_t, activation, scale)
    keys = max(call.links, 1)
    pieces, blocks = (cut(bounds, longest, keys, q_s.device) for longest in (call.plan.piece, call.plan.rows))
    saved = (of_history(out_s), of_history(lse_s)) if call.softmax else (None, None)
    inputs = (of_history(d_out_s), of_history(q_s), of_links(k_t), of_links(v_t), *saved)
    d_q = torch.empty(q_s.shape, dtype=q_s.dtype, device=q_s.device)
    call.own_rows("grad_queries", blocks, *inputs, of_history(d_q))
    d_k_parts, d_v_parts = call.parts(pieces, call.a), call.parts(pieces, call.v)
    call.own_links("grad_keys_and_values", pieces, *inputs, of_links(d_k_parts), of_links(d_v_parts))
    return d_q, call.add(d_k_parts, pieces, k_t.dtype), call.add(d_v_parts, pieces, v_t.dtype)
