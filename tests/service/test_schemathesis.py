"""B1: schemathesis against the running service: what the OpenAPI document says is true, whatever is sent.

`LIMERANK_FUZZ_EXAMPLES=1000 pytest tests/service/test_schemathesis.py` tries more; `make soak` does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.checks import negative_data_rejection
from serving import RunningService, copied, serving

from limerank.service.openapi import document
from limerank.service.options import ServiceOptions
from limerank.service.security.gate import Gate
from limerank.service.security.keys import KeyRing, create_key

EXAMPLES = int(os.environ.get("LIMERANK_FUZZ_EXAMPLES", "20"))
CONFIG = {
    "generation": {"mode": "all"},
    "checks": {
        # names of features, tasks and bundles are the bundle's: a document that holds for all of them cannot list them;
        # and a deadline of a millisecond may be over before the work begins
        "positive_data_acceptance": {"expected-statuses": ["2xx", "404", "409", "422", "504"]},
        "negative_data_rejection": {"expected-statuses": ["400", "401", "404", "405", "415", "422"]},
        "not_a_server_error": {"expected-statuses": ["2xx", "4xx", "504"]},
        # a path may be that of two operations: GET /v1/items/delete shows the item that is called `delete`
        "allow_header_conformance": {"enabled": False},
    },
}
schemathesis.serializer.alias("application/x-tar", "application/octet-stream")
SCHEMA = schemathesis.openapi.from_dict(document(), config=SchemathesisConfig.from_dict(CONFIG))

Guarded = tuple[RunningService, requests.Session, dict[str, str]]


@pytest.fixture(scope="session")
def guarded(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A service behind its gate on a store of its own, and a session that may do everything."""
    own = copied(store, tmp_path_factory.mktemp("fuzzed"))
    key, _ = create_key(own, ["rank", "write", "admin"])
    options = ServiceOptions(deadline_ms=20_000)
    gate = partial(Gate, keys=KeyRing(own), options=options)
    with serving(own, options, layers=[gate], authenticated=lambda: True) as running, requests.Session() as session:
        session.trust_env = False
        yield running, session, {"Authorization": f"Bearer {key}", "X-API-Key": key}


@SCHEMA.parametrize()
@settings(
    max_examples=EXAMPLES,
    derandomize=EXAMPLES < 100,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_the_document_is_true(case: schemathesis.Case[Any], guarded: Guarded) -> None:
    """Statuses and types are documented, answers fit their schemas, nonsense is refused, nothing is a server error."""
    running, session, keys = guarded
    lenient = case.operation.definition.raw["operationId"] == "add_events"  # it lists what it rejects, with 200
    excluded: list[Any] = [negative_data_rejection] if lenient else []
    case.call_and_validate(base_url=running.url, session=session, headers=keys, excluded_checks=excluded)
