"""The scaling study: fits that recover what was put in, changes by seed, gaps by links, and runs that are kept."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from calling import refusal
from typer.testing import CliRunner

from limerank.cli import app
from limerank.cli.study.scaling import tables
from limerank.data.sources.simulated import SimulatedConfig
from limerank.data.store.dataset import StoredDataset
from limerank.errors import ArgumentError, DataError, UsageError
from limerank.progress import Progress
from limerank.report.page import Page
from limerank.study import trainings
from limerank.study.results import Made
from limerank.study.scaling import paper
from limerank.study.scaling.fit import fit_logarithms
from limerank.study.scaling.grid import check_histories, fits_of, grid_variants
from limerank.study.scaling.interests import gaps_of, interest_variants
from limerank.study.scaling.page import fill
from limerank.study.scaling.results import Cell, InterestCell, ScalingStudy, said
from limerank.study.scaling.study import ScalingPlan, run_scaling
from limerank.study.simulated_log import simulated_dataset
from limerank.training.parallel import Job, train_all
from limerank.training.run import FinishedRun

MADE = Made(
    command="limerank study scaling",
    quick=True,
    seeds=[1, 2],
    versions={},
    revision=None,
    machine={},
    started="2026-01-01T00:00:00+00:00",
    seconds=1,
)


def cell(history: int, links: int, seed: int, ne: float, *, layers: int = 3, model: str = "lime-xor") -> Cell:
    return Cell(
        model=model,
        history=history,
        links=links,
        layers=layers,
        seed=seed,
        ne=ne,
        auc=1 - ne / 2,
        validation_ne=ne,
        parameters=1,
        train_seconds=1,
    )


def made_up(interaction: float = 0.0) -> list[Cell]:
    """NE = 1 - 0.01 log2(l) - 0.02 log2(N), seeds 0.001 apart; with 6 layers 0.05 less."""
    cells = [
        cell(n, links, seed, 1 - 0.01 * a - 0.02 * b - interaction * (a - 4) * (b - 6) + 0.001 * seed)
        for seed in (1, 2)
        for b, n in ((5, 32), (6, 64), (7, 128))
        for a, links in ((3, 8), (4, 16), (5, 32))
    ]
    largest = [one for one in cells if (one.history, one.links) == (128, 32)]
    return cells + [one.model_copy(update={"ne": one.ne - 0.05, "layers": 6}) for one in largest]


def test_fit_recovers_constructed_coefficients() -> None:
    """Exactly without noise; within its errors with noise; and the product only where there is one."""
    plain, product, deep = fits_of(made_up(), "lime-xor")
    assert plain.of("log2(l)").value == pytest.approx(-0.01)
    assert plain.of("log2(N)").value == pytest.approx(-0.02)
    assert plain.r_squared == pytest.approx(1, abs=0.01)
    assert product.of("log2(l) * log2(N)").value == pytest.approx(0, abs=1e-9)
    assert deep.of("log2(n)").value == pytest.approx(-0.05)
    _, product, _ = fits_of(made_up(interaction=0.004), "lime-xor")
    assert product.of("log2(l) * log2(N)").value == pytest.approx(-0.004)
    generator = np.random.default_rng(0)
    sizes = generator.choice([8, 16, 32, 64], 400)
    noisy = fit_logarithms({"l": sizes.tolist()}, (0.5 + 0.1 * np.log2(sizes) + generator.normal(0, 0.2, 400)).tolist())
    slope = noisy.of("log2(l)")
    assert slope.error is not None
    assert abs(slope.value - 0.1) < 4 * slope.error
    assert noisy.residual_sd == pytest.approx(0.2, rel=0.15)
    assert noisy.formula == "NE = a + b log2(l)"


def test_fit_refuses_what_it_cannot_tell() -> None:
    with pytest.raises(ArgumentError, match="needs more different sizes"):
        fit_logarithms({"l": [8, 8, 8]}, [1, 2, 3])
    exact = fit_logarithms({"l": [8, 16]}, [1, 2])
    assert exact.of("log2(l)").error is None, "nothing is left over to tell an error from"
    assert fit_logarithms({"l": [8, 16, 32]}, [1, 1, 1]).r_squared is None


def study_of(cells: list[Cell], interests: list[InterestCell]) -> ScalingStudy:
    return ScalingStudy(
        made=MADE,
        task="click",
        dataset="made up",
        data_fingerprint="0",
        cells=cells,
        fits={"lime-xor": fits_of(cells, "lime-xor")},
        interests=interests,
        gaps=gaps_of(interests),
    )


def test_changes_are_against_the_smallest_cell_of_the_same_seed() -> None:
    study = study_of(made_up(), [])
    grid = study.grid("lime-xor")
    assert next(iter(grid)) == (32, 8)
    assert grid[32, 8].ne == grid[32, 8].auc == [0, 0]
    base, last = [1 - 0.03 - 0.1 + 0.001 * s for s in (1, 2)], [1 - 0.05 - 0.14 + 0.001 * s for s in (1, 2)]
    assert grid[128, 32].ne == pytest.approx([100 * (b / a - 1) for a, b in zip(base, last, strict=True)])
    assert all(value > 0 for value in grid[128, 32].auc)
    depths = study.depths("lime-xor")
    assert list(depths) == [3, 6]
    assert study.depths_at("lime-xor") == (128, 32)
    assert depths[3].ne == [0, 0]
    assert max(depths[6].ne) < -5
    assert said([1.0, 3.0]) == "+2.00 ± 1.41"


def interest_cells() -> list[InterestCell]:
    """TTSN at 1, MHA at 0.8; LIME-MHA closes 60 %, 96 % and 98 % with 16 topics, less with 48."""
    closed = {16: {8: 0.6, 16: 0.96, 32: 0.98}, 48: {8: 0.2, 16: 0.5, 32: 0.9}}
    return [
        one
        for topics, by_links in closed.items()
        for seed, skyline in ((1, 0.8), (2, 0.8))
        for one in (
            InterestCell(topics=topics, model="ttsn", links=None, seed=seed, ne=1, auc=0.5),
            InterestCell(topics=topics, model="mha", links=None, seed=seed, ne=skyline, auc=0.6),
            *(
                InterestCell(topics=topics, model="lime-mha", links=links, seed=seed, ne=1 - 0.2 * part, auc=0.6)
                for links, part in by_links.items()
            ),
        )
    ]


def test_links_that_interests_need() -> None:
    """The smallest number that closes 95 %, or none."""
    study = study_of(made_up(), interest_cells())
    gaps = {(gap.topics, gap.links): gap for gap in study.gaps}
    assert gaps[16, 8].closed == pytest.approx([0.6, 0.6])
    assert gaps[16, 8].of_means == pytest.approx(0.6)
    assert gaps[16, 8].skyline == "mha"
    assert study.links_needed("lime-mha", 16) == 16
    assert study.links_needed("lime-mha", 48) is None
    page = Page("test")
    fill(page, study)
    html = page.html()
    assert "more than 32" in html
    assert html.count("<figure>") == 2 + 1
    assert "VC NE change %" in html
    assert "-0.55" in html


def cells_of(skylines: dict[int, float], closed: dict[int, float]) -> list[InterestCell]:
    """TTSN at 1, skylines by seed, and what LIME-MHA takes off in every seed, by links."""
    return [
        InterestCell(topics=16, model=model, links=links, seed=seed, ne=ne, auc=0.5)
        for seed, skyline in skylines.items()
        for model, links, ne in (
            ("ttsn", None, 1.0),
            ("mha", None, skyline),
            *(("lime-mha", links, 1 - off) for links, off in closed.items()),
        )
    ]


def test_one_seed_with_hardly_a_gap_decides_nothing() -> None:
    """A tenth of the gap is closed in seed 1; seed 2 has a gap of 0.001, and of its 20 times that the mean was 10."""
    (gap,) = gaps_of(cells_of({1: 0.8, 2: 0.999}, {8: 0.02}))
    assert gap.closed == pytest.approx([0.1, 20])
    assert gap.of_means == pytest.approx(0.04 / 0.201)
    (lost,) = gaps_of(cells_of({1: 0.8, 2: 1.1}, {8: 0.02}))
    assert lost.closed == pytest.approx([0.1]), "a seed whose skyline lost has no gap to close"
    assert lost.of_means == pytest.approx(0.4), "but it counts"
    assert gaps_of(cells_of({1: 0.8, 2: 1.3}, {8: 0.02}))[0].of_means is None


def test_the_terminal_has_the_fraction_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    """Of means: 0.199, where the mean of fractions by seed is 10."""
    tables(study_of([], cells_of({1: 0.8, 2: 0.999}, {8: 0.02})))
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "lime-mha" in line)
    assert line.split()[-1] == "0.199"
    tables(study_of([], cells_of({1: 0.8, 2: 1.3}, {8: 0.02})))
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "lime-mha" in line)
    assert line.split()[-1] == "-", "no gap"


def test_links_are_enough_only_if_more_are_too() -> None:
    study = study_of(made_up(), cells_of({1: 0.8}, {8: 0.195, 16: 0.15, 32: 0.192, 64: 0.2}))
    assert study.links_needed("lime-mha", 16) == 32


def test_variants_and_their_number() -> None:
    """The usual depth is a cell of the grid and trained once; the plan counts what it trains."""
    variants = grid_variants((32, 64), (8, 16), (1, 3, 6), {"epochs": 2})
    names = [variant.name for variant in variants]
    assert len(set(names)) == len(names) == 2 * 2 * 2 + 2
    assert "lime-xor-n64-l16-layers6" in names
    assert all(variant.train.epochs == 2 for variant in variants)
    assert {variant.train.max_history for variant in variants} == {32, 64}
    deep = [variant.name for variant in interest_variants(("lime-mha", "lime-xor"), (8,), variants[0].train)]
    assert deep == ["ttsn", "mha", "hstu", "lime-mha-l8", "lime-xor-l8"]
    plan = ScalingPlan()
    assert plan.trainings() == plan.trainings("grid") + plan.trainings("interests") == 159


def test_paper_tables() -> None:
    """Erratum 20: changes only, so the smallest cell is zero."""
    assert paper.NE_CHANGES[1000][0] == paper.AUC_CHANGES[1000][0] == 0
    assert all(len(row) == len(paper.LINKS) for row in (*paper.NE_CHANGES.values(), *paper.AUC_CHANGES.values()))
    assert min(map(min, paper.NE_CHANGES.values())) == -0.55
    assert list(paper.LAYER_CHANGES) == [3, 6, 9, 12]


def test_simulated_dataset_is_kept_or_refused(tmp_path: Path) -> None:
    small = SimulatedConfig(users=5, items=20, topics=2, sessions=4, slots=3)
    path = simulated_dataset(small, tmp_path / "dataset")
    assert simulated_dataset(small, tmp_path / "dataset") == path
    with pytest.raises(UsageError, match="holds another log"):
        simulated_dataset(small.model_copy(update={"topics": 3}), tmp_path / "dataset")


def test_command_runs_and_keeps_what_is_finished(
    dataset: StoredDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One grid of a single cell beside another depth, through the command; a second time nothing is trained."""
    options = ["--quick", "--only", "grid", "--dataset", str(dataset.path), "--history", "8", "--links", "4"]
    asked = ["study", "scaling", *options, "--layers", "1,3", "--threads", "1", "--out", str(tmp_path), "--json"]
    said = CliRunner().invoke(app, asked)
    assert said.exit_code == 0, said.output
    facts = json.loads(said.stdout)
    assert len(facts["cells"]) == 3
    study = ScalingStudy.model_validate_json((tmp_path / "quick" / "scaling.json").read_text())
    assert study.made.quick
    assert list(study.depths("lime-xor")) == [1, 3]
    assert "<h2>The paper&#x27;s tables</h2>" in (tmp_path / "quick" / "scaling.html").read_text()
    monkeypatch.setattr(trainings, "train_all", lambda *_: pytest.fail("trained again"))
    plan = ScalingPlan(histories=(8,), links=(4,), layers=(1, 3), seeds=(1,), epochs=1)
    again = run_scaling(dataset.path, plan, tmp_path / "quick", Progress(quiet=True), only="grid", workers=1)
    assert again.cells == study.cells


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ("--only", "interests", "--dataset", "datasets/easy"),
            "draws logs of its own and has no use for --dataset",
        ),
        (("--only", "interests", "--history", "8"), "--only interests: --history is of the other half, grid"),
        (("--only", "interests", "--layers", "1"), "--only interests: --layers is of the other half, grid"),
        (("--only", "grid", "--topics", "8"), "--only grid: --topics is of the other half, interests"),
        (("--only", "grid", "--deep"), "--only grid: --deep is of the other half, interests"),
    ],
)
def test_options_of_the_half_that_is_left_out_are_refused(options: tuple[str, ...], said: str, tmp_path: Path) -> None:
    told = refusal(2, "study", "scaling", "--quick", *options, "--out", tmp_path / "out")
    assert said in " ".join(told.split())
    assert not (tmp_path / "out").exists()


