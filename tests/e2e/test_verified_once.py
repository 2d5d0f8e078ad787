"""Every file of a dataset or bundle is hashed once per command that relies on it: big ones take minutes to read."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from calling import answer

from limerank import files
from limerank.api.dataset import Dataset
from limerank.api.run import Run


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each file was hashed to be compared with its record, by the last parts of its path."""
    counted: Counter[str] = Counter()
    check = files.check_files

    def counting(directory: Path, records: list[files.FileRecord], *rest: object, hashes: bool) -> None:
        counted.update({f"{directory.name}/{record.path}": 1 for record in records} if hashes else {})
        check(directory, records, *rest, hashes=hashes)  # type: ignore[arg-type]

    monkeypatch.setattr(files, "check_files", counting)
    return counted


@pytest.mark.parametrize(
    "command",
    [
        ["describe", "DATASET"],
        ["train", "ttsn", "--dataset", "DATASET", "--set", "train.epochs=1", "--out", "OUT"],
        ["evaluate", "RUN"],
        ["export", "RUN", "--store", "OUT"],
    ],
    ids=lambda command: command[0],
)
def test_commands_verify_once(
    command: list[str], hashed: Counter[str], dataset: Dataset, runs: dict[str, Run], tmp_path: Path
) -> None:
    named = {"DATASET": dataset.path, "RUN": runs["ttsn"].path, "OUT": tmp_path / "out"}
    hashed.clear()  # of a run that was trained just now
    answer(*(named.get(word, word) for word in command))
    recorded = {f"{dataset.path.name}/{record.path}" for record in dataset.manifest.files}
    assert recorded <= set(hashed)
    assert set(hashed.values()) == {1}


def test_ranking_and_activating_verify_the_bundle_once(hashed: Counter[str], store: Path) -> None:
    hashed.clear()
    answer("rank", store, "--user", "u1")
    assert set(hashed.values()) == {1}
    hashed.clear()
    bundle = answer("bundle", "list", store)["current"]
    answer("bundle", "activate", store, bundle)
    assert set(hashed.values()) == {1}
