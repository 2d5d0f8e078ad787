"""The commands as a user types them: output, JSON, exit codes, errors."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import typer
import yaml
from calling import answer, in_a_process, limerank, refusal
from typer.testing import CliRunner

from limerank.api.run import Run
from limerank.data.raw.log import RawLog
from limerank.data.sources.table.read import write_table_log


def test_the_walk_by_hand(tmp_path: Path) -> None:
    """prepare, describe, train, evaluate, export, rank, bundle: each command leads to the next."""
    dataset, run, store = tmp_path / "d", tmp_path / "run", tmp_path / "store"
    sizes = ["--users", "80", "--items", "120", "--topics", "4", "--sessions", "8", "--slots", "5"]
    prepared = answer("prepare", "simulated", *sizes, "--out", dataset)
    assert prepared["items"] == 120
    described = answer("describe", dataset)
    assert described["items"] == 120
    assert set(described["parts"]) == {"train", "validation", "test"}
    config = tmp_path / "c.yaml"
    config.write_text("dataset: d\nmodel: {name: lime-mha, links: 4}\ntrain: {max_history: 20}\n")
    trained = answer("train", config, "--set", "train.epochs=1", "--out", run, "--threads", "1")
    assert trained["epochs"] == 1
    evaluated = answer("evaluate", run)
    assert evaluated["metrics"]["click"]["auc"] == pytest.approx(trained["test"]["click"]["auc"], abs=1e-5)
    exported = answer("export", run, "--store", store)
    ranked = answer("rank", store, "--user", "u1", "--items", "i1,i2,ghost", "--context", "device=tv,hour=9")
    assert ranked["bundle"] == exported["bundle"]
    assert ranked["unknown_items"] == ["ghost"]
    assert set(ranked["milliseconds"]) == {"queue", "history", "user", "lookup", "interact", "select", "total"}
    assert answer("bundle", "verify", store)["bundle"] == exported["bundle"]
    assert answer("bundle", "list", store)["current"] == exported["bundle"]
    assert answer("bundle", "show", store)["id"] == exported["bundle"]
    commands: list[list[str | Path]] = [["describe", dataset], ["bundle", "list", store], ["evaluate", run]]
    for command in commands:
        assert limerank(*command).returncode == 0
    shown = limerank("rank", store, "--user", "u1", "--event", "item=i3,clicked=1")
    assert "120 candidates for user u1" in shown.stdout
    assert "interact" in shown.stdout


def test_usage_errors_exit_2(store: Path, runs: dict[str, Run], tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("dataset: d\nmodel: {name: lime-mha}\ntrian: {}\n")
    message = refusal(2, "train", config, "--out", tmp_path / "run")
    assert message == f"error: {config}: unknown key 'trian'; did you mean 'train'?\n"
    assert not (tmp_path / "run").exists()
    config.write_text(f"dataset: {runs['ttsn'].config.dataset}\nmodel: {{name: lime-mha, link: 8}}\n")
    message = refusal(2, "train", config, "--out", tmp_path / "run")
    assert message == f"error: {config}, model 'lime-mha': unknown key 'link'; did you mean 'links'?\n"
    assert not (tmp_path / "run").exists()
    assert "needs item=ID" in refusal(2, "rank", store, "--user", "u1", "--event", "clicked=1")
    assert "must look like name=value" in refusal(2, "rank", store, "--user", "u1", "--context", "phone")
    assert "names no candidate" in refusal(2, "rank", store, "--user", "u1", "--items", "")
    assert "is not a number" in refusal(2, "rank", store, "--user", "u1", "--event", "item=i1,watched_fraction=long")
    message = refusal(2, "study", "accuracy", "--models", "mhaa", "--out", tmp_path / "s")
    assert "no ranker, variant or group 'mhaa'; did you mean 'mha'?" in message
    assert "names no ranker" in refusal(2, "study", "accuracy", "--models", ",", "--out", tmp_path / "s")
    assert refusal(2, "no-such-command")


def test_data_errors_exit_3(raw_log: RawLog, tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    write_table_log(raw_log, raw)
    events = pl.read_parquet(raw / "events.parquet")
    events.drop("device").write_parquet(raw / "events.parquet")
    message = refusal(3, "prepare", "table", "--raw", raw, "--out", tmp_path / "d")
    assert f"{raw}/events.parquet: column 'device' is missing" in message
    events.with_columns(click=pl.lit(2)).write_parquet(raw / "events.parquet")
    message = refusal(3, "prepare", "table", "--raw", raw, "--out", tmp_path / "d")
    assert f"{raw}/events.parquet: column 'click' is a label but not 0 or 1" in message
    assert not (tmp_path / "d").exists()
    assert "no dataset here" in refusal(3, "describe", tmp_path / "nowhere")
    assert "no run here" in refusal(3, "evaluate", tmp_path / "nowhere")


def test_bundle_errors_exit_4(store: Path, tmp_path: Path) -> None:
    copy = tmp_path / "store"
    shutil.copytree(store, copy)
    (folder,) = (copy / "bundles").iterdir()
    rows = folder / "rows.safetensors"
    rows.write_bytes(rows.read_bytes()[:-7])
    message = refusal(4, "rank", copy, "--user", "u1")
    assert f"{rows}: has" in message
    assert "export the run again" in message
    assert "no bundle store here" in refusal(4, "rank", tmp_path / "nowhere", "--user", "u1")


def test_conflicts_exit_5(runs: dict[str, Run], store: Path, tmp_path: Path) -> None:
    dataset = runs["ttsn"].config.dataset
    message = refusal(5, "prepare", "simulated", "--users", "20", "--items", "20", "--out", dataset)
    assert "exists already; choose another place or pass --overwrite" in message
    foreign = tmp_path / "home"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("years of work")
    small = ["prepare", "simulated", "--users", "20", "--items", "20"]
    assert "not ours to replace" in refusal(5, *small, "--out", foreign, "--overwrite")
    assert "exists already" in refusal(5, *small, "--out", tmp_path / "d", "--raw", foreign)
    assert not (tmp_path / "d").exists()
    assert (foreign / "thesis.tex").read_text() == "years of work"
    shutil.rmtree(foreign)
    assert "no previous bundle" in refusal(5, "bundle", "rollback", store)
    (tmp_path / "mine.txt").write_text("do not touch")
    assert "was not made by quickstart" in refusal(5, "quickstart", "--out", tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


def test_errors_as_json(tmp_path: Path) -> None:
    done = in_a_process("describe", tmp_path / "nowhere", "--json")
    assert done.returncode == 3
    assert json.loads(done.stdout)["exit_code"] == 3


def all_commands() -> Iterator[list[str]]:
    """Every command of the application; groups of commands are not commands."""
    from limerank.cli import app

    def below(group: Any, names: list[str]) -> Iterator[list[str]]:
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                yield from below(command, [*names, name])
            else:
                yield [*names, name]

    return below(typer.main.get_command(app), [])


@pytest.mark.parametrize("command", list(all_commands()), ids=" ".join)
def test_every_command_has_help_with_an_example(command: list[str]) -> None:
    from limerank.cli import app

    done = CliRunner().invoke(app, [*command, "--help"])
    assert done.exit_code == 0
    assert f"Example: limerank {' '.join(command)}" in " ".join(done.output.split())
    assert "--json" in done.output


def test_raw_tables_of_a_simulation_prepare_to_the_same_dataset(tmp_path: Path) -> None:
    sizes = ["--users", "40", "--items", "50", "--topics", "3", "--sessions", "6", "--slots", "4"]
    first = answer("prepare", "simulated", *sizes, "--out", tmp_path / "a", "--raw", tmp_path / "raw")
    second = answer("prepare", "table", "--raw", tmp_path / "raw", "--out", tmp_path / "b")
    assert first["fingerprint"] == second["fingerprint"]
    description = yaml.safe_load((tmp_path / "raw" / "dataset.yaml").read_text())
    assert {feature["name"] for feature in description["features"]} >= {"topic", "tags", "device"}


def test_a_day_is_appended_and_ranked_with(raw_log: RawLog, tmp_path: Path) -> None:
    """prepare, train, append a day, export with what is new: one dataset, one run, newer histories."""
    raw = tmp_path / "raw"
    write_table_log(raw_log, raw)
    events = pl.read_parquet(raw / "events.parquet").sort("time")
    cut = events["time"][int(events.height * 0.8)]
    events.filter(pl.col("time") <= cut).write_csv(raw / "events.csv")
    events.filter(pl.col("time") > cut).write_csv(tmp_path / "later.csv")
    (raw / "events.parquet").unlink()
    dataset = tmp_path / "d"
    answer("prepare", "table", "--raw", raw, "--out", dataset)
    config = tmp_path / "c.yaml"
    config.write_text("dataset: d\nmodel: {name: ttsn}\ntrain: {max_history: 20, epochs: 1}\n")
    answer("train", config, "--out", tmp_path / "run")
    appended = answer("append", dataset, "--events", tmp_path / "later.csv")
    assert appended["added"]["events"] == events.filter(pl.col("time") > cut).height
    assert appended["segments"] == 2
    assert answer("describe", dataset)["events"] == events.height
    answer("export", tmp_path / "run", "--store", tmp_path / "store")
    assert answer("rank", tmp_path / "store", "--user", "u1", "--limit", "3")["user"]["history_used"] == 20
    assert "append only later events" in refusal(3, "append", dataset, "--events", tmp_path / "later.csv")
    broken = tmp_path / "broken.csv"
    events.tail(1).drop("device").with_columns(pl.col("time") + 1).write_csv(broken)
    assert "broken.csv: column 'device' is missing" in refusal(3, "append", dataset, "--events", broken)
    assert "nowhere.csv: no such file" in refusal(3, "append", dataset, "--events", tmp_path / "nowhere.csv")
    assert answer("describe", dataset)["fingerprint"] == appended["fingerprint"]


def test_a_failed_check_is_exit_code_3_with_the_whole_report(raw_log: RawLog, tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    write_table_log(raw_log, raw)
    events = pl.read_parquet(raw / "events.parquet")
    events.with_columns(device=pl.format("d{}", pl.col("click"))).write_parquet(raw / "events.parquet")
    description = yaml.safe_load((raw / "dataset.yaml").read_text())
    description["request_id"] = None
    (raw / "dataset.yaml").write_text(yaml.safe_dump(description))
    message = refusal(3, "prepare", "table", "--raw", raw, "--out", tmp_path / "d")
    assert "context column 'device' differs within a request" in message
    events.with_columns(
        device=pl.format("d{}", pl.col("click")), time=pl.col("time") + pl.int_range(pl.len()).over("request_id")
    ).with_columns(hour=pl.lit(1)).write_parquet(raw / "events.parquet")
    answer("prepare", "table", "--raw", raw, "--out", tmp_path / "d")
    done = limerank("describe", tmp_path / "d")
    assert done.returncode == 3
    assert "FAIL  leaks" in done.stdout
    assert "WARN  constants  context feature 'hour'" in done.stdout
    as_json = limerank("describe", tmp_path / "d", "--json")
    assert as_json.returncode == 3
    assert json.loads(as_json.stdout)["worst"] == "FAIL"


def test_selecting_on_the_test_part_is_a_flag_that_the_run_records(raw_log: RawLog, tmp_path: Path) -> None:
    write_table_log(raw_log, tmp_path / "raw")
    answer("prepare", "table", "--raw", tmp_path / "raw", "--out", tmp_path / "d", "--select-on-test")
    config = tmp_path / "c.yaml"
    config.write_text("dataset: d\nmodel: {name: ttsn}\ntrain: {max_history: 20, epochs: 1}\n")
    done = limerank("train", config, "--out", tmp_path / "run")
    assert "note: this dataset selects on its test part" in done.stderr
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["selected_on"] == "test"
    assert record["validation"] == record["test"]
    assert "has no validation part" in refusal(3, "evaluate", tmp_path / "run", "--part", "validation")
    answer("prepare", "table", "--raw", tmp_path / "raw", "--out", tmp_path / "d2")
    config.write_text("dataset: d2\nmodel: {name: ttsn}\ntrain: {max_history: 20, epochs: 1}\n")
    assert answer("train", config, "--out", tmp_path / "run2")["selected_on"] == "validation"


def test_a_place_that_cannot_be_written_exits_6(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    message = refusal(6, "prepare", "simulated", "--users", "20", "--items", "20", "--out", tmp_path / "file" / "d")
    assert f"--out {tmp_path / 'file' / 'd'}: {tmp_path / 'file'} is a file, not a folder" in message


def test_an_interrupted_study_stops_its_workers(runs: dict[str, Run], tmp_path: Path) -> None:
    """Ctrl-C reaches every process of the terminal; the command exits with 130 and leaves none of them behind."""
    arguments = ["study", "accuracy", "--dataset", str(runs["ttsn"].config.dataset), "--epochs", "500"]
    command = [sys.executable, "-c", "from limerank.cli import main; main()", *arguments, "--out", str(tmp_path)]
    process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("*.unfinished/checkpoints/last.safetensors")) and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in errors
    assert f"runs that are finished stay in {tmp_path}, and the same command goes on from them" in errors.decode()
    while session_members(process.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not session_members(process.pid)


def session_members(session: int) -> list[int]:
    """Living processes of a session, from /proc."""
    members = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, owner = stat.read_text().rsplit(")", 1)[1].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(owner) == session and state != "Z":
            members.append(int(stat.parent.name))
    return members


def test_tables_show_ids_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    from limerank.cli.common import emit_table

    emit_table("", ["item"], [["[/b]"], ["x[us]y"]])
    shown = capsys.readouterr().out
    assert "[/b]" in shown
    assert "x[us]y" in shown


def test_a_command_line_that_cannot_be_parsed_is_one_line_too() -> None:
    done = limerank("prepare", "table", "--out", "d", "--json")
    assert (done.returncode, json.loads(done.stdout)["exit_code"]) == (2, 2)
    assert done.stderr == "error: Missing option '--raw'; see `limerank prepare table --help`\n"
    assert "No such option: --bogus" in refusal(2, "describe", "d", "--bogus")
    assert "No such command 'describbe'" in refusal(2, "describbe")
    nothing = limerank()
    assert (nothing.returncode, nothing.stderr) == (2, "")
    assert "Rank tens of thousands" in nothing.stdout


def test_the_tutorial_of_ones_own_log(tmp_path: Path) -> None:
    """docs/how-to/bring-your-own-log.md, command by command: the last ranking knows the new day."""
    text = (Path(__file__).parents[2] / "docs/how-to/bring-your-own-log.md").read_text()
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    steps = [line for language, block in blocks if not language for line in block.splitlines()]
    assert len(steps) == 10
    used = []
    for step in steps:
        words = step.split()
        assert words[0] == "limerank"
        done = limerank(*words[1:], cwd=tmp_path)
        assert done.returncode == 0, (step, done.stderr)
        used += re.findall(r"(\d+) events of history", done.stdout)
    before, after = map(int, used)
    assert before < after <= 100


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("features: [{name: a, role: item}]\ntasks: []\n", "key 'tasks': needs at least one entry"),
        ("tasks: [{name: c}]\nfeatures: [{name: a, role: itm}]\n", "unknown value 'itm'; did you mean 'item'"),
        ("tasks: [{name: c}]\nfeatures: [{name: a, role: item, kind: multi-valued}]\n", "did you mean 'multi_valued'"),
        ("tasks: [{name: c}]\nfeatures: [a]\n", "key 'features.0': must be a mapping with keys such as"),
        (
            "tasks: [{name: c}]\nfeatures: [{name: a, role: item}]\ntasks: [{name: d}]\n",
            "line 3: not valid YAML (key 'tasks' stands twice)",
        ),
        ("", "dataset.yaml: is empty"),
    ],
)
def test_a_description_with_a_mistake_says_which(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "events.csv").write_text("user_id,item_id,time,c\n1,2,3,0\n")
    (tmp_path / "dataset.yaml").write_text(text)
    message = refusal(3, "prepare", "table", "--raw", tmp_path, "--out", tmp_path / "d")
    assert said in message
    assert message.count("\n") == 1