def test_histories_that_nobody_has_are_refused(dataset: StoredDataset, tmp_path: Path) -> None:
    """A cell of 5,000 events would be that of the longest under another name; spectrum refuses it, too."""
    sizes = ("--only", "grid", "--dataset", dataset.path, "--history", "5,5000", "--out", tmp_path)
    told = " ".join(refusal(2, "study", "scaling", "--quick", *sizes).split())
    found = re.search(r"--history 5000: the longest history of \S+ has (\d+) events; pass smaller lengths", told)
    assert found is not None
    check_histories(dataset, (5, int(found[1])))
    with pytest.raises(UsageError, match="the longest history of"):
        check_histories(dataset, (5, int(found[1]) + 1))


def test_a_training_that_is_not_finite_ends_no_grid(
    dataset: StoredDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written down and told, and what is left of its cell and of others is compared by seed."""
    monkeypatch.setattr(trainings, "train_all", without({"lime-xor-n8-l4-seed2", "lime-xor-n8-l8-seed1"}))
    plan = ScalingPlan(histories=(4, 8), links=(4, 8), layers=(3,), seeds=(1, 2), epochs=1)
    study = run_scaling(dataset.path, plan, tmp_path, Progress(quiet=True), only="grid", workers=1)
    assert {(one.row, one.seed) for one in study.failures} == {("lime-xor-n8-l4", 2), ("lime-xor-n8-l8", 1)}
    assert len(study.cells) == 2 * 2 * 2 * 2 - 2
    assert {at: len(change.ne) for at, change in study.grid("lime-xor").items()} == {
        (4, 4): 2, (4, 8): 2, (8, 4): 1, (8, 8): 1,
    }  # fmt: skip
    assert "lime-xor-n8-l4 from seed 2 could not be finished: it is not finite." in study.caveats
    page = Page("test")
    fill(page, study)
    monkeypatch.setattr(trainings, "train_all", without({""}))
    with pytest.raises(DataError, match="no training was finished; the first: it is not finite"):
        run_scaling(dataset.path, plan, tmp_path / "none", Progress(quiet=True), only="grid", workers=1)


def without(names: set[str]) -> Callable[..., list[FinishedRun]]:
    """`train_all` in which trainings whose folders are named so, or all for an empty name, cannot be finished."""

    def train_some(jobs: list[Job], progress: Progress, *others: Any) -> list[FinishedRun]:
        lost = [job for job in jobs if job.out.name in names or "" in names]
        for job in lost:
            others[-1](job, DataError("it is not finite"))
        left = [job for job in jobs if job not in lost]
        return train_all(left, progress, *others) if left else []

    return train_some


def test_seeds_that_are_missing_close_no_gap() -> None:
    """Of a topic whose baseline failed in one seed the other seed is left; without any, there is no gap."""
    cells = cells_of({1: 0.8, 2: 0.9}, {8: 0.05, 16: 0.1})
    (few, many) = gaps_of([one for one in cells if (one.model, one.seed) != ("ttsn", 2)])
    assert few.closed == pytest.approx([0.25])
    assert many.closed == pytest.approx([0.5])
    assert few.of_means == pytest.approx(0.25)
    assert gaps_of([one for one in cells if one.model != "mha"]) == []
    assert [gap.links for gap in gaps_of([one for one in cells if one.links != 8])] == [16]
