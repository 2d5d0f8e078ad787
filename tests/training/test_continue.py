"""A new day: appended, trained on from yesterday's weights, measured against yesterday, served, and rolled back."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from calling import answer, limerank, refusal
from killing import Killed, KilledAt

from limerank.api.dataset import Dataset
from limerank.api.run import Run
from limerank.data.sources.simulated import DAY_MS, FIRST_MIDNIGHT_MS, SimulatedConfig, simulate
from limerank.data.sources.table.read import write_table_log
from limerank.errors import ConflictError, DataError, UsageError
from limerank.progress import Progress
from limerank.serve.bundles.store import BundleStore
from limerank.serve.engine import Engine
from limerank.training.configuration import overridden_training
from limerank.training.distributed.ranks import Ranks
from limerank.training.trainer import continue_run, resume

QUIET = Progress(quiet=True)
LOG = SimulatedConfig(users=80, items=100, topics=4, sessions=10, slots=6, seed=5)
DAYS_BEFORE = 8
SHORT = ("--set", "train.max_history=10", "--set", "train.batch_requests=16", "--set", "train.epochs=2")


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, pl.DataFrame]:
    """A run on the first days, whose dataset has the last two since; and those."""
    folder = tmp_path_factory.mktemp("grown")
    write_table_log(simulate(LOG), folder / "raw")
    events = pl.read_parquet(folder / "raw/events.parquet")
    later = (events["time"] - FIRST_MIDNIGHT_MS) // DAY_MS >= DAYS_BEFORE
    new = events.filter(later)
    items, users = (folder / f"raw/{name}.parquet" for name in ("items", "users"))
    old = events.filter(~later)
    schema = simulate(LOG).schema
    data = Dataset.build(old, items=items, users=users, schema=schema, out=folder / "data", quiet=True)
    done = limerank("train", "lime-mha", "--dataset", data.path, "--out", folder / "monday", *SHORT)
    assert done.returncode == 0, done.stderr
    data.append(new, quiet=True)
    return Run.open(folder / "monday"), new


def test_the_new_run_is_measured_against_the_old_one_on_what_neither_has_seen(
    grown: tuple[Run, pl.DataFrame], tmp_path: Path
) -> None:
    """The drift is what evaluating both runs on the newest requests says, and the store can go back."""
    before, new = grown
    out, store = tmp_path / "tuesday", tmp_path / "store"
    before.export(store, quiet=True)
    done = limerank("train", "--continue", before.path, "--out", out)
    assert done.returncode == 0, done.stderr
    assert "new requests from" in done.stderr
    after = Run.open(out)
    continued = after.record.continued
    assert continued is not None
    assert continued.run == "monday"
    assert continued.since == before.record.data_fingerprint != after.record.data_fingerprint
    assert sum(continued.requests.values()) == new["request_id"].n_unique()
    gained = (
        f"click on the newest {continued.requests['test']:,} requests: NE {continued.before_on_test['click'].ne:.4f}"
    )
    assert gained in done.stdout
    measured = after.evaluate("test", against=before, quiet=True)
    assert measured["click"].rows == after.record.test["click"].rows
    assert measured["click"].ne == pytest.approx(after.record.test["click"].ne, abs=1e-6)
    yesterday = before.evaluate("test", against=after, quiet=True)
    assert yesterday["click"].ne == pytest.approx(continued.before_on_test["click"].ne, abs=1e-6)

    after.export(store, quiet=True)
    user = new["user_id"][0]
    ranked = Engine.open(store).rank(user, limit=5)
    BundleStore.open(store).roll_back()
    rolled_back = Engine.open(store).rank(user, limit=5)
    assert ranked["click"].to_list() != rolled_back["click"].to_list()


def test_only_new_events_train_and_it_starts_where_the_old_run_ended(
    grown: tuple[Run, pl.DataFrame], tmp_path: Path
) -> None:
    """With a learning rate that moves nothing it is the old run; the steps are those of the new requests."""
    before, _ = grown
    run = before.continue_on_new_events(
        tmp_path / "still", overrides=["train.learning_rate=1e-12", "train.epochs=1"], quiet=True
    )
    assert run.record.continued is not None
    assert run.record.test["click"].ne == pytest.approx(run.record.continued.before_on_test["click"].ne, abs=1e-6)
    assert run.record.steps == -(-run.record.continued.requests["train"] // 16)


def test_it_learns_from_the_new_day(grown: tuple[Run, pl.DataFrame], tmp_path: Path) -> None:
    """Over several epochs the loss on the new requests falls well below what the old run scores on them."""
    before, _ = grown
    longer = ["train.epochs=8", "train.patience=8"]
    run = before.continue_on_new_events(tmp_path / "learned", overrides=longer, quiet=True)
    losses = run.history.filter(pl.col("task") == "click")["train_loss"].to_list()
    assert losses[-1] < losses[0] - 0.03


def test_killed_and_resumed_it_is_the_same(grown: tuple[Run, pl.DataFrame], tmp_path: Path) -> None:
    before, _ = grown
    config = overridden_training(before.config, ["train.checkpoint_steps=2"])
    whole = continue_run(before, config, tmp_path / "whole", QUIET)
    with pytest.raises(Killed):
        continue_run(before, config, tmp_path / "run", KilledAt(5))
    again = resume(tmp_path / "run", QUIET)
    assert (again.path / "model.safetensors").read_bytes() == (whole.path / "model.safetensors").read_bytes()
    assert again.record.continued == whole.record.continued
    assert not (again.path / "continued.json").exists()


def test_started_again_by_torchrun_the_same_call_goes_on(
    grown: tuple[Run, pl.DataFrame], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --max-restarts nobody is there to say --resume; before, the unfinished run was in its own way."""
    before, _ = grown
    config = overridden_training(before.config, ["train.checkpoint_steps=2"])
    with pytest.raises(Killed):
        continue_run(before, config, tmp_path / "run", KilledAt(5))
    with pytest.raises(ConflictError):
        continue_run(before, config, tmp_path / "run", QUIET)
    monkeypatch.setattr(Ranks, "started_again", property(lambda ranks: True))
    again = continue_run(before, config, tmp_path / "run", QUIET)
    assert again.record.continued is not None


