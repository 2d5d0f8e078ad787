"""`import limerank as lr`: light, typed, complete; its numbers are those of the commands."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import polars as pl
import pytest
from calling import answer, limerank

import limerank as lr
from limerank.api.training import TrainKeywords
from limerank.data.raw.log import RawLog
from limerank.evaluation.evaluate import evaluation_loader, predict
from limerank.models import RANKERS

STUB = Path(lr.__file__).with_suffix(".pyi")
SMALL: dict[str, Any] = {"epochs": 1, "batch_requests": 32, "max_history": 20}


def test_importing_it_loads_nothing_heavy() -> None:
    """A command line, a notebook or an editor that only looks pays for no torch, polars, pydantic or numpy."""
    heavy = ["torch", "polars", "numpy", "pydantic", "rich"]
    code = f"import sys, limerank; print([name for name in {heavy} if name in sys.modules], limerank.__version__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("[] ")
    assert not done.stderr


def test_every_name_of_the_stub_is_there_and_is_what_it_says() -> None:
    """Editors read the stub; what they complete must load, from the module the stub names."""
    imports = [node for node in ast.walk(ast.parse(STUB.read_text())) if isinstance(node, ast.ImportFrom)]
    names = [alias.name for node in imports for alias in node.names]
    assert sorted(names) == sorted(set(names) & set(dir(lr)))
    for node in imports:
        home = __import__(f"limerank.{node.module}", fromlist=["_"])
        for alias in node.names:
            assert getattr(lr, alias.name) is getattr(home, alias.name)
    with pytest.raises(AttributeError, match="Enginee"):
        _ = lr.Enginee  # type: ignore[attr-defined]


def test_every_ranker_is_at_the_door() -> None:
    """As options, called as the ranker is written; they say which ranker they are of."""
    for name, ranker in RANKERS.items():
        options = getattr(lr, ranker.options_type.__name__)()
        assert type(options) is ranker.options_type
        assert ranker.__name__ == f"{type(options).__name__}Ranker"
        assert name.replace("-", "") == type(options).__name__.lower()


def test_train_takes_every_key_of_the_train_section() -> None:
    keys = {name: field.annotation for name, field in lr.TrainConfig.model_fields.items()}
    assert get_type_hints(TrainKeywords) == keys


@pytest.fixture(scope="module")
def tables(raw_log: RawLog, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small simulated log as somebody's files, and the dataset, run and store that commands make of it."""
    folder = tmp_path_factory.mktemp("walk")
    events = raw_log.collect_events()
    events.write_csv(folder / "events.csv")
    assert raw_log.items is not None
    assert raw_log.users is not None
    raw_log.items.with_columns(pl.col("tags").list.join("|")).write_csv(folder / "items.csv")
    raw_log.users.write_parquet(folder / "users.parquet")
    schema = raw_log.schema.model_dump(mode="json", exclude_defaults=True)
    (folder / "dataset.yaml").write_text(json.dumps(schema | {"split": raw_log.schema.split.model_dump()}))
    answer("prepare", "table", "--raw", folder, "--out", folder / "dataset")
    settings = [f"--set=train.{key}={value}" for key, value in SMALL.items()]
    answer(
        "train",
        "lime-mha",
        "--set",
        "model.links=8",
        *settings,
        "--dataset",
        folder / "dataset",
        "--out",
        folder / "run",
    )
    answer("export", folder / "run", "--store", folder / "store")
    return folder


@pytest.fixture(scope="module")
def walked(tables: Path, raw_log: RawLog) -> tuple[lr.Dataset, lr.Run]:
    """The script of the README, from polars frames."""
    events = raw_log.collect_events()
    data = lr.Dataset.build(
        events,
        items=raw_log.items,
        users=raw_log.users,
        schema=raw_log.schema,
        out=str(tables / "door" / "dataset"),
        quiet=True,
    )
    run = lr.train(lr.LimeMHA(links=8), data, out=str(tables / "door" / "run"), quiet=True, **SMALL)
    return data, run


