"""The spectrum study: energies and ranks of known matrices, weights that are the layers' own, controls, resuming."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from limerank.api.run import Run
from limerank.cli import app
from limerank.data.store.dataset import StoredDataset
from limerank.errors import DataError, UsageError
from limerank.models import build_ranker
from limerank.models.hstu import HSTURanker
from limerank.models.lime import LimeRanker
from limerank.nn.layers.stu import STULayer
from limerank.ops.causal_attention import Activation, attend_history
from limerank.progress import Progress
from limerank.report.page import Page
from limerank.study.spectrum import measuring, paper
from limerank.study.spectrum.controls import as_weights, captured, random_basis, random_scores
from limerank.study.spectrum.energy import cumulative_energy, effective_rank, energy_at, rank_for, singular_values
from limerank.study.spectrum.page import fill
from limerank.study.spectrum.pairs import choose_pairs
from limerank.study.spectrum.results import (
    CROSS,
    PERSONALIZED,
    PRODUCT,
    RAW_LINKS,
    SELF,
    TRAINED,
    Spectrum,
    SpectrumStudy,
    curve_indices,
)
from limerank.study.spectrum.study import SpectrumPlan, run_spectrum
from limerank.study.spectrum.weights import RecordedHSTU, link_factors, personalized_links
from limerank.training.run import FinishedRun

PLAN = SpectrumPlan(pairs=3, history=12, candidates=20, links=())


def rotated(values: list[float], rows: int, columns: int) -> Tensor:
    """A matrix with these singular values and no others."""
    generator = torch.Generator().manual_seed(5)
    left, right = (random_basis(n, len(values), generator) for n in (rows, columns))
    return left @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ right.T


def test_energies_of_known_singular_values() -> None:
    """3 and 4 make 7 and 25: the two definitions differ, and both are exact."""
    values = singular_values(rotated([4, 3], 6, 5))
    assert values[:2].tolist() == pytest.approx([4, 3])
    assert energy_at(values, 1, "nuclear").item() == pytest.approx(4 / 7)
    assert energy_at(values, 1, "frobenius").item() == pytest.approx(16 / 25)
    assert energy_at(values, 99, "nuclear").item() == pytest.approx(1)
    assert rank_for(values, 0.6, "frobenius").item() == 1
    assert rank_for(values, 0.6, "nuclear").item() == 2
    ten = torch.ones(10)
    assert rank_for(ten, 0.9, "nuclear").item() == 9, "a sum that reaches the fraction up to rounding has reached it"
    assert cumulative_energy(torch.zeros(3), "nuclear").tolist() == [1, 1, 1]


def test_squares_are_never_behind() -> None:
    values = torch.rand(50, 40, generator=torch.Generator().manual_seed(1)).sort(descending=True).values
    nuclear, frobenius = (cumulative_energy(values, d) for d in ("nuclear", "frobenius"))
    assert (frobenius >= nuclear - 1e-12).all()


def test_effective_rank_of_known_matrices() -> None:
    """k equal values give k, one gives 1, and between them it is between."""
    assert effective_rank(singular_values(torch.eye(7))).item() == pytest.approx(7)
    assert effective_rank(singular_values(torch.ones(4, 9))).item() == pytest.approx(1, abs=1e-6)
    assert effective_rank(torch.tensor([2.0, 2.0, 2.0, 0.0])).item() == pytest.approx(3)
    assert 1 < effective_rank(torch.tensor([3.0, 1.0])).item() < 2


def test_summary_of_spectra() -> None:
    values = torch.stack([torch.ones(100), torch.cat([torch.ones(1), torch.zeros(99)])])
    spectrum = Spectrum.of("made up", SELF, (100, 100), values, [32])
    assert spectrum.energies["nuclear"].at_rank[32].mean == pytest.approx((0.32 + 1) / 2)
    assert spectrum.energies["nuclear"].rank_for_90.high == 90
    assert spectrum.effective_rank.mean == pytest.approx((100 + 1) / 2)
    assert curve_indices(3) == [1, 2, 3]
    indices = curve_indices(1024)
    assert (indices[0], indices[-1]) == (1, 1024)
    assert indices == sorted(set(indices))
    assert len(indices) < 100


@pytest.mark.parametrize("activation", ["silu", "softmax"])
def test_controls_are_of_the_same_kind(activation: Activation) -> None:
    """Masked, divided or normalized as the layers do it; scores of narrow heads have a low rank before that."""
    generator = torch.Generator().manual_seed(0)
    scores = random_scores(30, 30, generator, head_width=4)
    assert (singular_values(scores)[4:] < 1e-9).all()
    weights = as_weights(scores, activation, causal=True)
    assert weights.triu(1).abs().max() == 0
    if activation == "softmax":
        assert weights.sum(-1).allclose(torch.ones(30, dtype=torch.float64))
    else:
        assert weights[7, 3].item() == pytest.approx((scores[7, 3] * scores[7, 3].sigmoid() / 31).item())
    assert (singular_values(weights)[4] > 1e-6).all(), "the activation makes the rank higher"
    full = as_weights(random_scores(20, 30, generator), activation, causal=False)
    assert full.shape == (20, 30)


def test_captured_is_bounded_by_the_svd() -> None:
    """The spans of the singular vectors hold what the singular values say; others hold less, all hold all."""
    generator = torch.Generator().manual_seed(3)
    matrix = torch.randn(24, 30, generator=generator, dtype=torch.float64)
    left, values, right = torch.linalg.svd(matrix)
    bound = energy_at(values, 5, "frobenius").item()
    assert captured(matrix, left[:, :5], right[:5].T) == pytest.approx(bound)
    assert captured(matrix, *(random_basis(n, 5, generator) for n in matrix.shape)) < bound
    assert captured(matrix, torch.eye(24), torch.eye(30)) == pytest.approx(1)
    columns, rows = torch.randn(24, 3, generator=generator), torch.randn(30, 3, generator=generator)
    product = singular_values(columns @ rows.T)[:3]
    assert measuring.product_values(columns, rows).tolist() == pytest.approx(product.tolist(), rel=1e-5)


@pytest.mark.parametrize("activation", ["silu", "softmax"])
def test_weights_are_those_of_the_layers(dataset: StoredDataset, activation: Activation) -> None:
    """Weights times values are what every layer's attention gives, for history and for candidates; nothing changes."""
    torch.manual_seed(2)
    options = {"name": "hstu", "activation": activation, "layers": 3, "query_width": 16}
    ranker = build_ranker(options, dataset.encoders.space(), len(dataset.schema.tasks), "test").double().eval()
    assert isinstance(ranker, HSTURanker)
    pairs = choose_pairs(dataset, 1, 12, 9, seed=0)
    inputs, items = pairs.inputs(0), pairs.items(0)
    offsets, candidate_offsets = inputs.history.offsets, torch.tensor([0, 9])
    weights = RecordedHSTU(ranker).weights(inputs, items)
    assert (weights.own.shape, weights.cross.shape) == ((3, 4, 12, 12), (3, 4, 9, 12))
    assert weights.own.triu(1).abs().max() == 0, "no event reads a later one"
    with torch.no_grad():
        rows, candidates = ranker.history(inputs), ranker.item_tower.candidates(items)
        for number, layer in enumerate(ranker.stack.layers):
            assert isinstance(layer, STULayer)
            _, values, queries, keys = layer.project(rows)
            attended = attend_history(queries, keys, values, offsets, activation)
            again = torch.einsum("hij,jhv->ihv", weights.own[number], values)
            torch.testing.assert_close(again, attended, atol=1e-10, rtol=1e-8)
            gate, own_values, _, _ = layer.project(candidates)
            read = torch.einsum("hcj,jhv->chv", weights.cross[number], values)
            read = read + weights.candidate[number].T[..., None] * own_values
            after = layer.append(candidates, candidate_offsets, (keys, values), offsets)
            torch.testing.assert_close(layer.finish(candidates, read, gate), after, atol=1e-10, rtol=1e-8)
            rows, candidates = layer(rows, offsets)[0], after


