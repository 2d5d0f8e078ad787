"""`limerank routing` and `limerank ab`, from a shell, on a real store: begin, serve, read, end."""

from __future__ import annotations

import re
import shutil
from contextlib import closing
from pathlib import Path

import pytest
from calling import answer, limerank, refusal

from limerank.serve.bundles.store import BundleStore
from limerank.serve.experiments.log_file import LogFile
from limerank.serve.experiments.records import RankingRecord, ShadowRecord
from limerank.serve.experiments.routing import CONTROL, assign, read_routing, read_routings
from limerank.serve.histories.past import Happened
from limerank.serve.histories.store import HistoryStore


@pytest.fixture
def shop(store: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(store, tmp_path / "store"))


def current(store: Path) -> str:
    bundle_id = BundleStore.open(store).current_id()
    assert bundle_id is not None
    return bundle_id


def logged(store: Path, users: int = 120) -> None:
    """Two rankings per user; every user of the arm clicks the first one, every second of control."""
    routing = read_routing(store)
    at, records, events = (routing.since or 0) + 1, [], []
    for number in range(users):
        user = f"u{number}"
        arm = assign(routing, user)
        for request in (f"{user}-a", f"{user}-b"):
            records.append(
                RankingRecord(
                    request, at, user, current(store), "rank", routing.experiment, arm, 9, ["i1"], {"total": 2.0}
                )
            )
        if arm != CONTROL or number % 2:
            events.append(Happened(user, "i1", at + 1, type="click", request_id=f"{user}-a", value=1.5))
    with closing(LogFile.open(store)) as log:
        log.write(records)
        log.write([ShadowRecord("u1-a", at, "u1", "one", "other", 0.5, 0.25, 10, 0.75, 0.01, 2.0, 3.0)])
    with HistoryStore.open(store) as histories:
        histories.add(events)


def test_from_beginning_to_end(shop: Path, tmp_path: Path) -> None:
    """Set, show, read as text, as JSON and as a page, clear; the log can be read after the end."""
    bundle = current(shop)
    assert "no experiment and no shadow" in limerank("routing", "show", shop).stdout
    begun = answer(
        "routing", "set", shop, "--experiment", "exp7", "--arm", f"new={bundle}:50", "--shadow", f"{bundle}:0.1"
    )
    assert (begun["control"], begun["experiment"]) == (bundle, "exp7")
    assert begun["arms"] == [{"name": "new", "bundle": bundle, "percent": 50.0}]
    shown = limerank("routing", "show", shop, "--user", "u1").stdout
    assert re.search(r"control +50 %", shown)
    assert f"user u1 has the arm {assign(read_routing(shop), 'u1')}" in shown
    assert answer("routing", "show", shop, "--user", "u1")["arm"] == assign(read_routing(shop), "u1")
    logged(shop)
    result = answer("ab", shop, "--type", "click")
    control, new = result["arms"]
    assert new["users"] + control["users"] == 120
    assert new["events"]["click"]["joined"] == new["users"]
    (found,) = [one for one in result["comparisons"] if one["what"] == "rankings with"]
    assert found["rate"] == 0.5
    assert found["control"] == pytest.approx(control["events"]["click"]["joined"] / control["rankings"])
    assert found["low"] > 0
    page = tmp_path / "ab.html"
    done = limerank("ab", shop, "--report", page)
    assert done.returncode == 0, done.stderr
    for words in ("experiment exp7 (running)", "differences to control", "agreement of shadows", "chosen before"):
        assert words in done.stdout
    html = page.read_text()
    assert "<h2>Differences to control</h2>" in html
    assert "rankings with" in html
    ended = answer("routing", "clear", shop)
    assert (ended["experiment"], ended["arms"], ended["shadows"]) == (None, [], [])
    assert len(read_routings(shop)) == 2
    after = answer("ab", shop)
    assert (after["experiment"], after["running"]) == ("exp7", False)
    assert after["comparisons"] == answer("ab", shop, "--experiment", "exp7")["comparisons"]
    assert "(ended)" in limerank("ab", shop).stdout


def test_times_may_be_given(shop: Path) -> None:
    answer("routing", "set", shop, "--experiment", "exp7", "--arm", f"new={current(shop)}:5")
    logged(shop)
    since = read_routing(shop).since
    assert answer("ab", shop, "--since", str(since))["since"] == since
    assert answer("ab", shop, "--since", "2001-02-03T04:05:06Z")["since"] == 981_173_106_000
    early = answer("ab", shop, "--until", "2001-02-03")
    assert sum(arm["rankings"] for arm in early["arms"]) == 0
    assert "is not a time" in refusal(2, "ab", shop, "--since", "yesterday")


def test_what_makes_no_sense_is_refused(shop: Path, tmp_path: Path) -> None:
    """In one line with the fix, and nothing is written."""
    bundle = current(shop)
    assert "no rankings were logged; begin an experiment" in refusal(3, "ab", shop)
    assert "no bundle store here" in refusal(4, "ab", tmp_path / "nowhere")
    assert "no bundle store here" in refusal(4, "routing", "show", tmp_path / "nowhere")
    assert "no bundle 'ghost'" in refusal(4, "routing", "set", shop, "--experiment", "e", "--arm", "new=ghost:5")
    for arguments, said in (
        ([], "name an --experiment with its --arm, or a --shadow"),
        (["--arm", f"new={bundle}:5"], "arms need an experiment"),
        (["--experiment", "e", "--arm", f"{bundle}:5"], "must look like NAME=BUNDLE:PERCENT"),
        (["--experiment", "e", "--arm", f"new={bundle}"], "must look like NAME=BUNDLE:PERCENT"),
        (["--experiment", "e", "--arm", f"new={bundle}:five"], "'five' is not a number"),
        (["--experiment", "e", "--arm", f"control={bundle}:5"], "'control' is the arm of the active bundle"),
        (["--experiment", "e", "--arm", f"new={bundle}:105"], "less than or equal to 100"),
        (["--experiment", "a b", "--arm", f"new={bundle}:5"], "experiment"),
        (["--shadow", bundle], "must look like BUNDLE:FRACTION"),
        (["--shadow", f"{bundle}:2"], "less than or equal to 1"),
    ):
        assert said in refusal(2, "routing", "set", shop, *arguments)
    assert not (shop / "routing.json").exists()
    answer("routing", "set", shop, "--shadow", f"{bundle}:1")
    (shop / "routing.json").write_text("{")
    assert "routing.json: not valid JSON" in refusal(4, "routing", "show", shop)
    answer("routing", "clear", shop)
    assert answer("routing", "show", shop)["shadows"] == []


@pytest.mark.parametrize("command", [["routing", "show"], ["routing", "set"], ["routing", "clear"], ["ab"]])
def test_help_has_an_example(command: list[str]) -> None:
    shown = " ".join(limerank(*command, "--help").stdout.split())
    assert f"Example: limerank {' '.join(command)}" in shown
    assert "--json" in shown
