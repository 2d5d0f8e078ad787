"""What to train, by file or by name: a name stands for what `limerank models --config` prints; a `--set` is blamed."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from calling import answer, limerank, refusal

from limerank.api.run import Run
from limerank.config import RunConfig, TrainConfig, load_run_config
from limerank.data.store.dataset import StoredDataset
from limerank.errors import UsageError
from limerank.models import RANKERS, check_model
from limerank.models.presets import PRESETS
from limerank.training.configuration import PRESET_RANKER, load_configuration
from limerank.training.configuration_text import render_configuration

NAMES = [*RANKERS, *PRESETS]
SHORT = ("--set", "train.epochs=1", "--set", "train.max_history=5")


def settings(config: RunConfig) -> tuple[object, ...]:
    """All that decides a training, defaults filled in."""
    return (*check_model(config.model, "test"), config.train, config.seed, config.preset)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "c.yaml"
    path.write_text("dataset: d\nmodel: {name: lime-mha}\n")
    return path


@pytest.mark.parametrize("name", NAMES)
def test_what_is_printed_is_what_the_name_stands_for(name: str, tmp_path: Path) -> None:
    path = tmp_path / "printed.yaml"
    path.write_text(render_configuration(name, "x" * 60))  # a long path must not run into its comment
    printed, named = load_configuration(path), load_configuration(name, dataset=Path("d"))
    assert settings(printed) == settings(named)
    assert (printed.dataset, named.dataset) == (tmp_path / ("x" * 60), Path("d"))
    assert named.model["name"] == (name if name in RANKERS else PRESET_RANKER)
    written = yaml.safe_load(path.read_text())
    assert set(written["train"]) == set(TrainConfig.model_fields)
    assert set(written["model"]) == {"name", *RANKERS[named.model["name"]].options_type.model_fields}


def test_a_preset_trains_another_ranker_when_asked() -> None:
    config = load_configuration("kuairand", ["model.name=sim"], Path("d"))
    assert (config.model["name"], config.model["top"], config.train.batch_requests) == ("sim", 16, 1024)


def test_an_option_may_have_the_name_it_had_before(file: Path) -> None:
    """Files and habits of version 0.2.0 say `pool`; what is written says `select_from`, and nothing else changes."""
    file.write_text("dataset: d\nmodel: {name: lime-mha, pool: 48}\n")
    assert load_configuration(file).model == {"name": "lime-mha", "select_from": 48}
    assert load_run_config(file).model["select_from"] == 48
    for override in ("model.pool=64", "model.select_from=64", "model={name: lime-mha, pool: 64}"):
        assert load_configuration(file, [override]).model["select_from"] == 64
    with pytest.raises(UsageError, match="--set model.pool=0: Input should be greater than or equal to 1"):
        load_configuration(file, ["model.pool=0"])
    file.write_text("dataset: d\nmodel: {name: lime-mha, pool: 48, select_from: 48}\n")
    with pytest.raises(UsageError, match="unknown key 'pool'"):
        load_configuration(file)


def test_a_ranker_is_trained_by_its_name(dataset: StoredDataset, tmp_path: Path) -> None:
    trained = answer("train", "ttsn", "--dataset", dataset.path, *SHORT, "--out", tmp_path / "run")
    assert (trained["model"], trained["epochs"]) == ("ttsn", 1)
    assert Run.open(tmp_path / "run").dataset().fingerprint == dataset.fingerprint
    done = limerank("train", "taobao-ad", "--dataset", dataset.path, *SHORT, "--out", tmp_path / "preset")
    assert "preset taobao-ad: the paper's values, except train.epochs 1 (paper: 10)" in done.stderr


def test_the_printed_file_trains_as_the_name_does(dataset: StoredDataset, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(limerank("models", "--config", "lime-mha", "--dataset", dataset.path).stdout)
    by_file = answer("train", file, *SHORT, "--out", tmp_path / "a")
    by_name = answer("train", "lime-mha", "--dataset", dataset.path, *SHORT, "--out", tmp_path / "b")
    assert by_file["test"] == by_name["test"]
    assert answer("models", "--config", "sim")["yaml"] == render_configuration("sim")


def test_a_file_wins_over_a_name_and_a_folder_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mha").mkdir()
    assert load_configuration("mha", dataset=Path("d")).model == {"name": "mha"}
    Path("ttsn").write_text("dataset: d\nmodel: {name: sim}\n")
    assert load_configuration("ttsn").model == {"name": "sim"}


def test_a_dataset_is_relative_to_the_file_or_to_the_current_folder(file: Path) -> None:
    assert load_configuration(file).dataset == file.parent / "d"
    assert load_configuration(file, dataset=Path("e")).dataset == Path("e")
    assert load_configuration(file, ["dataset=e/../f"]).dataset == Path("f")
    with pytest.raises(UsageError, match="--dataset e: --set names a dataset too"):
        load_configuration(file, ["dataset=f"], Path("e"))
    for asked in ("lime-mha", file):
        file.write_text("model: {name: mha}\n")
        with pytest.raises(UsageError, match=f"{asked}: key 'dataset' is missing; pass --dataset DATASET"):
            load_configuration(asked)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("lime-mah", "lime-mah: neither a file nor the name of a ranker or preset; did you mean 'lime-mha'?"),
        ("kuairnd", "did you mean 'kuairand'?"),
        ("xyz", "rankers: ttsn, inttower"),
        ("xyz", "presets: kuairand, taobao-ad, industrial"),
        ("examples/mha.yaml", "examples/mha.yaml: no such file; train by name (limerank train mha --dataset"),
        ("mine.yaml", "or write the file: limerank models --config lime-mha > mine.yaml"),
    ],
)
def test_a_name_that_is_nothing_says_what_it_could_be(asked: str, said: str, tmp_path: Path) -> None:
    assert said in refusal(2, "train", asked, "--out", tmp_path / "run")


def test_a_description_of_a_log_is_no_run_configuration_nor_the_reverse(file: Path, tmp_path: Path) -> None:
    text = "tables: {events: log.csv}\nuser_id: u\nfeatures: [{name: a, role: item}]\ntasks: [{name: click}]\n"
    description = tmp_path / "log.yaml"
    description.write_text(text)
    said = refusal(2, "train", description, "--out", tmp_path / "run")
    assert f"{description}: describes a log, not what to train; prepare it first: limerank prepare table --raw" in said
    said = refusal(2, "prepare", "table", "--raw", file, "--out", tmp_path / "d")
    assert f"{file}: says what to train, it describes no log; limerank init --from LOG drafts a description" in said


def test_a_folder_says_what_it_is_good_for(dataset: StoredDataset, runs: dict[str, Run], tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "dataset.yaml").write_text("tasks: []\n")
    for folder, said in (
        (dataset.path, f"a dataset: limerank train lime-mha --dataset {dataset.path} --out RUN"),
        (runs["ttsn"].path, f"a run: its configuration is {runs['ttsn'].path / 'config.yaml'}"),
        (tmp_path / "raw", f"prepare it first: limerank prepare table --raw {tmp_path / 'raw'}"),
        (tmp_path, "name a file, a ranker or a preset"),
    ):
        assert f"{folder}: is a folder, not what to train; {said}" in refusal(2, "train", folder, "--out", "run")


def test_overrides_are_typed(file: Path) -> None:
    config = load_configuration(file, ["train.epochs=7", "model.heads=2", "seed=9", "train={patience: 3}"])
    assert (config.train.epochs, config.model["heads"], config.seed, config.train.patience) == (3, 2, 9, 3)
    config = load_configuration(file, ["model.width=30", "model.heads=5", "model.query_width=null"])
    assert (config.model["width"], config.model["heads"]) == (30, 5)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("epochs=1", "unknown key 'epochs'; did you mean 'train.epochs'?"),
        ("links=8", "unknown key 'links'; did you mean 'model.links'?"),
        ("link=8", "unknown key 'link'; did you mean 'model.links'?"),
        ("name=ttsn", "unknown key 'name'; did you mean 'model.name'?"),
        ("model.epochs=1", "unknown key 'model.epochs'; did you mean 'train.epochs'?"),
        ("train.epoch=1", "unknown key 'train.epoch'; did you mean 'train.epochs'?"),
        ("train={epoch: 1}", "unknown key 'train.epoch'; did you mean 'train.epochs'?"),
        (
            "optimizer.momentum=1",
            "unknown key 'optimizer.momentum'; known: dataset, distributed, model, preset, seed, train",
        ),
        ("train.epochs=many", "Input should be a valid integer"),
        ("train.epochs=0", "Input should be greater than or equal to 1 (got 0)"),
        ("train.epochs=[", "'[' is not valid YAML"),
        ("train.epochs", "must look like key=value, for example train.epochs=5"),
        ("model.head=[0]", "key 'head.0': Input should be greater than 0"),
        ("model.context=during", "unknown value 'during'"),
        ("model.name=ttsm", "no ranker 'ttsm'; did you mean 'ttsn'?"),
        ("model.name=[ttsn]", "no ranker '['ttsn']'"),
        ("preset=kuairnd", "no preset 'kuairnd'; did you mean 'kuairand'?"),
        ("train=3", "'train' is a section; set one of its keys, such as train.epochs"),
        ("seed=-1", "Input should be greater than or equal to 0"),
        ("dataset.x=1", "'dataset' is not a section"),
    ],
)
def test_a_mistake_in_an_override_names_the_override_and_not_the_file(override: str, said: str, file: Path) -> None:
    with pytest.raises(UsageError) as refused:
        load_configuration(file, [override])
    assert str(refused.value).startswith(f"--set {override}: {said}")


def test_a_key_that_only_another_ranker_has_is_not_suggested(file: Path) -> None:
    file.write_text("dataset: d\nmodel: {name: ttsn}\n")
    with pytest.raises(UsageError, match="unknown key 'links'; known: dataset, distributed, model"):
        load_configuration(file, ["links=8"])


def test_values_that_do_not_fit_together_name_file_and_override(file: Path) -> None:
    with pytest.raises(UsageError, match=rf"{file} with --set model.heads=3, model 'lime-mha': width 32 cannot be"):
        load_configuration(file, ["model.heads=3", "train.epochs=2"])
    file.write_text("dataset: d\nmodel: {name: lime-mha, heads: 3}\n")
    with pytest.raises(UsageError, match=rf"^{file}, model 'lime-mha': width 32 cannot be"):
        load_configuration(file, ["train.epochs=2"])


def test_a_run_shows_its_dataset_the_short_way(
    dataset: StoredDataset, runs: dict[str, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not as runs/x/../../datasets/y."""
    monkeypatch.chdir(tmp_path)
    Path("datasets").mkdir()
    Path("datasets/y").symlink_to(dataset.path)
    answer("train", "ttsn", "--dataset", "datasets/y", *SHORT, "--out", "runs/x")
    assert yaml.safe_load(Path("runs/x/config.yaml").read_text())["dataset"] == "../../datasets/y"
    assert Run.open(Path("runs/x")).config.dataset == Path("datasets/y")
    Path("datasets/y").unlink()
    assert refusal(3, "evaluate", "runs/x").startswith("error: datasets/y: no dataset here")


def test_runs_may_be_on_another_disk(dataset: StoredDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`runs` is a link: the way up from a run's real place does not lead to the dataset, the way it was given does."""
    disk, home = tmp_path / "disk" / "deep" / "runs", tmp_path / "home"
    disk.mkdir(parents=True)
    home.mkdir()
    monkeypatch.chdir(home)
    Path("runs").symlink_to(disk)
    Path("data").symlink_to(dataset.path)
    answer("train", "ttsn", "--dataset", "data", *SHORT, "--out", "runs/x")
    assert Run.open(Path("runs/x")).dataset().fingerprint == dataset.fingerprint