def test_without_new_events_there_is_nothing_to_go_on_with(runs: dict[str, Run], tmp_path: Path) -> None:
    said = refusal(3, "train", "--continue", runs["ttsn"].path, "--out", tmp_path / "x")
    assert "nothing was appended since" in said
    assert list(tmp_path.iterdir()) == []


def test_what_does_not_go_together_is_refused(runs: dict[str, Run], tmp_path: Path) -> None:
    run = runs["ttsn"]
    assert "leave CONFIG and --dataset out" in refusal(
        2, "train", "mha", "--continue", run.path, "--out", tmp_path / "x"
    )
    assert "--out is missing" in refusal(2, "train", "--continue", run.path)
    with pytest.raises(UsageError, match="keeps its ranker and dataset"):
        overridden_training(run.config, ["model.width=8"])


def test_json_tells_the_drift_too(grown: tuple[Run, pl.DataFrame], tmp_path: Path) -> None:
    told = answer("train", "--continue", grown[0].path, "--out", tmp_path / "x", "--json")
    assert set(told["continued"]["before_on_test"]) == {"click", "long_view"}
    assert json.loads((tmp_path / "x/run.json").read_text())["continued"] == told["continued"]


def test_a_dataset_that_is_not_the_runs_is_refused(grown: tuple[Run, pl.DataFrame], tmp_path: Path) -> None:
    other = Dataset.build(simulate(LOG.model_copy(update={"seed": 6})), out=tmp_path / "data", quiet=True)
    config = grown[0].config.model_copy(update={"dataset": other.path})
    with pytest.raises(DataError, match="fingerprint"):
        continue_run(grown[0], config, tmp_path / "x", QUIET)
