"""The accuracy study: what its rows are, what a search tries, and who may choose."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from calling import limerank

from limerank.api.run import Run
from limerank.errors import UsageError
from limerank.metrics import Metrics
from limerank.models import RANKERS
from limerank.study.accuracy.gaps import gap_closed, skyline_of
from limerank.study.accuracy.rows import PEERS, TABLE_B, StudyRow, names_of, study_rows
from limerank.study.accuracy.search import chosen, grid, judged, rate_factors
from limerank.study.configuration import StudyConfig
from limerank.training.run import FinishedRun

DATASET = Path("dataset")


def metrics(ne: float | None) -> Metrics:
    return Metrics(auc=0.5, gauc=0.5, ne=ne, logloss=1, rows=1, positive_rate=0.5)


def rows(models: str | None = None, **config: Any) -> list[StudyRow]:
    return study_rows(models, StudyConfig(**config).checked(), DATASET)


def test_gap_closed() -> None:
    assert gap_closed(metrics(1.0), metrics(0.8), metrics(0.8)) == 1
    assert gap_closed(metrics(1.0), metrics(0.8), metrics(1.0)) == 0
    assert gap_closed(metrics(1.0), metrics(1.0), metrics(0.9)) is None
    assert gap_closed(metrics(0.9), metrics(1.0), metrics(1.1)) is None, "a skyline that lost has no gap to close"
    assert gap_closed(metrics(None), metrics(0.8), metrics(0.9)) is None


def test_rankers_of_several_layers_are_measured_against_hstu() -> None:
    """LIME-XOR against HSTU and LIME-MHA against MHA in one study; against MHA where HSTU is not trained."""
    trained = ["ttsn", "mha", "hstu"]
    assert [skyline_of(name, trained) for name in ("lime-xor", "lime-mha", "din")] == ["hstu", "mha", "mha"]
    assert skyline_of("lime-xor", ["ttsn", "mha"]) == "mha"
    assert skyline_of("lime-mha", ["ttsn"]) is None
    assert [skyline_of(name, trained) for name in ("ttsn", "mha", "hstu")] == [None, None, None]


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
        ("preset: kuirand", "key 'preset': unknown value 'kuirand'; did you mean 'kuairand'?"),
        ("variants: {mha: {ranker: mha}}", "variants.mha: is the name of a ranker"),
        ("variants: {a/b: {ranker: mha}}", "variants.a/b: names folders"),
        ("variants: {short: {ranker: maha}}", "variants.short.ranker: no ranker 'maha'; did you mean 'mha'?"),
        ("variants: {short: {ranker: mha, model: {linkz: 3}}}", "variants.short, model 'mha': unknown key 'linkz'"),
    ):
        file.write_text(text)
        with pytest.raises(UsageError) as refused:
            StudyConfig.read(file)
        assert said in str(refused.value)


def test_a_variant_is_its_ranker_with_what_differs() -> None:
    """Nearer wins: variant, ranker, train for all, preset."""
    config = StudyConfig.model_validate(
        {
            "preset": "kuairand",
            "train": {"epochs": 3},
            "rankers": {"lime-xor": {"model": {"layers": 2, "links": 8}, "train": {"weight_decay": 1e-5}}},
            "variants": {"narrow": {"ranker": "lime-xor", "model": {"links": 4}, "train": {"epochs": 7}}},
        }
    ).checked()
    plain, narrow = config.model("lime-xor"), config.model("narrow")
    assert narrow == {**plain, "links": 4}
    assert (plain["width"], plain["layers"], plain["links"]) == (32, 2, 8), "the preset's width, the ranker's own links"
    assert config.training("narrow").epochs == 7
    assert config.training("lime-xor").epochs == 3
    assert config.training("narrow").weight_decay == 1e-5
    assert config.training("mha").learning_rate == 1e-4, "the preset's"
    assert config.says("max_history")
    [row] = study_rows("narrow", config, DATASET)
    assert (row.name, row.ranker) == ("narrow", "lime-xor")


def test_rows_by_name_and_by_group() -> None:
    variants = {"plain": {"ranker": "mha"}}
    assert names_of(rows(variants=variants)) == [*TABLE_B, *PEERS, "plain"]
    assert names_of(rows("paper,mamba,ttsn")) == [*TABLE_B, "mamba"]
    assert set(names_of(rows("all", variants=variants))) == {*RANKERS, "plain"}
    assert len(RANKERS) == 20
    with pytest.raises(UsageError, match="no ranker, variant or group 'lime-xr'; did you mean 'lime-xor'"):
        rows("lime-xr")
    with pytest.raises(UsageError, match="names no ranker"):
        rows(",")


def test_every_row_gets_the_same_trials_and_its_own_configuration_first() -> None:
    """Factors of its own learning rate; a run of the default has the folder that it has without a search."""
    assert rate_factors(1) == [1]
    assert rate_factors(3) == [1, 0.5, 2]
    assert rate_factors(4) == [1, 0.5, 2, 0.25]
    some = rows("ttsn,hstu", rankers={"hstu": {"train": {"learning_rate": 0.01}}})
    found = grid(some, 3, None)
    assert found["ttsn"] == [{}, {"train.learning_rate": 0.0015}, {"train.learning_rate": 0.006}]
    assert found["hstu"] == [{}, {"train.learning_rate": 0.005}, {"train.learning_rate": 0.02}]
    assert some[1].variant({}).name == "hstu"
    assert some[1].variant(found["hstu"][1]).name == "hstu-learning_rate-0.005"
    assert some[1].variant(found["hstu"][1]).train.learning_rate == 0.005


def test_a_variant_in_the_learning_rate_keeps_it_in_a_search() -> None:
    """Searched like the others it would be its ranker again."""
    variants = {"mha-slow": {"ranker": "mha", "train": {"learning_rate": 1e-4}}, "mha-wide": {"ranker": "mha"}}
    found = grid(rows("mha,mha-slow,mha-wide", variants=variants), 3, None)
    assert found["mha-slow"] == [{}]
    assert len(found["mha-wide"]) == len(found["mha"]) == 3


def test_a_mistake_in_the_space_names_the_file(tmp_path: Path) -> None:
    """The space is read when the rows are known; the error still says where it stands."""
    path = tmp_path / "study.yaml"
    path.write_text("space: {train.learning_rat: {choices: [0.001, 0.003]}}")
    config = StudyConfig.read(path).with_train(epochs=1)
    with pytest.raises(UsageError, match=r"study\.yaml.*learning_rat"):
        grid(rows("mha"), 2, config.space, config.where)


def test_a_space_that_is_given_is_a_grid_the_same_for_all() -> None:
    """Keys that a ranker does not have are left out; a smaller grid is tried whole; ranges are refused."""
    space = {"train.learning_rate": {"choices": [1e-3, 3e-3]}, "model.links": {"choices": [4, 8, 16]}}
    some = rows("ttsn,lime-mha", rankers={"lime-mha": {"model": {"links": 8}}})
    found = grid(some, 4, space)
    assert found["ttsn"] == [{}, {"train.learning_rate": 1e-3}]
    assert found["lime-mha"][0] == {}
    assert len(found["lime-mha"]) == 4
    assert all(point and point != {"train.learning_rate": 3e-3, "model.links": 8} for point in found["lime-mha"][1:])
    assert len({json.dumps(point, sort_keys=True) for point in found["lime-mha"]}) == 4
    assert grid(some, 4, space) == found
    assert len(grid(some, 100, space)["lime-mha"]) == 6
    with pytest.raises(UsageError, match=r"a grid needs \{choices"):
        grid(some, 4, {"train.learning_rate": {"low": 1e-3, "high": 1e-2}})


def test_the_least_validation_ne_wins_and_ties_go_to_the_default() -> None:
    assert chosen([0.9, 0.8, 0.85]) == 1
    assert chosen([0.8, 0.8, 0.7999]) == 2
    assert chosen([0.8, 0.8, 0.8]) == 0
    assert chosen([None, 0.9, float("inf")]) == 1
    assert chosen([None, None]) is None
    assert chosen([]) is None


def test_a_trial_with_the_better_test_and_the_worse_validation_is_not_chosen(runs: dict[str, Run]) -> None:
    """What is known of the test part has no say, even where a run folder happens to know it."""
    own = FinishedRun.open(runs["ttsn"].path)

    def trial(validation: float, test: float) -> FinishedRun:
        parts = {
            part: {task: found.model_copy(update={"ne": ne}) for task, found in getattr(own.record, part).items()}
            for part, ne in (("validation", validation), ("test", test))
        }
        return replace(own, record=own.record.model_copy(update=parts))

    parameters: list[dict[str, Any]] = [{}, {"train.learning_rate": 1e-3}, {"train.learning_rate": 1e-2}]
    found = judged(parameters, [trial(0.90, 0.70), trial(0.89, 0.99), None], {2: "loss is not finite"})
    assert found.winner == 1
    assert found.parameters() == {"train.learning_rate": 1e-3}
    assert [one.validation_ne for one in found.trials] == pytest.approx([0.90, 0.89, None])
    assert found.trials[2].failed == "loss is not finite"
    assert "test" not in json.dumps(found.model_dump(mode="json")), "nothing of the test part is written down either"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--models", "nosuch"), "no ranker, variant or group 'nosuch'"),
        (("--task", "like"), "--task like: the dataset has no such task"),
        (("--preset", "kuirand"), "did you mean 'kuairand'?"),
        (("--search", "2", "--found", "other.json"), "leave one of the two out"),
        (("--found", "nosuch.json"), "nosuch.json"),
        (("--search", "2", "--config", "ranges.yaml"), "a grid needs {choices: [...]}, not a range"),
        (("--search", "2", "--config", "nonsense.yaml"), "space 'model.links', value -1"),
        (("--dataset", "nosuch"), "no dataset here"),
    ],
)
def test_mistakes_are_told_before_anything_is_made(options: tuple[str, ...], said: str, tmp_path: Path) -> None:
    """No folder, no log: a name that is wrong costs a second, whatever the size of the dataset."""
    (tmp_path / "ranges.yaml").write_text("space: {train.learning_rate: {low: 0.001, high: 0.01}}\n")
    (tmp_path / "nonsense.yaml").write_text("space: {model.links: {choices: [8, -1]}}\n")
    done = limerank("study", "accuracy", *options, "--out", "out", cwd=tmp_path)
    assert done.returncode in (2, 3), done.stderr
    assert said in " ".join(done.stderr.split())
    assert not (tmp_path / "out").exists()
