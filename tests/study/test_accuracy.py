"""The accuracy study: gaps and verdicts, configurations of single rankers, and runs that are kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from limerank.data.store.dataset import StoredDataset
from limerank.errors import UsageError
from limerank.metrics import Metrics
from limerank.progress import Progress
from limerank.study.accuracy import AccuracyStudy, SeedResult, _gaps, gap_closed, run_accuracy, skyline_of
from limerank.study.configuration import StudyConfig


def test_gap_closed() -> None:
    def metrics(ne: float | None) -> Metrics:
        return Metrics(auc=0.5, gauc=0.5, ne=ne, logloss=1, rows=1, positive_rate=0.5)

    assert gap_closed(metrics(1.0), metrics(0.8), metrics(0.8)) == 1
    assert gap_closed(metrics(1.0), metrics(0.8), metrics(1.0)) == 0
    assert gap_closed(metrics(1.0), metrics(1.0), metrics(0.9)) is None
    assert gap_closed(metrics(0.9), metrics(1.0), metrics(1.1)) is None, "a skyline that lost has no gap to close"
    assert gap_closed(metrics(None), metrics(0.8), metrics(0.9)) is None


def result(model: str, seed: int, ne: float) -> SeedResult:
    test = Metrics(auc=0.5, gauc=0.5, ne=ne, logloss=1, rows=1, positive_rate=0.5)
    return SeedResult(model=model, seed=seed, test=test, seconds=1)


def test_verdicts() -> None:
    results = [result(m, s, ne) for s in (1, 2) for m, ne in (("ttsn", 1.0), ("mha", 0.8))]
    for second, beats in ((0.82, True), (1.01, False)):
        mine = [*results, result("lime-mha", 1, 0.82), result("lime-mha", 2, second)]
        study = AccuracyStudy(task="click", results=mine, oracle=None, gap_closed=_gaps(mine))
        verdict = study.verdicts()["lime-mha"]
        assert verdict.beats_baseline_in_every_seed is beats
        assert verdict.mean_gap_closed == pytest.approx((0.9 + (1 - second) / 0.2) / 2)
        assert study.skyline_lost() == []
    lost = [result("ttsn", 3, 0.9), result("mha", 3, 1.0), result("lime-mha", 3, 1.1)]
    study = AccuracyStudy(task="click", results=lost, oracle=None, gap_closed=_gaps(lost))
    assert study.skyline_lost() == [3]
    assert study.verdicts() == {}


def test_rankers_of_several_layers_are_measured_against_hstu() -> None:
    """LIME-XOR against HSTU and LIME-MHA against MHA in one study; against MHA where HSTU is not trained."""
    results = [
        result(m, 1, ne) for m, ne in (("ttsn", 1.0), ("mha", 0.8), ("hstu", 0.6), ("lime-mha", 0.9), ("lime-xor", 0.7))
    ]
    assert {name: fractions[0] for name, fractions in _gaps(results).items()} == pytest.approx(
        {"hstu": 2.0, "lime-mha": 0.5, "lime-xor": 0.75}
    )
    study = AccuracyStudy(task="click", results=results, oracle=None, gap_closed=_gaps(results))
    assert "75.0% of the gap ttsn -> hstu" in study.verdicts()["lime-xor"].text()
    assert "50.0% of the gap ttsn -> mha" in study.verdicts()["lime-mha"].text()
    assert skyline_of("lime-xor", ["ttsn", "mha", "lime-xor"]) == "mha"


def test_configuration_of_single_rankers(tmp_path: Path) -> None:
    """What all have, what one has for itself, and defaults; mistakes name file, ranker and key."""
    file = tmp_path / "study.yaml"
    file.write_text("train: {epochs: 4}\nrankers:\n  lime-xor: {model: {sharpness: 2}, train: {learning_rate: 0.01}}\n")
    config = StudyConfig.read(file)
    assert config.model("lime-xor") == {"name": "lime-xor", "sharpness": 2}
    assert (config.training("lime-xor").learning_rate, config.training("lime-xor").epochs) == (0.01, 4)
    assert (config.model("mha"), config.training("mha").epochs) == ({"name": "mha"}, 4)
    assert config.with_train(epochs=1).training("lime-xor").epochs == 1
    for text, said in (
        ("rankers: {lime-xr: {}}", "no ranker 'lime-xr'; did you mean 'lime-xor'?"),
        ("rankers: {mha: {model: {linkz: 3}}}", "unknown key 'linkz'"),
        ("rankers: {mha: {train: {epoch: 3}}}", "rankers.mha.train: unknown key 'epoch'; did you mean 'epochs'?"),
        ("train: {epoch: 3}", "study.yaml, train: unknown key 'epoch'"),
        ("ranker: {}", "unknown key 'ranker'"),
    ):
        file.write_text(text)
        with pytest.raises(UsageError) as refused:
            StudyConfig.read(file)
        assert said in str(refused.value)


def test_finished_runs_are_kept(dataset: StoredDataset, tmp_path: Path) -> None:
    """The same study again trains nothing and finds the same; another configuration is refused."""
    config = StudyConfig(train={"epochs": 1, "max_history": 5})

    def study(config: StudyConfig) -> AccuracyStudy:
        return run_accuracy(dataset.path, ["ttsn"], [1], config, tmp_path, Progress(quiet=True), workers=1)

    first = study(config)
    written = (tmp_path / "ttsn-seed1" / "run.json").stat().st_mtime_ns
    assert study(config) == first
    assert (tmp_path / "ttsn-seed1" / "run.json").stat().st_mtime_ns == written
    with pytest.raises(UsageError, match="ttsn-seed1: was trained otherwise or on other data; pass another --out"):
        study(config.with_train(epochs=2))
    assert first.origin is not None
    assert first.origin.data_fingerprint == dataset.fingerprint
    assert first.origin.rankers["ttsn"].train["max_history"] == 5
    assert first.origin.rankers["ttsn"].model["tower_shortcut"] is True
    assert first.results[0].validation is not None
    assert AccuracyStudy.model_validate(json.loads(first.model_dump_json())) == first
