"""The history store in SQLite's file keeps to the contract, and notices what is done to the file."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from history_contract import HistoryContract
from history_model import event, items

from limerank.serve.histories.file import FILE, FOLDER
from limerank.serve.histories.past import NO_PAST
from limerank.serve.histories.store import HistoryStore


class SqliteStores:
    """Folders of one test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, name: str = "", **limits: Any) -> HistoryStore:
        return HistoryStore.open(self.folder / name, **limits)

    def arguments(self, name: str = "") -> list[str]:
        return [str(self.folder / name)]

    def traces(self) -> bytes:
        return b"".join(path.read_bytes() for path in sorted((self.folder / FOLDER).iterdir()))

    def untouched(self) -> bool:
        return list(self.folder.iterdir()) == []


class TestSqlite(HistoryContract):
    """The contract."""

    @pytest.fixture
    def stores(self, tmp_path: Path) -> SqliteStores:
        folder = tmp_path / "histories of a test"
        folder.mkdir()
        return SqliteStores(folder)


def test_a_file_that_is_replaced_or_removed_is_noticed(tmp_path: Path) -> None:
    """An operator restores a copy, or removes the folder, while somebody uses it."""
    histories = HistoryStore.open(tmp_path / "a")
    histories.add([event(1), event(2)])
    with HistoryStore.open(tmp_path / "b") as copy:
        copy.add([event(7), event(8)])
    assert items(histories) == ["i1", "i2"]
    (tmp_path / "b" / FOLDER / FILE).replace(tmp_path / "a" / FOLDER / FILE)
    for ending in ("-wal", "-shm"):
        (tmp_path / "a" / FOLDER / f"{FILE}{ending}").unlink(missing_ok=True)
    assert items(histories) == ["i7", "i8"]
    shutil.rmtree(tmp_path / "a" / FOLDER)
    assert histories.of("u") is NO_PAST
    assert histories.add([event(3)]).accepted == 1
    assert items(histories) == ["i3"]