def test_the_walk_gives_the_numbers_of_the_commands(tables: Path, walked: tuple[lr.Dataset, lr.Run]) -> None:
    """Dataset, metrics, evaluation and ranking, to the last digit."""
    data, run = walked
    described = data.describe()
    assert described.facts["fingerprint"] == answer("describe", tables / "dataset")["fingerprint"]
    assert described.worst.value in str(described)
    assert "PASS" in described._repr_html_()
    command = json.loads((tables / "run" / "run.json").read_text())
    assert run.metrics["test"]["click"].model_dump() == command["test"]["click"]
    assert run.history.filter(task="click")["ne"][-1] == command["validation"]["click"]["ne"]
    evaluated = lr.evaluate(run, part="validation", quiet=True)
    assert (
        evaluated["click"].model_dump()
        == answer("evaluate", tables / "run", "--part", "validation")["metrics"]["click"]
    )
    assert "counting floor" in repr(evaluated)
    store = run.export(str(tables / "door" / "store"), quiet=True)
    engine = lr.Engine.open(str(tables / "door" / "store"))
    assert engine.bundle.manifest.id == store.current_id()
    ranked = engine.rank("u7", limit=5)
    printed = answer("rank", tables / "store", "--user", "u7", "--limit", "5")["items"]
    assert ranked["item_id"].to_list() == [item["id"] for item in printed]
    assert ranked["click"].to_list() == pytest.approx([item["click"] for item in printed], abs=1e-6)
    many = engine.rank_many(["u7", "nobody"], limit=5)
    assert many.filter(user_id="u7").drop("user_id").equals(ranked)
    assert many["rank"].to_list() == [1, 2, 3, 4, 5] * 2
    assert engine.rank_many([], limit=5).columns == many.columns


def test_any_frame_and_any_file_give_the_same_dataset(tables: Path, raw_log: RawLog, walked: tuple[Any, Any]) -> None:
    """polars, pandas, pyarrow and duckdb frames, files by str and by Path, all mixed: one fingerprint."""
    fingerprint, out = walked[0].fingerprint, tables / "same"
    events, items, users = raw_log.collect_events(), raw_log.items, raw_log.users
    assert items is not None
    assert users is not None
    parts = np.array_split(np.arange(events.height), 2)
    ways: dict[str, tuple[Any, Any, Any]] = {
        "lazy polars": (events.lazy(), items, users),
        "pandas": (events.to_pandas(), items.to_pandas(), users.to_pandas()),
        "pyarrow": (events.to_arrow(), items.to_arrow(), users.to_arrow()),
        "a one-way stream": (events.to_arrow().to_reader(), items, users),
        "files": (str(tables / "events.csv"), tables / "items.csv", tables / "users.parquet"),
        "both": ([tables / "events.csv"], items.to_pandas(), str(tables / "users.parquet")),
        "two frames": ([events[part] for part in parts], items, users),
    }
    for way, (some_events, some_items, some_users) in ways.items():
        built = lr.Dataset.build(
            some_events, items=some_items, users=some_users, schema=raw_log.schema, out=out, overwrite=True, quiet=True
        )
        assert built.fingerprint == fingerprint, way
    described = lr.Dataset.build(tables, out=out, overwrite=True, quiet=True)
    assert described.fingerprint == fingerprint


