"""Bars where nobody can see them: a line on standard error now and then, and nothing of short work."""

from __future__ import annotations

import pytest
from clocks import Clock

from limerank.progress import Progress


def test_a_long_work_says_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    """At most one in half a minute, with what is left at the pace so far."""
    clock = Clock()
    with Progress(clock=clock).bar("latency", 10) as bar:
        for number in range(8):
            clock.milliseconds += 20_000
            bar.tell(f"size {number}")
            bar.advance()
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "latency: 2 of 10, about 3 min left; size 1",
        "latency: 4 of 10, about 2 min left; size 3",
        "latency: 6 of 10, about 80 s left; size 5",
        "latency: 8 of 10, about 40 s left; size 7",
    ]


def test_what_was_done_before_is_not_of_this_pace(capsys: pytest.CaptureFixture[str]) -> None:
    """Resumed behind 90 of 100 steps: ten left at a step a minute."""
    clock = Clock()
    with Progress(clock=clock).bar("training", 100) as bar:
        bar.advance(90)
        clock.milliseconds += 60_000
        bar.advance()
    assert capsys.readouterr().err == "training: 91 of 100, about 9 min left\n"


def test_one_long_step_of_a_total_that_nobody_knows_and_the_last_one(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with Progress(clock=clock).bar("fitting", 0) as bar:
        clock.milliseconds += 60_000
        bar.advance(1000)
    with Progress(clock=clock).bar("sizes", 1) as bar:
        clock.milliseconds += 60_000
        bar.advance()
    assert capsys.readouterr().err.splitlines() == ["fitting: 1,000", "sizes: 1 of 1"]


def test_short_work_and_quiet_work_say_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with Progress(clock=clock).bar("sizes", 100) as bar:
        for _ in range(29):
            clock.milliseconds += 1000
            bar.advance()
    with Progress(quiet=True, clock=clock).bar("sizes", 2) as bar:
        clock.milliseconds += 60_000
        bar.advance()
    assert capsys.readouterr().err == ""
