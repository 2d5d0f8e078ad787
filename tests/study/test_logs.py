"""Properties of logs are what their definitions say, and the table in the docs is what they measure."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from calling import limerank, refusal

from limerank.data.build.prepare import prepare
from limerank.data.raw.log import RawLog
from limerank.data.sources.movielens.read import read_movielens
from limerank.data.sources.simulation.evaluation import EVALUATION_LOGS, evaluation_log
from limerank.data.sources.table.read import read_table_log
from limerank.data.store.dataset import StoredDataset
from limerank.evaluation.evaluate import evaluation_loader, oracle
from limerank.evaluation.floor import counting_floor
from limerank.splits import Part
from limerank.study.logs.page import property_rows
from limerank.study.logs.properties import drift, popularity, properties, repeat_rate
from limerank.study.logs.results import LogsStudy

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared/data"


def test_popularity_of_a_log_that_can_be_counted_by_hand() -> None:
    """Items with 6, 3 and 1 events; the last fifth has one item that the others lack."""
    item = np.array([0, 0, 0, 1, 0, 1, 0, 1, 0, 2])
    found = popularity(item, np.arange(10))
    # pairs differ by 3, 5 and 2, each counted twice among 9; twice the mean is 20/3
    assert found.gini == pytest.approx(2 * (3 + 5 + 2) / 9 / (20 / 3))
    assert (found.top_1_percent, found.top_10_percent) == (0.6, 0.6)
    assert found.seen_once == pytest.approx(1 / 3)
    assert found.unseen_late == 0.5
    assert popularity(np.arange(5), np.arange(5)).gini == 0


def test_a_repeat_is_of_the_same_user_in_a_later_request() -> None:
    user = np.array([0, 0, 0, 0, 1, 1])
    item = np.array([7, 7, 7, 8, 7, 9])
    request = np.array([0, 0, 1, 1, 2, 2])
    assert repeat_rate(user, item, request) == pytest.approx(1 / 6)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0] * 12 + [1] * 12, 1.0),  # all different: cosine 0 between the halves, 1 between odd and even
        ([0, 0, 1, 1] * 6, 0.0),  # order means nothing
    ],
)
def test_drift_is_one_when_halves_have_nothing_in_common_and_zero_when_order_means_nothing(
    values: list[int], expected: float
) -> None:
    users = np.repeat([0, 1], 24)
    found = drift(users, np.arange(48), np.array(values * 2), "topic")
    assert found is not None
    assert found.drift == pytest.approx(expected, abs=1e-12)
    assert found.effective_values == pytest.approx(2.0)
    assert drift(np.zeros(5, dtype=np.int64), np.arange(5), np.arange(5), "topic") is None  # too few events


def test_properties_of_a_dataset(dataset: StoredDataset) -> None:
    found = properties(dataset, "small")
    counts = dataset.manifest.counts
    assert (found.events, found.requests) == (counts["events"], counts["requests"])
    assert found.candidates == pytest.approx(counts["events"] / counts["requests"])
    loader = evaluation_loader(dataset, Part.TEST, 1)
    assert found.floors["click"].both == counting_floor(loader)["click"].auc
    assert found.floors["click"].oracle == oracle(loader)["click"].auc
    assert found.drift is not None
    assert found.drift.attribute == "topic"


def test_the_command_writes_a_file_and_a_page(dataset: StoredDataset, tmp_path: Path) -> None:
    out = tmp_path / "logs"
    other = tmp_path / "copies" / dataset.path.name
    shutil.copytree(dataset.path, other)
    done = limerank("study", "logs", "--dataset", dataset.path, "--dataset", other, "--out", out, "--json")
    facts = json.loads(done.stdout)
    study = LogsStudy.model_validate(json.loads((out / "logs.json").read_text()))
    assert [log.name for log in study.logs] == [str(dataset.path), str(other)]  # of equal names the whole path is shown
    assert facts["result"] == str(out / "logs.json")
    page = (out / "logs.html").read_text()
    assert page.count("<figure>") == 2
    assert "effective values per user" in page


def test_one_dataset_twice_is_refused(dataset: StoredDataset, tmp_path: Path) -> None:
    """Under another name of the same folder, too: two equal columns compare nothing."""
    again = dataset.path / ".." / dataset.path.name
    told = refusal(2, "study", "logs", "--dataset", dataset.path, "--dataset", again, "--out", tmp_path / "out")
    assert "is named twice; leave one of them out" in " ".join(told.split())
    assert not (tmp_path / "out").exists()


def test_the_quick_mode_draws_an_evaluation_log_and_keeps_it(tmp_path: Path) -> None:
    first = limerank("study", "logs", "--quick", "--out", tmp_path)
    quick = tmp_path / "quick"
    assert str(quick / "logs.html") in first.stdout
    assert [path.name for path in (quick / "datasets").iterdir()] == ["easy"]
    assert LogsStudy.model_validate_json((quick / "logs.json").read_text()).made.quick


def test_the_table_of_the_docs_is_what_is_measured(tmp_path: Path) -> None:
    """Within one unit of the last digit shown; the real logs where they are there."""
    text = (ROOT / "docs/explanation/evaluation-logs.md").read_text()
    lines = text[text.index("| property |") :].split("\n\n")[0].splitlines()
    names, *shown = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "|---" not in line]
    columns = {name: [row[number] for row in shown] for number, name in enumerate(names)}
    raw: dict[str, Callable[[], RawLog]] = {name: partial(evaluation_log, name) for name in EVALUATION_LOGS}
    if SHARED.is_dir():
        likehate = ROOT / "examples/datasets/kuairand-likehate.yaml"
        raw["ml-100k"] = partial(read_movielens, SHARED / "ml-100k")
        raw["kuairand-likehate"] = partial(read_table_log, SHARED / "kuairand_27k_likehate", schema_file=likehate)
    for name, read in raw.items():
        measured = property_rows([properties(prepare(read(), tmp_path / name), name)])
        assert [row[0] for row in measured] == columns["property"][: len(measured)]
        for told, (label, value) in zip(columns[name], measured, strict=False):
            assert same(told, value), (name, label, told, value)


def same(told: str, measured: str) -> bool:
    """The same words, and numbers that differ by one in the last digit at most."""
    number = r"\d[\d,]*(?:\.\d+)?"
    if re.sub(number, "#", told) != re.sub(number, "#", measured):
        return False
    pairs = zip(re.findall(number, told), re.findall(number, measured), strict=True)
    return all(
        abs(float(a.replace(",", "")) - float(b.replace(",", ""))) <= 1.01 * 10.0 ** -len(a.partition(".")[2])
        for a, b in pairs
    )