def test_links_are_those_of_the_ranker(dataset: StoredDataset, runs: dict[str, Run]) -> None:
    """Both factors are distributions, and L^P is what the user stage reads candidates' values from."""
    pairs = choose_pairs(dataset, 1, 12, 9, seed=0)
    lime = runs["lime-mha"].ranker(dataset)
    assert isinstance(lime, LimeRanker)
    of_items, of_events = link_factors(lime, pairs.inputs(0), pairs.items(0))
    assert (of_items.shape, of_events.shape) == ((4, 9, 32), (4, 32, 12))
    torch.testing.assert_close(of_items.sum(-1), torch.ones(4, 9))
    torch.testing.assert_close(of_events.sum(-1), torch.ones(4, 32))
    with torch.no_grad():
        (values,) = lime.link_values(personalized_links(lime, pairs.inputs(0)))
        expected = lime.encode_user(pairs.inputs(0)).memory[0]
    torch.testing.assert_close(values.transpose(1, 2), expected)


def test_pairs_come_from_long_histories_of_many_users(dataset: StoredDataset) -> None:
    pairs = choose_pairs(dataset, 20, 12, 30, seed=4)
    user = dataset.column("requests/user")[pairs.requests]
    assert pairs.users == len(set(user.tolist())) == 20, "no user twice while there are others"
    assert all(int(pairs.inputs(n).history.offsets[-1]) == 12 for n in range(20))
    assert all(len(set(row.tolist())) == 30 and row.min() >= 1 for row in pairs.candidates)
    again = choose_pairs(dataset, 20, 12, 30, seed=4)
    assert np.array_equal(pairs.requests, again.requests)
    assert np.array_equal(pairs.candidates, again.candidates)
    with pytest.raises(DataError, match=r"4,000 events of history are needed, the longest has \d+; pass a smaller"):
        choose_pairs(dataset, 2, 4000, 30, seed=4)
    with pytest.raises(DataError, match="--candidates 200 or fewer"):
        choose_pairs(dataset, 2, 12, 201, seed=4)


def given_runs(runs: dict[str, Run]) -> list[FinishedRun]:
    return [FinishedRun.open(runs[name].path) for name in ("hstu", "lime-xor", "lime-mha")]


