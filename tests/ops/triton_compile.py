"""Compile every kernel that a forward and backward pass launches, without a GPU, and print what came out as JSON.

Run as a process of its own, without TRITON_INTERPRET. The real backend functions run on small CPU tensors; their
launches are caught and compiled for compute capability 8.0 and 9.0 with exactly the arguments a GPU would get.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget

from limerank.ops.xor_attention import triton_backend, triton_kernels

ARCHITECTURES = (80, 90)
# Both activations in fp16 only: all dtypes with both would take twice as long and compile the same lines again.
CASES = (
    (torch.float16, "silu"),
    (torch.float16, "softmax"),
    (torch.bfloat16, "silu"),
    (torch.float32, "softmax"),
)


class NoDevice:
    """What triton asks a driver before it compiles. Kernels are cached per device, so each architecture is one."""

    def __init__(self) -> None:
        self.architecture = 0

    def get_current_device(self) -> int:
        return self.architecture

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        return GPUTarget("cuda", self.architecture, 32)


def registers_and_stack(cubin: bytes) -> tuple[int, int]:
    """Registers per thread and bytes of stack, which is where spilled registers go."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "-res-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", said)
    assert found, said
    return int(found[1]), int(found[2])


def compile_all(head: tuple[int, int], links: int) -> list[dict[str, Any]]:
    """One row per kernel, side that owns, architecture, dtype and activation."""
    driver = NoDevice()
    triton.runtime.driver.set_active(driver)
    rows: dict[tuple[object, ...], dict[str, Any]] = {}
    context: dict[str, Any] = {}

    def compile_only(
        kernel: str, grid: tuple[int, ...], arguments: tuple[Any, ...], like: Tensor, chosen: triton_backend.Plan
    ) -> None:
        what = {"kernel": kernel, "side": "links" if len(grid) == 3 else "rows", **context}
        compiled = getattr(triton_kernels, kernel).warmup(*arguments, grid=grid, **chosen.options)
        cubin = compiled.asm["cubin"]
        registers, stack = registers_and_stack(cubin)
        size = {"cubin": len(cubin), "shared": compiled.metadata.shared, "registers": registers, "stack": stack}
        rows[tuple(what.values())] = what | size

    triton_backend.launch = compile_only
    for driver.architecture in ARCHITECTURES:
        for dtype, activation in CASES:
            name = str(dtype).removeprefix("torch.")
            context |= {"arch": driver.architecture, "dtype": name, "activation": activation}
            both_passes(head, links, dtype, activation)
    return list(rows.values())


def both_passes(head: tuple[int, int], links: int, dtype: torch.dtype, activation: str) -> None:
    a, v = head
    heads, bounds = 2, [0, 16, 48]
    rows = [torch.zeros(48, heads, width, dtype=dtype) for width in (a, a, v)]
    link_rows = [torch.zeros(2, links, heads, width, dtype=dtype) for width in (a, a, v)]
    (q_s, k_s, v_s), (q_t, k_t, v_t) = rows, link_rows
    options: dict[str, Any] = {"activation": activation, "scale": 0.125}
    out_t, lse_t = triton_backend.pool_forward(q_t, k_s, v_s, bounds, **options)
    out_s, lse_s = triton_backend.spread_forward(q_s, k_t, v_t, bounds, **options)
    triton_backend.pool_backward(v_t, q_t, k_s, v_s, out_t, lse_t, bounds, **options)
    triton_backend.spread_backward(v_s, q_s, k_t, v_t, out_s, lse_s, bounds, **options)


if __name__ == "__main__":
    a, v, links = map(int, sys.argv[1:])
    json.dump(compile_all((a, v), links), sys.stdout)
