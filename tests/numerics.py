"""`make test-numerics`: the numeric tests on every way in which this CPU adds numbers up.

Vector units, BLAS paths and threads sum in other orders, so the last digits of a result differ from machine to machine.
A test whose margin is below that passes on one and fails on another. Arguments, if there are any, go to pytest instead
of the list of tests: `.venv/bin/python tests/numerics.py tests/models -k sim`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = ["ops", "nn", "models", "parity", "serve", "training", "bench/test_op_bench.py", "metrics"]
LEFT_OUT = ["ops/test_xor_triton.py"]
"""Interpreted by NumPy, or compiled for other processors: none of this reaches it."""
CHECK = "test_numerics.py"
"""Fails if a run does not compute as it was asked to."""
CAPABILITY, MKL_PATH, THREADS = "ATEN_CPU_CAPABILITY", "MKL_CBWR", "LIMERANK_TEST_THREADS"
X86 = ["default", "avx2", "avx512"]
"""What torch has kernels for; a CPU runs all up to its own."""


@dataclass(frozen=True)
class Way:
    """One way to compute: torch's kernels, MKL's path (None: its own choice) and threads."""

    capability: str
    mkl_path: str | None = None
    threads: int = 1

    def environment(self) -> dict[str, str]:
        """What says so to a process that has not loaded torch yet."""
        chosen = {CAPABILITY: self.capability, THREADS: str(self.threads)}
        return chosen if self.mkl_path is None else {**chosen, MKL_PATH: self.mkl_path}

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.environment().items())


def ways(native: str, *, mkl: bool) -> list[Way]:
    """Each capability alone, then the CPU's own with two threads and with MKL's path for every CPU."""
    below = X86[: X86.index(native)] if native in X86 else ["default"]
    found = [Way(capability) for capability in [*below, native]]
    return [*found, Way(native, threads=2), *([Way(native, mkl_path="COMPATIBLE")] if mkl else [])]


def run(way: Way, arguments: list[str]) -> int:
    """pytest's exit code; idle threads sleep, because processes share the cores."""
    command = [sys.executable, "-m", "pytest", "-n", "auto", "--maxprocesses", "4", "--dist", "loadfile"]
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", **way.environment()}
    return subprocess.run([*command, f"tests/{CHECK}", *arguments], cwd=ROOT, env=environment, check=False).returncode


def main() -> None:
    """Run all, say what each was, and fail if one did."""
    for name in (CAPABILITY, MKL_PATH):
        os.environ.pop(name, None)
    import torch  # reads the environment when it is loaded

    chosen = ways(torch.backends.cpu.get_cpu_capability().lower(), mkl=torch.backends.mkl.is_available())
    if not torch.backends.mkl.is_available():
        sys.stdout.write(f"{MKL_PATH}: left out, this torch has no MKL\n")
    whole = [*(f"tests/{name}" for name in TESTS), *(f"--ignore=tests/{name}" for name in LEFT_OUT)]
    results = []
    for way in chosen:
        sys.stdout.write(f"\n{way}\n")
        sys.stdout.flush()
        start = time.monotonic()
        code = run(way, sys.argv[1:] or whole)
        results.append((way, code, time.monotonic() - start))
    sys.stdout.write("\n")
    for way, code, seconds in results:
        sys.stdout.write(f"{'failed' if code else 'passed'} {seconds:5.0f} s  {way}\n")
    sys.exit(any(code for _, code, _ in results))


if __name__ == "__main__":
    main()
