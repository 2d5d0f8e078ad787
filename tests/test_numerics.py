"""Runs of `make test-numerics` compute as they were asked to, and leave no way out that the CPU has."""

from __future__ import annotations

import os

import pytest
import torch
from numerics import CAPABILITY, MKL_PATH, THREADS, Way, ways


def test_this_run_computes_as_it_was_asked_to(capfd: pytest.CaptureFixture[str]) -> None:
    """torch ignores what it does not know, and MKL takes another path where the CPU has not the one asked for."""
    asked = {name: os.environ.get(name) for name in (CAPABILITY, MKL_PATH, THREADS)}
    assert torch.get_num_threads() == int(asked[THREADS] or 1)
    if asked[CAPABILITY]:
        assert torch.backends.cpu.get_cpu_capability().lower() == asked[CAPABILITY]
    if asked[MKL_PATH]:
        with torch.backends.mkl.verbose(torch.backends.mkl.VERBOSE_ON):
            torch.ones(64, 64) @ torch.ones(64, 64)
        assert f"CNR:{asked[MKL_PATH]} " in capfd.readouterr().out


@pytest.mark.parametrize(
    ("native", "below"),
    [("default", []), ("avx2", ["default"]), ("avx512", ["default", "avx2"]), ("sve256", ["default"])],
)
@pytest.mark.parametrize("mkl", [True, False])
def test_every_capability_both_numbers_of_threads_and_another_path_of_mkl(
    native: str, below: list[str], mkl: bool
) -> None:
    own = [Way(native), Way(native, threads=2)]
    assert ways(native, mkl=mkl) == [
        *(Way(capability) for capability in below),
        *own,
        *([Way(native, mkl_path="COMPATIBLE")] if mkl else []),
    ]
    assert str(ways(native, mkl=mkl)[-1]).startswith(f"{CAPABILITY}={native} {THREADS}={1 if mkl else 2}")
