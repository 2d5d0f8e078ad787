"""What version 0.1.0 made (tests/fixtures): a dataset, a run and a store, opened today or refused with what to do.

Made by that version itself: `prepare simulated --users 12 --items 16 --topics 3 --sessions 6 --slots 4`, a small
LIME-MHA whose links are selected from a larger set (`pool`, as it was called), exported; `evaluate.json` and `rank.json`
are what it printed.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from calling import answer, refusal

import limerank as lr

MADE = Path(__file__).parents[1] / "fixtures" / "limerank-0.1.0.tar.gz"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("old")
    with tarfile.open(MADE) as archive:
        archive.extractall(folder, filter="data")
    return folder


def test_an_old_dataset_opens_and_is_whole(made: Path) -> None:
    data = lr.Dataset.open(made / "dataset", check_hashes=True)
    assert data.fingerprint.startswith("6d217e98b203")
    facts = data.describe().facts
    assert (facts["events"], facts["requests"], facts["users"], facts["items"]) == (144, 40, 12, 16)


def test_an_old_run_evaluates_to_what_it_was(made: Path) -> None:
    """The old name of an option is read; the metrics are those that the old version printed, up to rounding."""
    run = lr.Run.open(made / "run")
    printed = json.loads((made / "evaluate.json").read_text())["metrics"]
    evaluated = run.evaluate(quiet=True)
    for task, metrics in printed.items():
        assert evaluated[task].logloss == pytest.approx(metrics["logloss"], abs=1e-6)
        assert evaluated[task].rows == metrics["rows"]
    assert run.record.versions["limerank"] == "0.1.0"
    assert run.history.height == 2


def test_an_old_store_is_refused_and_its_run_exported_again_ranks_the_same(made: Path) -> None:
    said = refusal(4, "rank", made / "store", "--user", "u1")
    assert "was made by an older limerank" in said
    assert "limerank export RUN --store STORE" in said
    answer("export", made / "run", "--store", made / "store")
    ranked = answer("rank", made / "store", "--user", "u1")["items"]
    before = json.loads((made / "rank.json").read_text())["items"]
    scores = {item["id"]: item["click"] for item in before}
    assert {item["id"]: item["click"] for item in ranked} == pytest.approx(scores, abs=1e-5)
