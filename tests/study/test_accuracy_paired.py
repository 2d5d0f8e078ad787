"""Intervals of differences over users and seeds, on examples whose answers are known."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from limerank.metrics import paired_differences
from limerank.report.page import Page
from limerank.study.accuracy import table
from limerank.study.accuracy.gathering import rival_pairs
from limerank.study.accuracy.page import fill
from limerank.study.accuracy.paired import METRICS, Resampled, gap_interval, over_seeds, paired, resample, seed_factors
from limerank.study.accuracy.results import AccuracyStudy, Gap, PairedDifference, RowComparison, RowResult
from limerank.study.pages import open_result

DRAWS = 400
RESULTS = Path(__file__).parents[2] / "docs/results"


def constant(value: float) -> Resampled:
    """A run whose users are all alike: no draw of users changes it."""
    return Resampled(dict.fromkeys(METRICS, value), {name: np.full(DRAWS, value) for name in METRICS})


def test_seeds_alone() -> None:
    """Users all alike: the interval is Student's, here 2 +- 4.303 s / sqrt(3) of the differences 1, 2 and 3."""
    found = paired({seed: constant(float(seed)) for seed in (1, 2, 3)}, {seed: constant(0.0) for seed in (1, 2, 3)})[
        "ne"
    ]
    assert found.difference == pytest.approx(2)
    reach = 4.303 / math.sqrt(3)
    assert (found.low, found.high) == pytest.approx((2 - reach, 2 + reach), abs=0.3)
    assert next((one.seed, one.difference, one.low, one.high) for one in found.by_seed) == (1, 1, 1, 1)
    assert not found.is_clear, "three seeds that all agree in sign, and differ as much as this, are no proof"


@pytest.mark.parametrize(
    ("seeds", "of_users", "of_seeds"), [(3, 0.0, 1.0), (3, 0.3, 1.0), (3, 1.0, 0.0), (5, 0.0, 1.0)]
)
def test_the_interval_holds_the_truth_as_often_as_it_says(seeds: int, of_users: float, of_seeds: float) -> None:
    """No difference at all, seen through users and seeds: 95 % of the intervals hold zero, or a few more.

    Drawing seeds with replacement held it in 76 % for three seeds alone, stretched or not.
    """
    generator = np.random.default_rng(5)
    held, studies = 0, 300
    for _ in range(studies):
        users = generator.normal(0, of_users)
        drawn = users + generator.normal(0, of_users, 200)
        between = over_seeds([drawn + one for one in generator.normal(0, of_seeds, seeds)])
        low, high = np.quantile(between, [0.025, 0.975])
        held += low <= 0 <= high
    assert held / studies > 0.91


def test_the_spread_that_seeds_add_is_that_of_the_unbiased_variance() -> None:
    """With many seeds Student's t is normal: the variance of the mean of S values is s^2 / S."""
    values = np.random.default_rng(2).normal(size=60)
    drawn = over_seeds([np.full(2_000, value) for value in values])
    assert drawn.var() == pytest.approx(values.var(ddof=1) / 60 * 59 / 57, rel=0.05)
    assert drawn.mean() == pytest.approx(values.mean(), abs=0.01)
    assert (seed_factors(3, DRAWS) == seed_factors(3, DRAWS)).all(), "the same for all rows"


def test_users_alone_are_the_paired_intervals_of_the_metrics() -> None:
    """One seed: what `limerank evaluate --against` says of two runs, from the same draws."""
    generator = np.random.default_rng(3)
    user = np.sort(generator.integers(0, 40, 600))
    request = user * 10 + generator.integers(0, 3, 600)
    labels = generator.integers(0, 2, 600).astype(np.uint8)
    first, second = (
        np.clip(0.25 + 0.3 * labels + generator.normal(0, width, 600), 0.01, 0.99).astype(np.float32)
        for width in (0.2, 0.3)
    )
    expected = paired_differences(labels, first, second, user, request)
    one, other = (resample(labels, scores, user, request) for scores in (first, second))
    found = paired({1: one}, {1: other})
    assert set(found) == set(METRICS)
    for name, difference in found.items():
        between = expected[name].interval
        assert between is not None
        assert difference.difference == pytest.approx(expected[name].difference)
        assert (difference.low, difference.high) == pytest.approx((between.low, between.high))
    same = paired({1: one, 2: one}, {1: one, 2: one})["auc"]
    assert (same.low, same.difference, same.high) == pytest.approx((0, 0, 0))
    assert not same.is_clear


def test_only_seeds_that_both_have_are_compared() -> None:
    found = paired({1: constant(1.0), 3: constant(5.0)}, {1: constant(0.5), 2: constant(0.0)})["auc"]
    assert [one.seed for one in found.by_seed] == [1]
    assert found.difference == 0.5
    assert paired({1: constant(1.0)}, {2: constant(1.0)}) == {}
    assert "ne" not in paired({1: constant(float("nan"))}, {1: constant(1.0)}), "what is undefined has no difference"


def test_the_interval_of_a_gap() -> None:
    """No interval where the gap itself may be none: the quotient would be anything."""
    base, sky = {1: constant(1.0), 2: constant(1.0)}, {1: constant(0.8), 2: constant(0.8)}
    assert gap_interval(base, sky, {1: constant(0.85), 2: constant(0.85)}) == pytest.approx((0.75, 0.75))
    assert gap_interval(base, {1: constant(0.8), 2: constant(1.1)}, base) is None
    assert gap_interval(base, sky, {3: constant(0.85)}) is None