def test_study_of_finished_runs_is_kept_and_goes_on(
    dataset: StoredDataset, runs: dict[str, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs that are given are not trained again, and pairs that are measured are not measured again."""
    progress = Progress(quiet=True)
    study = run_spectrum(dataset.path, given_runs(runs), PLAN, tmp_path, progress)
    assert not (tmp_path / "runs").exists()
    assert len(study.by_head) == 2 * 3 * 4
    assert study.of(TRAINED, CROSS).matrices == 3 * 3 * 4
    assert study.captured is not None
    assert study.captured.random.mean == pytest.approx(1), "32 directions hold all that 12 events have"
    assert study.of("lime-xor", RAW_LINKS).effective_rank.mean > 20, (
        "random links have nearly full rank, and so have these"
    )
    assert study.of("lime-xor", PERSONALIZED).matrices > 20
    monkeypatch.setattr(measuring, "measure_pair", lambda *_: pytest.fail("measured a second time"))
    again = run_spectrum(dataset.path, given_runs(runs), PLAN, tmp_path, progress)
    assert again.spectra == study.spectra
    monkeypatch.undo()
    for damaged in tmp_path.rglob("pair-0002.safetensors"):
        damaged.write_bytes(b"half a file")
    mended = run_spectrum(dataset.path, given_runs(runs), PLAN, tmp_path, progress)
    assert mended.of(TRAINED, SELF).effective_rank.mean == pytest.approx(study.of(TRAINED, SELF).effective_rank.mean)
    with pytest.raises(UsageError, match="at most one run each"):
        run_spectrum(dataset.path, [*given_runs(runs), *given_runs(runs)], PLAN, tmp_path, progress)


def test_rank_is_measured_against_the_number_of_links(
    dataset: StoredDataset, runs: dict[str, Run], tmp_path: Path
) -> None:
    """Rankers with other numbers of links are trained like the runs that were given, and no rank exceeds them."""
    study = run_spectrum(dataset.path, given_runs(runs), replace(PLAN, links=(2, 32)), tmp_path, Progress(quiet=True))
    assert [(one.ranker, one.links) for one in study.by_links] == [
        *(("lime-mha", 2), ("lime-mha", 32), ("lime-xor", 2), ("lime-xor", 32))
    ]
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == [
        *("lime-mha-2-links-seed1", "lime-xor-2-links-seed1")
    ]
    for one in study.by_links:
        assert {own.matrix for own in one.matrices} == {
            RAW_LINKS,
            PERSONALIZED,
            *([PRODUCT] * (one.ranker == "lime-mha")),
        }
        assert all(1 <= own.effective_rank.low <= own.effective_rank.high <= one.links + 1e-9 for own in one.matrices)
        assert all(spread.high <= one.links for own in one.matrices for spread in own.rank_for_90.values())
        assert 0 < (one.ne["click"] or 0) < 2
    few, many = (one.of(PERSONALIZED) for one in study.by_links[2:])
    assert few is not None
    assert many is not None
    assert few.effective_rank.mean < many.effective_rank.mean
    by_pair = study.of("lime-mha", PRODUCT).effective_rank
    again = study.by_links[1].of(PRODUCT)
    assert again is not None
    assert again.effective_rank.mean == pytest.approx(by_pair.mean), "the same ranker, measured by another function"
    page = Page("spectrum")
    fill(page, study)
    assert "Effective rank against l" in page.html()


def test_command_writes_a_page_and_json(runs: dict[str, Run], tmp_path: Path) -> None:
    """JSON that reads back as the result, and a page with both charts, both definitions and the paper's curve."""
    options = [part for name in ("hstu", "lime-xor", "lime-mha") for part in ("--run", str(runs[name].path))]
    sizes = ["--pairs", "2", "--history", "12", "--candidates", "20"]
    said = CliRunner().invoke(app, ["study", "spectrum", *options, *sizes, "--out", str(tmp_path), "--json"])
    assert said.exit_code == 0, said.output
    facts = json.loads(said.stdout)
    study = SpectrumStudy.model_validate_json((tmp_path / "spectrum.json").read_text())
    assert (study.pairs, study.history, facts["pairs"]) == (2, 12, 2)
    page = (tmp_path / "spectrum.html").read_text()
    assert page.count("<figure>") == 2
    assert all(words in page for words in ("σ² at 32", "paper: cross-attention", "random queries and keys"))
    assert not any("trained on shorter" in caveat for caveat in study.caveats)
    assert "it may flatter LIME" in page, "which log it is"


def test_paper_as_drawn() -> None:
    """Erratum 13: about 0.92 and 0.935 at index 32, and curves that end above 1."""
    assert paper.drawn_at(paper.SELF_ATTENTION, 32) == pytest.approx(0.917, abs=0.01)
    assert paper.drawn_at(paper.CROSS_ATTENTION, 32) == pytest.approx(0.934, abs=0.01)
    assert paper.SELF_ATTENTION[-1][1] > 1
    assert paper.drawn_at(paper.CROSS_ATTENTION, 2000) == 1.02
