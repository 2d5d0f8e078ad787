"""Every file of docs/results can be made again, by a command that is written down, and is what that command made."""

from __future__ import annotations

import importlib.util
import json
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from limerank.models import complete_model
from limerank.study.configuration import StudyConfig

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs/results"
RESULTS = sorted(FOLDER.rglob("*.json"))


def loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmarks_results", ROOT / "benchmarks/results.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


MAKING = loaded()
STUDIES = [path for path in RESULTS if "made" in json.loads(path.read_text())]


def test_every_result_has_a_command_that_makes_it() -> None:
    assert {path.relative_to(FOLDER).with_suffix("").as_posix() for path in RESULTS} <= set(MAKING.MADE)


def test_what_no_command_of_today_makes_is_in_a_folder_of_its_own() -> None:
    """But for what another machine measured, by the same command."""
    elsewhere = {name for name, made in MAKING.MADE.items() if isinstance(made, MAKING.Elsewhere)}
    earlier = {f"earlier/{path.stem}" for path in (FOLDER / "earlier").glob("*.json")}
    assert elsewhere == {*earlier, "latency-second-machine"}
    assert earlier == {f"earlier/accuracy-{name}" for name in MAKING.EARLIER}
    told = (FOLDER / "earlier/README.md").read_text()
    assert all(
        path.stem.removesuffix("-shortcut").removesuffix("-no") in told for path in FOLDER.glob("earlier/*.json")
    )


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_a_study_was_made_by_that_command(path: Path) -> None:
    """Not in its quick mode, on a commit without changes, and without a path of the machine in it."""
    study = json.loads(path.read_text())
    wanted = plain(MAKING.command_of(path.stem))
    if path.stem == "ablation" and study.get("found") is None:
        wanted = without(wanted, "--found")  # as it was before the group linear took a search
    asked = plain(study["made"]["command"])
    assert (without(asked, "--groups", "--keep") if study.get("kept") else asked) == wanted
    for kept in study.get("kept", ()):
        assert without(plain(kept["made"]["command"]), "--found") == without(wanted, "--found")
    for made in (study["made"], *(kept["made"] for kept in study.get("kept", ()))):
        assert not made["quick"]
        assert made["revision"]
        assert "changed" not in made["revision"]


def without(words: list[str], *options: str) -> list[str]:
    """A command without some options and their values: those that say which part of a result is made."""
    return [word for at, word in enumerate(words) if word not in options and not (at and words[at - 1] in options)]


def plain(command: str) -> list[str]:
    """What a command makes: neither what it prints nor whether it began anew."""
    return [word for word in shlex.split(command) if word not in ("--json", "--overwrite")]


def test_times_are_measured_anew_and_trainings_go_on() -> None:
    """Points of another commit are refused, so that `make results` would stop after any; trainings take hours."""
    studies = {name: made for name, made in MAKING.MADE.items() if isinstance(made, MAKING.Study)}
    anew = {name for name, made in studies.items() if "--overwrite" in made.arguments(name)}
    assert anew == {"latency", "complexity"}
    assert len(studies) > len(anew)
    assert all(MAKING.command_of(name).endswith("--overwrite") for name in anew), "what is shown is what runs"


def test_times_that_were_stopped_go_on_at_the_same_commit(few: Path) -> None:
    """As the command says when it is interrupted; behind another commit, or finished, they begin anew."""
    study = MAKING.MADE["accuracy-ml-100k"]
    times = MAKING.Study("study latency", anew=True)
    first, second = "1" * 40, "2" * 40
    assert MAKING.beginning("latency", times, first)[-1] == "--overwrite"
    assert "--overwrite" not in MAKING.beginning("latency", times, first)
    assert MAKING.beginning("latency", times, second)[-1] == "--overwrite"
    assert "--overwrite" not in MAKING.beginning("latency", times, second)
    assert MAKING.beginning("latency", times, None)[-1] == "--overwrite", "of a changed checkout nobody knows"
    MAKING.begun("latency").unlink()
    assert MAKING.beginning("latency", times, second)[-1] == "--overwrite"
    assert MAKING.beginning("accuracy-ml-100k", study, first) == study.arguments("accuracy-ml-100k")


def test_the_list_names_every_command() -> None:
    """`--list` needs nothing and makes nothing."""
    listed = subprocess.run(
        [sys.executable, ROOT / "benchmarks/results.py", "--list"], capture_output=True, text=True, check=True
    )
    assert [line.partition(":")[0] for line in listed.stdout.splitlines()] == list(MAKING.MADE)


def test_an_unknown_name_and_a_missing_log_are_told() -> None:
    unknown = subprocess.run(
        [sys.executable, ROOT / "benchmarks/results.py", "accuracy-esy"], capture_output=True, text=True
    )
    assert unknown.returncode == 1
    assert "no result 'accuracy-esy'" in unknown.stderr


