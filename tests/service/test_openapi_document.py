"""The interface's own description: what is checked in is what is served, and what is written there works."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from calling import python
from serving import RunningService

from limerank.service.app import create_app
from limerank.service.calls import HANDLERS
from limerank.service.openapi import text
from limerank.service.operations import OPERATIONS
from limerank.wire.examples import BODIES

CHECKED_IN = Path(__file__).parents[2] / "docs/reference/openapi.json"
UPDATE = "update it: python -m limerank.service.openapi > docs/reference/openapi.json"


def test_the_document_is_the_one_that_is_checked_in(service: RunningService) -> None:
    """And the one that a running service gives."""
    assert CHECKED_IN.read_text() == text(), UPDATE
    assert service.http.get("/openapi.json").json() == json.loads(text())


def test_every_operation_is_in_the_document_and_every_reference_leads_somewhere() -> None:
    """Nothing that the table has is missing, and nothing is named that is not there."""
    document = json.loads(text())
    named = {
        (method.upper(), path, one["operationId"])
        for path, methods in document["paths"].items()
        for method, one in methods.items()
    }
    assert named == {(operation.method, operation.path, operation.name) for operation in OPERATIONS}
    for reference in set(re.findall(r'"\$ref": "#/([^"]+)"', text())):
        found = document
        for part in reference.split("/"):
            found = found[part]


@pytest.mark.parametrize("name", sorted(set(BODIES) - {"activate_bundle", "roll_back", "compare_bundles"}))
def test_examples_work(service: RunningService, name: str) -> None:
    """Whoever pastes one is not refused (what needs another bundle is tried in files of its own)."""
    operation = next(one for one in OPERATIONS if one.name == name)
    body = json.loads(json.dumps(BODIES[name]))
    if name == "upsert_items":
        known = service.http.get("/v1/info").json()["served"]["item_features"]
        assert set(body["items"][0]["features"]) <= set(known)
    response = service.http.request(operation.method, operation.path, json=body)
    assert response.status_code == 200, response.text


def test_the_page_needs_nothing_from_elsewhere(service: RunningService) -> None:
    """No script, no address of another machine, a policy that would forbid both, and every operation on it."""
    response = service.http.get("/docs")
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert "<script" not in response.text
    assert not re.findall(r"(?:src|href)=\"(?!#|/openapi\.json)", response.text)
    for operation in OPERATIONS:
        assert f'id="{operation.name}"' in response.text


def test_an_operation_without_a_handler_is_an_error_at_the_start(
    service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody finds out by calling it."""
    monkeypatch.delitem(HANDLERS, "rank")
    with pytest.raises(LookupError, match="rank"):
        create_app(service.host, service.service.options, admission=service.service.admission)


def test_first_requests_at_once_make_it_once() -> None:
    """In a process that has not made it yet; two threads that parse at a time fail in Python 3.11."""
    program = """
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from limerank.service.openapi import document
together = Barrier(8)
def first(_):
    together.wait()
    return document()
with ThreadPoolExecutor(8) as threads:
    made = list(threads.map(first, range(8)))
print(all(one is made[0] for one in made))
"""
    done = python("-c", program)
    assert (done.returncode, done.stdout.strip()) == (0, "True"), done.stderr
