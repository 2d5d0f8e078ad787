"""What `make soak` judges by: flat is flat, a leak is a leak, and jumps at the beginning are neither."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from soak.verdicts import Sample, drift_verdict, growth, memory_verdicts, sample


def samples(rss: list[float], files: list[int] | None = None) -> list[Sample]:
    opened = files or [20] * len(rss)
    return [Sample(float(n), one, one / 2, held, 9) for n, (one, held) in enumerate(zip(rss, opened, strict=True))]


def reached(found: list[Sample]) -> dict[str, bool]:
    return {one.name.removesuffix(" in the second half"): one.reached for one in memory_verdicts(found)}


def test_a_warm_up_and_noise_are_flat() -> None:
    draw = random.Random(1)
    noisy = [min(900, 300 + 20 * second) + draw.uniform(-40, 40) for second in range(600)]
    assert reached(samples(noisy)) == {"resident memory": True, "anonymous memory": True, "open files": True}


def test_a_single_jump_is_no_growth_but_a_staircase_is() -> None:
    jump = [300.0] * 550 + [700.0] * 50
    assert reached(samples(jump))["resident memory"]
    staircase = [300.0 + 10 * (second // 30) for second in range(600)]
    assert not reached(samples(staircase))["resident memory"]


def test_slow_leaks_are_found() -> None:
    draw = random.Random(2)
    leak = [500 + second * 80 / 600 + draw.uniform(-20, 20) for second in range(600)]
    assert not reached(samples(leak))["resident memory"]
    assert not reached(samples([500.0] * 600, [20 + second // 60 for second in range(600)]))["open files"]


def test_growth_is_that_of_the_line_also_of_many_samples() -> None:
    assert growth([0, 1, 2, 3], [5, 6, 7, 8]) == pytest.approx(3)
    assert growth(range(5000), [0.01 * second for second in range(5000)]) == pytest.approx(50, rel=0.01)


def test_drift_compares_late_requests_with_early_ones() -> None:
    assert drift_verdict([9.0] * 1000 + [5.0] * 8000 + [5.4] * 1000).reached
    assert not drift_verdict([9.0] * 1000 + [5.0] * 8000 + [5.6] * 1000).reached
    assert drift_verdict([1.0] * 100).reached


def test_a_process_is_sampled_as_the_system_counts() -> None:
    """This one: memory that is taken, and a file that is opened, show."""
    before = sample(os.getpid(), 0.0)
    taken = bytearray(os.urandom(32 * 2**20))
    with Path(os.devnull).open():
        after = sample(os.getpid(), time.monotonic())
    assert after.anonymous_mb - before.anonymous_mb > 20
    assert after.files == before.files + 1
    assert len(taken) == 32 * 2**20