@pytest.fixture
def few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two files that make makes, the second once it is allowed to, around one of a log that is not here."""
    (tmp_path / "Makefile").write_text("one:\n\techo one >> made\ntwo:\n\ttest -e allowed\n\techo two >> made\n")
    git(tmp_path, "init", "-q")
    commit(tmp_path)
    study = MAKING.MADE["accuracy-ml-100k"]
    made = {"one": MAKING.Target(("one",)), "accuracy-ml-100k": study, "two": MAKING.Target(("two",))}
    monkeypatch.setattr(MAKING, "ROOT", tmp_path)
    monkeypatch.setattr(MAKING, "MADE", made)
    monkeypatch.delenv("DATA", raising=False)
    return tmp_path


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    subprocess.run(["git", "-C", folder, *who, *arguments], check=True)


def commit(folder: Path) -> None:
    git(folder, "add", "Makefile")
    git(folder, "commit", "-q", "--allow-empty", "-m", "test")


def ended(monkeypatch: pytest.MonkeyPatch, *names: str) -> str:
    """What the command says at its end; nothing if all went well."""
    monkeypatch.setattr(sys, "argv", ["results.py", *names])
    try:
        MAKING.main()
    except SystemExit as end:
        return str(end.code)
    return ""


def test_what_is_finished_at_this_commit_is_not_made_again(few: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it is named, or there is another commit; what was stopped is made by the next invocation."""
    made = few / "made"
    assert "the same command goes on" in ended(monkeypatch)
    assert made.read_text().split() == ["one"]
    (few / "allowed").touch()
    for _ in range(2):
        assert ended(monkeypatch).startswith("not made, because their logs are not here: accuracy-ml-100k;")
        assert made.read_text().split() == ["one", "two"]
    assert not ended(monkeypatch, "one")
    assert made.read_text().split() == ["one", "two", "one"]
    commit(few)
    assert ended(monkeypatch)
    assert made.read_text().split() == ["one", "two", "one", "one", "two"]


def test_what_differs_from_its_commit_is_never_finished(
    few: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (few / "allowed").touch()
    (few / "src").mkdir()
    (few / "src/code.py").write_text("1")
    git(few, "add", "src")
    for _ in range(2):
        assert ended(monkeypatch)
        assert "what is finished is not noted" in capsys.readouterr().out
    assert (few / "made").read_text().split() == ["one", "two"] * 2


def test_a_log_that_is_not_here_leaves_out_what_is_read_from_it(
    few: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All others are made, and the exit code tells; whoever named it is told at once."""
    (few / "allowed").touch()
    assert "accuracy-ml-100k" in ended(monkeypatch)
    wanted = "ml-100k is read from $DATA/ml-100k; set $DATA to the folder that has ml-100k and kuairand_27k_likehate"
    assert f"accuracy-ml-100k: left out; {wanted}" in capsys.readouterr().out
    assert (few / "made").read_text().split() == ["one", "two"]
    assert ended(monkeypatch, "accuracy-ml-100k", "one") == f"accuracy-ml-100k: {wanted}"
    assert (few / "made").read_text().split() == ["one", "two"]
    monkeypatch.setenv("DATA", str(few / "elsewhere"))
    assert MAKING.lacking("accuracy-ml-100k") == wanted, "a folder that has no such log"
    (few / "elsewhere/ml-100k").mkdir(parents=True)
    assert MAKING.lacking("accuracy-ml-100k") is None
    monkeypatch.delenv("DATA")
    (few / "datasets/ml-100k").mkdir(parents=True)
    assert MAKING.lacking("accuracy-ml-100k") is None, "prepared already"


def test_another_log_of_the_same_name_is_not_taken_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The quickstart's log, say, in a folder that is called hard: its figures would be published as those of hard."""
    monkeypatch.setattr(MAKING, "ROOT", tmp_path)
    folder = tmp_path / "datasets/hard"
    folder.mkdir(parents=True)
    manifest = folder / "dataset.json"
    manifest.write_text(json.dumps({"origin": {"source": "simulated", "evaluation_log": "hard"}}))
    MAKING.prepare("hard")
    manifest.write_text(json.dumps({"origin": {"source": "simulated"}}))
    with pytest.raises(SystemExit, match=f"{folder}: holds a log whose evaluation_log is None, not hard"):
        MAKING.prepare("hard")
    assert set(MAKING.ORIGIN) == set(MAKING.DATASETS)


@pytest.mark.parametrize("log", MAKING.ORIGIN)
def test_logs_say_what_they_are(log: str) -> None:
    """As `prepare` checks it, in the files that were made of them."""
    dataset = json.loads((ROOT / f"docs/results/accuracy-{log}.json").read_text())["dataset"]
    key, wanted = MAKING.ORIGIN[log]
    assert (dataset["name"], dataset["origin"][key]) == (log, wanted)


@pytest.mark.parametrize("name", MAKING.EARLIER)
def test_a_file_of_an_older_format_has_a_command_of_today(name: str) -> None:
    """For its log, its rankers and its seeds, with files that are there; no commit, which a rewritten history loses."""
    told = MAKING.command_of(f"earlier/accuracy-{name}")
    assert "git" not in told
    prepared, study = (
        shlex.split(f"limerank {one}")[1:] for one in told.partition(": limerank ")[2].split("; limerank ")
    )
    facts = json.loads((ROOT / f"docs/results/earlier/accuracy-{name}.json").read_text())
    option = {one: study[at + 1] for at, one in enumerate(study) if one.startswith("--")}
    assert set(option["--models"].split(",")) == {row["model"] for row in facts["results"]}
    assert int(option["--seeds"]) == len({row["seed"] for row in facts["results"]})
    assert option["--dataset"] == prepared[prepared.index("--out") + 1]
    config = StudyConfig.read(ROOT / option["--config"]) if "--config" in option else StudyConfig()
    for ranker, trained in facts["origin"]["rankers"].items():
        model = complete_model(config.model(ranker), "test")
        train = config.with_train(epochs=int(option.get("--epochs", 4))).training(ranker)
        assert model["tower_shortcut"] == trained["model"]["tower_shortcut"]
        assert model.get("sharpness") == trained["model"].get("sharpness")
        assert (train.epochs, train.learning_rate) == (trained["train"]["epochs"], trained["train"]["learning_rate"])
