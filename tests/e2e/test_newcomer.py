"""The newcomer's path: serve, curl, an event, a changed ranking; and every command of the tutorial."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

from calling import limerank
from newcomer import ROOT, WRITTEN, commands_of, follow_the_readme, served, type_curl, without_curl
from serving import copied, serving

from limerank.client import Client

GUIDE = "docs/how-to/operate-a-service.md"
HERE = {
    "u121": "u42",
    "i8065": "i22",
    "i1923": "i9",
    "i1507": "i30",
    "i3470": "i87",
    "i4929": "i33",
    "i3418": "i50",
}
"""What the README calls them, and who they are in the tests' small store."""


def test_serve_curl_an_event_a_changed_ranking(own_store: Path) -> None:
    """The README's commands: the scores change for that user, and for nobody else.

    tests/e2e/test_quickstart.py does the same, word for word, with the quickstart's store, and looks at the order.
    """
    before, after = follow_the_readme(own_store, HERE)
    assert scores(before) != scores(after)


def scores(answer: dict[str, Any]) -> dict[str, float]:
    return {item["id"]: item["score"] for item in answer["items"]}


def test_the_commands_of_the_tutorial(store: Path, runs: dict[str, Any], tmp_path: Path) -> None:
    """From top to bottom against one service, with two bundles in its store; exports are left out."""
    own = copied(store, tmp_path / "stores").rename(tmp_path / "stores/demo")
    runs["lime-mha"].export(own, quiet=True)
    known: dict[str, str] = {}
    ran = []
    with served(own, "--deadline-ms", "20000") as address:
        for line in commands_of("docs/how-to/serve-your-model.md"):
            command, first, *rest = line.split()
            if command == "limerank" and first in ("serve", "export"):
                continue
            if command == "curl":
                ran.append(type_curl(line, address, tmp_path, **known))
                if "bundles" in ran[-1]:
                    known["BUNDLE"] = next(b["id"] for b in ran[-1]["bundles"] if b["id"] != ran[-1]["current"])
            else:
                done = limerank(first, *rest, cwd=tmp_path)
                assert done.returncode == 0, done.stderr
                if first == "keys" and "admin" in rest:
                    known["KEY"] = done.stdout.split()[0]
        refused = type_curl("curl -s http://127.0.0.1:8080/v1/info", address, status="401")
    assert len(ran) == 13
    assert ran[-1]["served"]["items"] == 200
    assert refused["type"] == "/problems/unauthenticated"


def test_a_machine_without_curl_asks_the_same(own_store: Path, tmp_path: Path) -> None:
    """What stands in for curl sends what curl sends."""
    lines = [line for line in commands_of("docs/how-to/serve-your-model.md") if line.startswith("curl")]
    with serving(own_store) as running:
        for line in lines[:7]:
            said = without_curl(shlex.split(line.replace(WRITTEN, running.url)), tmp_path)
            assert said.rpartition("\n")[2].startswith("2"), said


def test_a_backup_of_a_running_service_is_a_store(store: Path, tmp_path: Path) -> None:
    """The commands of the operations guide, beside a running service; what they copy can be served."""
    own = copied(store, tmp_path / "stores").rename(tmp_path / "stores/demo")
    (block,) = re.findall(r"^```\n(for file.*?)^```", (ROOT / GUIDE).read_text(), re.MULTILINE | re.DOTALL)
    with serving(own) as running, Client(running.url) as client:
        client.add_event("somebody-new", "i5", features={"clicked": 1})
        client.delete_items(["i7"])
        before = client.rank("somebody-new", limit=1000)
        done = subprocess.run(["bash", "-euc", block], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        client.add_event("somebody-new", "i6", features={"clicked": 1})
    with serving(tmp_path / "backup") as running, Client(running.url) as client:
        after = client.rank("somebody-new", limit=1000)
    assert after.user.history_used == 1
    assert after.items == before.items
