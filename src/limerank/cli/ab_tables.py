"""The tables of `limerank ab`, for a terminal and for a page alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from limerank.times import time_text

if TYPE_CHECKING:
    from limerank.serve.experiments.outcome.result import AbResult, Comparison, Spread

MEANING = (
    "How to read it: of 100 experiments that are looked at once, at a time chosen before they began, 95 have the true "
    "difference inside their 95 % interval. Whoever looks every day and stops at the first clear difference finds "
    "differences that are not there far more often, and of 20 rows that differ in nothing one looks clear: choose one "
    "row and a duration beforehand. Intervals take users as independent, not rankings (delta method), and need "
    "hundreds of users per arm. A clear difference may still be too small to matter."
)
SHOWN = (
    "Overlap of how often items are shown at the first positions, each arm against a part of control; `alike` is what "
    "other users of control have with that same part, so an arm that shows the same has about that."
)


class Titled(NamedTuple):
    """A table with its title."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


def headline(result: AbResult) -> str:
    """What was looked at."""
    until = "" if result.until is None else f" until {time_text(result.until)} UTC"
    since = f"since {time_text(result.since)} UTC" if result.since else "all that are logged"
    if result.experiment is None:
        return f"no experiment; shadow rankings {since}{until}"
    return f"experiment {result.experiment} ({'running' if result.running else 'ended'}): rankings {since}{until}"


def tables_of(result: AbResult) -> list[Titled]:
    """Those that have rows."""
    made = [_arms(result), _events(result), _differences(result), _stages(result), _shown(result), _shadows(result)]
    return [table for table in made if table.rows]


def sample_ratio_line(result: AbResult) -> str:
    """How well arms have the users they should have; empty where it cannot be told."""
    ratio = result.sample_ratio
    if ratio is None:
        return ""
    counted = ", ".join(f"{name} {users:,} of {ratio.expected[name]:,.1f}" for name, users in ratio.counted.items())
    return f"users by arm, counted and expected: {counted}; by chance at least so far off: {ratio.probability:.2g}"


def _arms(result: AbResult) -> Titled:
    rows = [
        [
            arm.name,
            "-" if arm.percent is None else f"{arm.percent:g}%",
            f"{arm.users:,}",
            f"{arm.rankings:,}",
            f"{arm.degraded:,}",
            *_milliseconds(arm.milliseconds.get("total")),
            ", ".join(arm.bundles),
        ]
        for arm in result.arms
    ]
    columns = ["arm", "percent", "users", "rankings", "degraded", "p50 ms", "p99 ms", "bundle"]
    return Titled("arms", columns, rows)


def _events(result: AbResult) -> Titled:
    rows = [
        [
            kind,
            arm.name,
            f"{counts.joined:,}",
            f"{counts.rankings_with:,}",
            f"{counts.by_users:,}",
            f"{counts.joined_value:,.6g}",
        ]
        for kind in sorted({kind for arm in result.arms for kind in arm.events})
        for arm in result.arms
        for counts in [arm.events[kind]]
    ]
    return Titled("events", ["type", "arm", "of rankings", "rankings with", "of users", "value"], rows)


def _differences(result: AbResult) -> Titled:
    rows = [
        [
            one.type or "-",
            one.what,
            one.arm,
            f"{one.control:.4g}",
            f"{one.rate:.4g}",
            f"{one.difference:+.4g}",
            _interval(one),
            "-" if one.relative is None else f"{one.relative:+.1%}",
            "yes" if one.is_clear else "no",
        ]
        for one in result.comparisons
    ]
    level = f"{result.level:.0%} interval".replace("%", " %")
    columns = ["type", "rate", "arm", "control", "arm's", "difference", level, "relative", "leaves out 0"]
    return Titled("differences to control", columns, rows)


def _interval(one: Comparison) -> str:
    return "-" if one.low is None or one.high is None else f"{one.low:+.4g} to {one.high:+.4g}"


def _stages(result: AbResult) -> Titled:
    stages = dict.fromkeys(stage for arm in result.arms for stage in arm.milliseconds)
    rows = [[stage, arm.name, *_milliseconds(arm.milliseconds.get(stage))] for stage in stages for arm in result.arms]
    return Titled("milliseconds by stage", ["stage", "arm", "p50", "p99"], rows)


def _shown(result: AbResult) -> Titled:
    rows = [[one.arm, f"1 to {one.depth}", f"{one.overlap:.3f}", f"{one.chance:.3f}"] for one in result.shown]
    return Titled("what is shown", ["arm", "positions", "overlap with control", "alike"], rows)


def _shadows(result: AbResult) -> Titled:
    rows = [
        [
            one.bundle,
            one.answered_by,
            f"{one.rankings:,}",
            *("-" if mean is None else f"{mean:.3f}" for mean in (one.overlap_10, one.overlap_100, one.tau)),
            "-" if one.score_difference is None else f"{one.score_difference:.4g}",
            *_milliseconds(one.shadow_ms),
            *_milliseconds(one.answer_ms),
        ]
        for one in result.shadows
    ]
    columns = ["shadow", "answered by", "rankings", "top 10", "top 100", "tau", "|score diff|"]
    return Titled("agreement of shadows", [*columns, "p50 ms", "p99 ms", "answer p50", "answer p99"], rows)


def _milliseconds(spread: Spread | None) -> tuple[str, str]:
    return ("-", "-") if spread is None else (f"{spread.p50:.3g}", f"{spread.p99:.3g}")
