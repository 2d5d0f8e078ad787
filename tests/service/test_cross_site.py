"""Pages of other sites in somebody's browser, against every route that is not a plain GET: nothing happens.

What a browser can be made to send: forms, `fetch` without asking first, requests of frames without an origin, pages on
another port of this machine, and names that lead here (DNS rebinding). Over a real socket, with and without keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from bundled import chance_bundle
from serving import RunningService, serving

from limerank.data.store.dataset import StoredDataset
from limerank.service.operations import OPERATIONS, Operation
from limerank.service.options import ServiceOptions
from limerank.service.security.gate import Gate
from limerank.service.security.keys import KeyRing, create_key
from limerank.wire.examples import BODIES

CHANGING = [operation for operation in OPERATIONS if operation.method != "GET"]
STRANGERS: dict[str, dict[str, str]] = {
    "another site": {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"},
    "another site, old browser": {"Origin": "https://evil.example"},
    "another site that hides": {"Sec-Fetch-Site": "cross-site"},
    "a frame without an origin": {"Origin": "null", "Sec-Fetch-Site": "cross-site"},
    "another port of this machine": {"Origin": "http://127.0.0.1:1", "Sec-Fetch-Site": "same-site"},
    "a name that leads here": {
        "Origin": "http://evil.example",
        "Host": "evil.example",
        "Sec-Fetch-Site": "same-origin",
    },
}
FORMS = ("application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain")
JSON = "application/json"


@pytest.fixture(scope="module")
def store(dataset: StoredDataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a bundle to roll back to, which others try to do."""
    path = tmp_path_factory.mktemp("cross-site") / "store"
    for seed in (1, 2):
        chance_bundle("lime-mha", dataset, path, seed=seed)
    return path


@contextmanager
def guarded(store: Path) -> Iterator[RunningService]:
    """A service with its gate."""
    options, keys = ServiceOptions(deadline_ms=20_000), KeyRing(store)
    with serving(store, options, layers=[lambda app: Gate(app, keys, options)]) as running:
        yield running


def sent(running: RunningService, operation: Operation, **headers: str) -> httpx.Response:
    """A request that would be right, but for who sends it."""
    path = operation.path.format(user_id="u1", item_id="i1", bundle_id=running.host.previous_id)
    if operation.body is bytes:
        return running.http.request(operation.method, path, content=b"tar", headers=headers)
    body: Any = BODIES.get(operation.name)
    if operation.name == "compare_bundles":
        body = {"new": running.host.current_id}
    return running.http.request(operation.method, path, json=body, headers=headers)


def state(running: RunningService, **headers: str) -> list[Any]:
    """All that somebody could have changed."""
    paths = ("/v1/bundles", "/v1/routing", "/v1/users/u1", "/v1/users/u42", "/v1/items/i900", "/v1/info")
    told = [running.http.get(path, headers=headers).json() for path in paths]
    for bundle in told[0]["bundles"]:
        del bundle["age_seconds"]
    told[-1] = told[-1]["events"]
    return told


@pytest.mark.parametrize("stranger", list(STRANGERS))
def test_without_keys_nothing_is_done_for_others(store: Path, stranger: str) -> None:
    """Whatever type the body says it is; and no answer invites a browser to ask again."""
    with guarded(store) as running:
        before = state(running)
        for operation in CHANGING:
            for media_type in (JSON, *FORMS):
                answer = sent(running, operation, **STRANGERS[stranger], **{"Content-Type": media_type})
                assert (answer.status_code, answer.json()["type"]) == (403, "/problems/cross-site"), operation.name
            asked = running.http.options(
                operation.path, headers={**STRANGERS[stranger], "Access-Control-Request-Method": operation.method}
            )
            assert asked.status_code in (403, 405)
            for one in (answer, asked):
                assert not [name for name in one.headers if name.startswith("access-control-")]
        assert state(running) == before


def test_forms_are_refused_even_if_nothing_says_whose_they_are(store: Path) -> None:
    """A browser so old that it says nothing can send no JSON: every body has a type that no form has."""
    with guarded(store) as running:
        before = state(running)
        for operation in CHANGING:
            if operation.body is None:
                continue  # verify and erase: the one reads only, no form can send the other
            for media_type in FORMS:
                answer = sent(running, operation, **{"Content-Type": media_type})
                assert (answer.status_code, answer.json()["type"]) == (415, "/problems/unsupported-media-type")
        assert {one.name for one in CHANGING if one.body is None} == {"verify_bundle", "erase_user"}
        assert state(running) == before


def test_with_keys_a_browser_that_has_none_does_nothing(store: Path, tmp_path: Path) -> None:
    """A key is no cookie: no browser sends it by itself, and none is asked to."""
    key, _ = create_key(store, ["admin"])
    try:
        with guarded(store) as running:
            mine = {"Authorization": f"Bearer {key}"}
            before = state(running, **mine)
            for operation in CHANGING:
                for headers in STRANGERS.values():
                    answer = sent(running, operation, **headers)
                    assert answer.status_code == 401, operation.name
                    assert "set-cookie" not in answer.headers
                    assert answer.headers["www-authenticate"].startswith("Bearer")
            for name in ("key", "api_key", "access_token", "X-API-Key"):  # a key in an address opens nothing
                assert running.http.get("/v1/bundles", params={name: key}).status_code == 401
            assert state(running, **mine) == before
    finally:
        (store / "keys.json").unlink()


def test_a_page_of_the_service_itself_may(store: Path) -> None:
    """What was refused above was refused for who sent it: the inspector's requests look like this."""
    with guarded(store) as running:
        own = {"Origin": running.url, "Sec-Fetch-Site": "same-origin"}
        current, previous = running.host.current_id, running.host.previous_id
        for operation in CHANGING:
            if operation.name not in ("publish_bundle", "collect_bundles"):
                assert sent(running, operation, **own).status_code == 200, operation.name
        assert {running.host.current_id, running.host.previous_id} == {current, previous}
        assert running.http.get("/v1/users/u1").json()["erased_at"] is not None