def test_the_interval_of_a_gap_is_that_of_the_difference_when_the_gap_is_known() -> None:
    """A gap of 0.2 in every seed: the fraction's interval is that of what is closed, divided by 0.2."""
    seeds = (1, 2, 3)
    base, sky = {seed: constant(1.0) for seed in seeds}, {seed: constant(0.8) for seed in seeds}
    row = {1: constant(0.84), 2: constant(0.85), 3: constant(0.86)}
    closed, found = paired(base, row)["ne"], gap_interval(base, sky, row)
    assert found is not None
    assert closed.low is not None
    assert closed.high is not None
    assert found == pytest.approx((closed.low / 0.2, closed.high / 0.2))


def study_with(high: float) -> tuple[AccuracyStudy, RowResult]:
    """The committed study of the easy log, whose gap from TTSN to MHA is as near to zero as is said."""
    study = open_result(Path(__file__).parents[2] / "docs/results/accuracy-easy.json").result
    assert isinstance(study, AccuracyStudy)
    compared, row = study.compared("mha", "baseline"), study.row("lime-mha")
    assert compared is not None
    assert row is not None
    compared.metrics["ne"] = PairedDifference(difference=-0.08, low=-0.16, high=high, by_seed=[])
    row.gap = Gap(skyline="mha", by_seed=[0.7], of_means=0.26, low=-0.5, high=71.44)
    return study, row


@pytest.mark.parametrize(("high", "clear"), [(-0.03, True), (-0.008, True), (-0.0079, False), (0.01, False)])
def test_a_gap_that_is_not_clear_has_no_interval(high: float, clear: bool) -> None:
    """Its interval holds zero, or nearly: the fraction's would end anywhere, and is said to be missing, not cut."""
    study, row = study_with(high)
    words = dict(table.verdicts(study))["lime-mha"]
    if clear:
        assert table.gap_text(study, row) == "26%"
        assert table.gap_words(study, row) == "26% (-50% to 7144%)"
        assert words.startswith("closes 26% (-50% to 7144%) of the NE gap ttsn -> mha; ")
    else:
        assert table.gap_text(study, row) == "26% ?"
        assert table.gap_words(study, row) == "26%, gap not clear"
        assert words.startswith("closes 26% of the NE gap ttsn -> mha, which is not clear; ")
    study.comparisons = []
    assert table.gap_words(study, row) == "26%, gap not clear", "a gap without an interval"


def test_training_seconds_are_of_the_middle_seed() -> None:
    """One seed that shared its core with something else does not move them."""
    study, row = study_with(-0.03)
    for run, seconds in zip(row.runs, (10.0, 11.0, 90.0), strict=True):
        run.seconds = seconds
    (cells,) = [cells for cells in table.cost_rows(study) if cells[0] == "lime-mha"]
    assert cells[table.COST_COLUMNS.index("train s")] == "11"
    page = Page("accuracy")
    fill(page, study)
    assert "the median over seeds" in page.html()
    assert "the gap itself is not clear" in page.html()


def test_lime_is_held_against_everybody_whom_the_paper_names_and_linear_attention() -> None:
    """Once each, and not where a comparison of another role says it already."""
    compared = comparison("lime-mha", "ttsn", "baseline"), comparison("lime-mha", "mha", "skyline")
    rows = ["ttsn", "mha", "sasrec", "sim", "performer", "lime-mha", "lime-xor", "lime-mha-xavier"]
    assert rival_pairs(rows, compared) == [
        ("lime-mha", "sasrec"),
        ("lime-mha", "lime-xor"),
        ("lime-mha", "performer"),
        ("lime-xor", "ttsn"),
        ("lime-xor", "sasrec"),
        ("lime-xor", "mha"),
        ("lime-xor", "performer"),
    ]
    assert rival_pairs(["ttsn", "mha"], []) == []


def comparison(first: str, second: str, role: Literal["baseline", "skyline", "rival"]) -> RowComparison:
    differences = paired({1: constant(0.2), 2: constant(0.2)}, {1: constant(0.1), 2: constant(0.1)})
    return RowComparison(first=first, second=second, role=role, metrics=differences)


@pytest.mark.parametrize("path", sorted(RESULTS.glob("accuracy-*.json")), ids=lambda path: path.stem)
def test_rivals_are_on_the_page_and_files_of_before_have_none(path: Path) -> None:
    """A reader of before finds them under a key that it does not know, and the others as they were."""
    study = AccuracyStudy.model_validate_json(path.read_bytes())
    study.rivals = []
    assert not held_against(study, "sasrec")
    again = AccuracyStudy.model_validate_json(
        study.model_copy(update={"rivals": [comparison("lime-mha", "sasrec", "rival")]}).model_dump_json()
    )
    assert held_against(again, "sasrec")
    assert {one.role for one in again.comparisons} <= {"baseline", "skyline", "ranker"}
    assert table.rival_rows(again) == [["lime-mha", "sasrec", *["+0.1000", "+0.1000 to +0.1000 *"] * 2]]


def held_against(study: AccuracyStudy, other: str) -> bool:
    """Whether the page's tables of differences have LIME-MHA against it."""
    page = Page("Accuracy")
    fill(page, study)
    return re.search(rf"<td[^>]*>lime-mha</td><td[^>]*>{other}</td>", "".join(page.parts)) is not None
