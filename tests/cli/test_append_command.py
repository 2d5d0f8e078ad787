"""`limerank append` as a user types it: check, rehearse, add, take back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from calling import answer, limerank, refusal

SECOND = 1_767_225_600  # 2026-01-01
DAY = 86_400
HEADER = "user_id,item_id,time,click"
DESCRIPTION = """\
time_unit: s
features:
  - {name: item_id, role: item}
  - {name: genre, role: item}
  - {name: clicked, role: event, column: click}
tasks: [{name: click}]
"""


def write_day(path: Path, day: int, items: str = "ab") -> Path:
    """One day of events of three users, each with every item."""
    rows = [
        f"u{user},{item},{SECOND + day * DAY + 60 * user + place},{(user + place + day) % 2}"
        for user in range(3)
        for place, item in enumerate(items)
    ]
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    return path


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Ten days of two items that a table describes."""
    raw = tmp_path / "raw"
    (raw / "events").mkdir(parents=True)
    for day in range(10):
        write_day(raw / "events" / f"{day}.csv", day)
    (raw / "items.csv").write_text("item_id,genre\na,drama\nb,crime\n")
    (raw / "dataset.yaml").write_text(DESCRIPTION)
    answer("prepare", "table", "--raw", raw, "--out", tmp_path / "d")
    return tmp_path / "d"


def test_an_undescribed_item_is_refused_first_and_the_same_day_can_be_appended_then(
    dataset: Path, tmp_path: Path
) -> None:
    day = write_day(tmp_path / "day.csv", 10, "abc")
    before = answer("describe", dataset)["fingerprint"]
    assert refusal(3, "append", dataset, "--events", day) == (
        f"error: {day}: 1 of 1 new items without a description ('c'; nothing tells 'genre'); nothing was appended: "
        "describe them with --items FILE, or pass --allow-undescribed to take them in with unknown features\n"
    )
    assert answer("describe", dataset)["fingerprint"] == before
    (tmp_path / "new.csv").write_text("item_id,genre\nc,drama\n")
    added = answer("append", dataset, "--events", day, "--items", tmp_path / "new.csv")
    assert (added["added"]["items"], added["undescribed"]["items"]["count"], added["notes"]) == (1, 0, [])


def test_who_is_in_a_hurry_may_take_it_in_as_it_is(dataset: Path, tmp_path: Path) -> None:
    day = write_day(tmp_path / "day.csv", 10, "abc")
    done = limerank("append", dataset, "--events", day, "--allow-undescribed")
    assert done.returncode == 0
    assert (
        "note: 1 of 1 new items without a description ('c'; nothing tells 'genre'), taken in with unknown"
        in done.stderr
    )
    assert (
        "added 9 events, 9 requests, 1 items, 0 users, from 2026-01-11 00:00:00 to 2026-01-11 00:02:02" in done.stdout
    )


def test_a_dry_run_tells_everything_and_changes_nothing(dataset: Path, tmp_path: Path) -> None:
    day = write_day(tmp_path / "day.csv", 10, "abc")
    before = (dataset / "dataset.json").read_bytes()
    told = answer("append", dataset, "--events", day, "--allow-undescribed", "--dry-run")
    assert told["dry_run"] is True
    assert told["added"] == {"events": 9, "requests": 9, "items": 1, "users": 0}
    assert told["undescribed"]["items"] == {"count": 1, "examples": ["c"]}
    assert (told["from"], told["to"]) == ("2026-01-11 00:00:00", "2026-01-11 00:02:02")
    assert told["fingerprint"] == told["grown_from"] == json.loads(before)["fingerprint"]
    shown = limerank("append", dataset, "--events", day, "--allow-undescribed", "--dry-run")
    assert "would add 9 events, 9 requests, 1 items, 0 users, from 2026-01-11 00:00:00 to" in shown.stdout
    assert f"nothing was changed: {dataset} (fingerprint {told['fingerprint'][:12]})" in shown.stdout
    for wrong in (day, write_day(tmp_path / "old.csv", 9), tmp_path / "nowhere.csv"):
        real = refusal(3, "append", dataset, "--events", wrong)
        assert refusal(3, "append", dataset, "--events", wrong, "--dry-run") == real
    assert (dataset / "dataset.json").read_bytes() == before


def test_the_last_append_is_taken_back_once(dataset: Path, tmp_path: Path) -> None:
    day = write_day(tmp_path / "day.csv", 10)
    before = answer("describe", dataset)["fingerprint"]
    longer = answer("append", dataset, "--events", day)["fingerprint"]
    again = refusal(3, "append", dataset, "--events", day)
    assert "was appended already, it seems: the last append brought 6 events up to 2026-01-11 00:02:01 too" in again
    assert f"take the last append back first: limerank append {dataset} --undo" in again
    would = answer("append", dataset, "--undo", "--dry-run")
    assert (would["fingerprint"], would["restored"]) == (longer, before)
    assert answer("describe", dataset)["fingerprint"] == longer
    done = limerank("append", dataset, "--undo")
    assert done.returncode == 0
    assert "took back 6 events, 6 requests, 0 items, 0 users" in done.stdout
    assert f"is as before (fingerprint {before[:12]})" in done.stdout
    assert "bundles exported since still rank with them" in done.stdout
    assert answer("describe", dataset)["fingerprint"] == before
    assert "nothing is appended to it, so there is nothing to undo" in refusal(5, "append", dataset, "--undo")
    mended = write_day(tmp_path / "mended.csv", 10, "aab")
    assert answer("append", dataset, "--events", mended)["added"]["events"] == 9
    assert answer("append", dataset, "--undo")["taken_back"]["events"] == 9


def test_adding_and_taking_back_are_not_asked_for_at_once(dataset: Path, tmp_path: Path) -> None:
    assert "pass --events FILE to add events, or --undo" in refusal(2, "append", dataset)
    for more in (["--events", "day.csv"], ["--items", "new.csv"], ["--allow-undescribed"]):
        assert "--undo takes the last append back and adds nothing" in refusal(2, "append", dataset, "--undo", *more)
    assert "no dataset here" in refusal(3, "append", tmp_path / "nowhere", "--undo")