def test_a_query_of_duckdb_is_a_frame(tables: Path, walked: tuple[lr.Dataset, Any]) -> None:
    """In a process of its own: duckdb complains of leaks when a process ends."""
    code = (
        "import sys, duckdb, limerank as lr\n"
        "folder, out = sys.argv[1:]\n"
        "events = duckdb.sql(f\"select * from '{folder}/events.csv'\")\n"
        "users = duckdb.sql(f\"select * from '{folder}/users.parquet'\")\n"
        "schema = lr.Dataset.open(f'{folder}/dataset').schema\n"
        "built = lr.Dataset.build(events, items=f'{folder}/items.csv', users=users, schema=schema, out=out)\n"
        "print(built.fingerprint)\n"
    )
    command = [sys.executable, "-c", code, str(tables), str(tables / "duckdb")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == walked[0].fingerprint


def test_predicting_is_what_evaluation_scores(raw_log: RawLog, walked: tuple[lr.Dataset, lr.Run]) -> None:
    """Raw rows of the test part, shuffled and without labels: every score as the loader's batches give it."""
    data, run = walked
    ranker = run.ranker(data)
    loader = evaluation_loader(data, lr.Part.TEST, SMALL["max_history"], ranker.needs_times)
    predictions = predict(ranker, loader)
    expected = pl.DataFrame(
        {
            "user_id": data.user_ids.gather(predictions.user),
            "item_id": data.item_ids.gather(data.column("events/item")[predictions.rows]),
            "time": data.column("events/time")[predictions.rows],
            "wanted": predictions.probability[:, 0],
        }
    )
    events = raw_log.collect_events().drop("click", "long_view", "watched_fraction")
    rows = events.join(expected.select("user_id", "item_id", "time"), on=["user_id", "item_id", "time"], how="semi")
    scored = run.predict(rows.sample(fraction=1, shuffle=True, seed=1).to_pandas(), quiet=True)
    both = scored.join(expected, on=["user_id", "item_id", "time"])
    assert both.height == expected.height == scored.height
    np.testing.assert_allclose(both["predicted_click"], both["wanted"], atol=1e-6)


def test_new_items_are_described_by_their_rows_or_by_a_table(
    raw_log: RawLog, walked: tuple[lr.Dataset, lr.Run]
) -> None:
    """A new item with an old one's attributes scores the same either way, and otherwise without; order is kept."""
    _, run = walked
    assert raw_log.items is not None
    request = raw_log.collect_events()[-1].select("user_id", "time", "device", "hour")
    new = raw_log.items[3].with_columns(item_id=pl.lit("fresh"))
    asked = request.with_columns(item_id=pl.lit("fresh"))
    by_table = run.predict(asked, items=new, quiet=True)
    by_rows = run.predict(asked.join(new, on="item_id"), quiet=True)
    unknown = run.predict(asked, quiet=True)
    assert by_table["predicted_click"].item() == pytest.approx(by_rows["predicted_click"].item(), abs=1e-6)
    assert by_table["predicted_click"].item() != pytest.approx(unknown["predicted_click"].item(), abs=1e-6)
    assert run.predict(asked.clear(), quiet=True).columns == unknown.columns


def test_a_row_sees_only_what_came_before_it(raw_log: RawLog, walked: tuple[lr.Dataset, lr.Run]) -> None:
    """A row at the first moment of a log scores like one of a user without a history; later ones do not."""
    _, run = walked
    events = raw_log.collect_events().sort("time")
    own = events.filter(user_id="u5").select("user_id", "item_id", "device", "hour")[-1]
    first, last = int(events["time"].min()), int(events["time"].max())  # type: ignore[arg-type]
    rows = pl.concat([own.with_columns(time=pl.lit(time)) for time in (first, last + 1)])
    early, late = run.predict(rows, quiet=True)["predicted_click"]
    timeless = run.predict(own, quiet=True)["predicted_click"].item()
    assert late == pytest.approx(timeless, abs=1e-6)
    assert early != pytest.approx(late, abs=1e-6)


def test_ids_come_as_people_have_them(tables: Path) -> None:
    """Arrays and series of any index; whole numbers are the texts they were in the log; a text is no list."""
    engine = lr.Engine.open(tables / "store")
    ids = ["i1", "i2", "i3"]
    wanted = engine.rank("u1", ids, exclude_seen=True)
    for given in (np.array(ids), pl.Series(ids), pl.Series(ids).to_pandas().set_axis([2, 1, 0])):
        assert engine.rank("u1", given, exclude_seen=True).equals(wanted)  # type: ignore[arg-type]
    assert engine.answer(1).known_user is False  # type: ignore[arg-type]
    assert "no list of ids" in refused(lambda: engine.rank("u1", "i1"))
    assert "no list of ids" in refused(lambda: engine.rank_many("u1"))
    assert "is no id" in refused(lambda: engine.rank(None))  # type: ignore[arg-type]


def test_rows_in_another_unit_and_rows_of_strangers_are_told(
    raw_log: RawLog, walked: tuple[lr.Dataset, lr.Run], capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither may pass in silence for an empty history."""
    _, run = walked
    rows = raw_log.collect_events().tail(3)
    seconds = rows.with_columns(pl.col("time") // 1000)
    assert "another unit?" in refused(lambda: run.predict(seconds, quiet=True))
    capsys.readouterr()
    run.predict(rows.with_columns(user_id=pl.lit("nobody")))
    assert "of 3 rows 3 are of users that the dataset does not know" in capsys.readouterr().err


def test_a_day_is_appended_from_a_frame(raw_log: RawLog, tmp_path: Path) -> None:
    """As by files; the object that was there stays as it was, and the append can be rehearsed and undone."""
    events = raw_log.collect_events().sort("time")
    cut = events["time"][int(0.9 * events.height)]
    early, late = events.filter(pl.col("time") < cut), events.filter(pl.col("time") >= cut)
    data = lr.Dataset.build(
        early, items=raw_log.items, users=raw_log.users, schema=raw_log.schema, out=tmp_path / "d", quiet=True
    )
    rehearsed = data.add(late.to_pandas(), dry_run=True, quiet=True)
    longer = data.append(late.to_pandas(), quiet=True)
    assert longer.manifest.counts["events"] == events.height
    assert rehearsed.segment.events == late.height
    assert data.manifest.counts["events"] == early.height
    data.undo_append()
    assert lr.Dataset.open(tmp_path / "d").fingerprint == data.fingerprint


def refused(act: Any) -> str:
    with pytest.raises(lr.LimerankError) as caught:
        act()
    (line,) = str(caught.value).splitlines()
    return line


def test_mistakes_end_in_one_line_with_the_fix(
    raw_log: RawLog, walked: tuple[lr.Dataset, lr.Run], tmp_path: Path
) -> None:
    data, run = walked
    events, out = raw_log.collect_events(), tmp_path / "out"
    schema = raw_log.schema
    said = refused(lambda: lr.Dataset.build(events.rename({"time": "tiem"}), schema=schema, out=out))
    assert said == "events: column 'time' is missing; did you mean 'tiem'?"
    assert "did you mean 'links'?" in refused(lambda: lr.LimeMHA(linkz=3))  # type: ignore[call-arg]
    assert "did you mean 'lime-mha'?" in refused(lambda: lr.train("lime-mah", data, out=out))
    assert "did you mean 'epochs'?" in refused(lambda: lr.train("ttsn", data, out=out, epoch=3))  # type: ignore[call-arg]
    assert "did you mean 'item'?" in refused(lambda: lr.Feature(name="a", role="itme"))  # type: ignore[arg-type]
    assert "neither a frame" in refused(lambda: lr.Dataset.build([1, 2], schema=schema, out=out))  # type: ignore[list-item]
    assert "schema: is needed" in refused(lambda: lr.Dataset.build(events, out=out))
    assert "no such file" in refused(lambda: lr.Dataset.build("nowhere.csv", schema=schema, out=out))
    assert "no dataset here" in refused(lambda: lr.Dataset.open("nowhere"))
    assert "no run here" in refused(lambda: lr.Run.open("nowhere"))
    assert "no bundle store here" in refused(lambda: lr.Engine.open("nowhere"))
    assert "rows: column 'device' is missing" in refused(lambda: run.predict(events.drop("device"), quiet=True))
    scored = events.with_columns(predicted_click=0.5)
    assert "predicted_click" in refused(lambda: run.predict(scored, quiet=True))
    assert "join them first" in refused(
        lambda: lr.Dataset.build(events, items=[raw_log.items] * 2, schema=schema, out=out)  # type: ignore[arg-type]
    )
    assert "no part 'tset'" in refused(lambda: lr.evaluate(run, "tset", quiet=True))  # type: ignore[arg-type]
    assert "neither lr.Schema" in refused(lambda: lr.Dataset.build(events, schema={}, out=out))  # type: ignore[arg-type]
    assert not out.exists()


def test_commands_still_run_in_a_folder_of_strings(tables: Path) -> None:
    """`lr.train_from` takes what `limerank train` takes."""
    run = lr.train_from(
        "ttsn", dataset=str(tables / "dataset"), overrides=["train.epochs=1"], out=str(tables / "from"), quiet=True
    )
    assert run.record.model == "ttsn"
    assert limerank("evaluate", tables / "from").returncode == 0
