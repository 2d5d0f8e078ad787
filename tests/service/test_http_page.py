"""docs/reference/http.md: its examples are sent as they stand, and its answers have the fields of real ones."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import httpx
import pytest
from serving import RunningService, serving

from limerank.service.options import ServiceOptions
from limerank.service.problems import KINDS

PAGE = (Path(__file__).parents[2] / "docs/reference/http.md").read_text()
BLOCK = re.compile(r"^```bash\n(.*?)^```(?:\n\n```json\n(.*?)^```)?", re.MULTILINE | re.DOTALL)


def sent(running: RunningService, command: str) -> httpx.Response:
    """A command line of curl, with the few options that the page uses."""
    words = iter(shlex.split(command)[1:])
    method, headers, body, url = None, {}, None, ""
    for word in words:
        if word == "-X":
            method = next(words)
        elif word == "-H":
            name, _, value = next(words).partition(": ")
            headers[name] = value
        elif word == "-d":
            body = next(words)
        elif word != "-s":
            url = word
    path = url.removeprefix("localhost:8080")
    return running.http.request(method or ("GET" if body is None else "POST"), path, headers=headers, content=body)


def test_examples_of_the_page(own_store: Path) -> None:
    """Every command answers 200; where the page shows an answer, the real one has the same fields."""
    with serving(own_store) as running:
        count = 0
        for commands, shown in BLOCK.findall(PAGE):
            for command in re.findall(r"^curl .*?(?=^curl |\Z)", commands, re.MULTILINE | re.DOTALL):
                response = sent(running, command)
                assert response.status_code == 200, (command, response.text)
                count += 1
            if shown:
                assert list(json.loads(shown)) == list(response.json())
        assert count >= 15


@pytest.mark.parametrize(("name", "status"), re.findall(r"^\| `([a-z-]+)` \| (\d+) \|", PAGE, re.MULTILINE))
def test_problems_of_the_page(name: str, status: str) -> None:
    """They have these statuses, and test_problems_answers.py sees that none is missing."""
    assert KINDS[name].status == int(status)


def test_limits_of_the_page() -> None:
    """Defaults as the options have them."""
    table = re.findall(r"^\| [^|]+ \| ([\d,]+) \| `--([a-z-]+)` \|", PAGE, re.MULTILINE)
    assert len(table) == 7
    for shown, option in table:
        assert getattr(ServiceOptions(), option.replace("-", "_")) == int(shown.replace(",", ""))
