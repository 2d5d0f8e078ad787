"""The interface as OpenAPI 3.1, made from the table of operations, the typed bodies and their docstrings.

python -m limerank.service.openapi > docs/reference/openapi.json
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from collections.abc import Iterable
from functools import cache
from threading import Lock
from typing import Any

import msgspec

from limerank.service.calls import HANDLERS
from limerank.service.operations import OPERATIONS, PARAMETER, Operation
from limerank.service.problems import KINDS
from limerank.service.routes import load_handlers
from limerank.wire.body import MOST_ID_CHARACTERS
from limerank.wire.examples import BODIES
from limerank.wire.inspection import MOST_FOUND
from limerank.wire.problems import PROBLEM_JSON, Problem
from limerank.wire.service import ProbeAnswer

_making = Lock()
Json = dict[str, Any]
SCHEMA = "#/components/schemas/{name}"
MEDIA = {
    "metrics": "text/plain",
    "docs": "text/html",
    "show_report": "text/html",
    "inspector": "text/html",
    "inspector_file": "text/javascript",
}
PROBES, NOT_READY = ("ready", "health"), "NotReady"
ALWAYS = (431, 500, 503)
WITH_KEY = (400, 401, 403, 429)
WITH_BODY = (408, 413, 415, 422)
MORE = {
    "rank": (404,),
    "recommend": (404,),
    "explain": (404,),
    "add_events": (507,),
    "erase_user": (507,),
    "upsert_items": (507,),
    "delete_items": (507,),
    "publish_bundle": (409, 507),
    "show_bundle": (404,),
    "diff_bundles": (404, 422),
    "compare_bundles": (404,),
    "list_links": (404, 422),
    "find_users": (422,),
    "find_items": (422,),
    "verify_bundle": (404, 422),
    "activate_bundle": (404, 409, 507),
    "roll_back": (409, 507),
    "collect_bundles": (409,),
    "set_routing": (404, 409, 507),
}
"""Statuses that some operations have beyond those of their kind."""


def _number(name: str, told: str, least: int, most: int, otherwise: int) -> Json:
    schema = {"type": "integer", "minimum": least, "maximum": most, "default": otherwise}
    return {"name": name, "in": "query", "description": told, "schema": schema}


_FOUND: list[Json] = [
    {
        "name": "prefix",
        "in": "query",
        "description": "How it begins; by default all of them.",
        "schema": {"type": "string", "maxLength": MOST_ID_CHARACTERS},
    },
    _number("limit", "How many to find.", 1, MOST_FOUND, 20),
]
QUERIES: dict[str, list[Json]] = {
    "show_user": [
        _number("limit", "How many of the newest events to show.", 1, 10_000, 100),
        _number("offset", "How many of the newest to leave out: for the next page.", 0, 1_000_000, 0),
    ],
    "find_users": _FOUND,
    "find_items": _FOUND,
    "list_links": [
        {
            "name": "bundle",
            "in": "query",
            "description": "A bundle that is served; by default the active one.",
            "schema": {"type": "string"},
        }
    ],
    "diff_bundles": [
        {"name": "new", "in": "query", "required": True, "description": "A bundle id.", "schema": {"type": "string"}},
        {
            "name": "old",
            "in": "query",
            "description": "Another one; by default the active bundle.",
            "schema": {"type": "string"},
        },
    ],
}
TAGS = {
    "Ranking": ("/v1/rank", "/v1/recommend", "/v1/explain", "/v1/links"),
    "Events and users": ("/v1/events", "/v1/users"),
    "Items": ("/v1/items",),
    "Bundles": ("/v1/bundles", "/v1/routing"),
    "Service": ("/v1/info", "/v1/status", "/livez", "/readyz", "/healthz", "/metrics", "/openapi.json", "/docs", "/ui"),
}
DESCRIPTION = """\
Rank candidates, recommend items, store what happened, and exchange bundles while requests run.

Bodies are JSON; fields that nobody knows are refused. Ids are texts of 1 to 256 characters, whole numbers stand for
their digits. Times are milliseconds since 1970, or RFC 3339 with a time zone; answers say RFC 3339. Errors are problems
(RFC 9457). A key is needed if the service has any; each operation names the scope that the key must have.
"""


def document() -> Json:
    """The interface, made once: Python 3.11 fails if two threads parse at a time, as two first requests would."""
    with _making:
        return _document()


@cache
def _document() -> Json:
    load_handlers()
    bodies = [one for operation in OPERATIONS for one in (operation.body, operation.answer) if _is_typed(one)]
    _, schemas = msgspec.json.schema_components([*bodies, Problem], ref_template=SCHEMA)
    _describe(schemas, [*bodies, Problem])
    paths: dict[str, Json] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "limerank",
            "version": "1.0",
            "description": DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": tag} for tag in TAGS],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "responses": _refusals(),
            "headers": _headers(),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "Authorization: Bearer KEY"},
                "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            },
        },
    }


def _is_typed(body: Any) -> bool:
    return isinstance(body, type) and issubclass(body, msgspec.Struct)


def _operation(operation: Operation) -> Json:
    made: Json = {
        "operationId": operation.name,
        "summary": operation.summary,
        "description": inspect.cleandoc(HANDLERS[operation.name].__doc__ or ""),
        "tags": [tag for tag, paths in TAGS.items() if operation.path.startswith(paths)],
        "parameters": _parameters(operation),
        "responses": _responses(operation),
    }
    if operation.body is bytes:
        tar = {"schema": {"type": "string", "format": "binary"}}
        made["requestBody"] = {"required": True, "content": {"application/x-tar": tar}}
    elif operation.body is not None:
        content: Json = {"schema": {"$ref": SCHEMA.format(name=operation.body.__name__)}}
        if operation.name in BODIES:
            content["examples"] = {"example": {"value": BODIES[operation.name]}}
        made["requestBody"] = {"required": True, "content": {"application/json": content}}
    if operation.scope != "public":
        scopes = [] if operation.scope == "metrics" else [operation.scope]
        anybody: list[Json] = [{}] if operation.scope == "metrics" else []  # on loopback
        made["security"] = [{"bearer": scopes}, {"key": scopes}, *anybody]
    return made


def _parameters(operation: Operation) -> list[Json]:
    in_path = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": "Percent-encoded; slashes too." if name != "bundle_id" else "A bundle of the store.",
            "schema": {"type": "string", "minLength": 1, "maxLength": MOST_ID_CHARACTERS},
        }
        for name in PARAMETER.findall(operation.path)
    ]
    return in_path + QUERIES.get(operation.name, [])


def _statuses(operation: Operation) -> list[int]:
    """What else than success an operation may answer."""
    found = {*ALWAYS, *MORE.get(operation.name, ())}
    if operation.scope != "public":
        found |= set(WITH_KEY)
    if operation.body is not None:
        found |= set(WITH_BODY)
    if operation.queued:
        found.add(504)
    if PARAMETER.search(operation.path):
        found |= {404, 422}
    return sorted(found)


def _responses(operation: Operation) -> Json:
    headers = {"X-Request-ID": _header("X-Request-ID")}
    if operation.queued:
        headers["Server-Timing"] = _header("Server-Timing")
    media = MEDIA.get(operation.name, "application/json")
    if _is_typed(operation.answer):
        schema: Json = {"$ref": SCHEMA.format(name=operation.answer.__name__)}
    else:
        schema = {"type": "object"} if operation.answer is dict else {"type": "string"}
    done = {"description": _first_line(operation.answer), "headers": headers, "content": {media: {"schema": schema}}}
    responses = {"200": done}
    for status in _statuses(operation):
        name = NOT_READY if status == 503 and operation.name in PROBES else _name(status)
        responses[str(status)] = {"$ref": f"#/components/responses/{name}"}
    return responses


def _refusals() -> Json:
    """The answers to refused requests, by status."""
    made = {}
    for status in sorted({kind.status for kind in KINDS.values()}):
        kinds = {name: kind for name, kind in KINDS.items() if kind.status == status}
        headers = {"X-Request-ID": _header("X-Request-ID")}
        if status == 429:
            headers["Retry-After"] = _header("Retry-After")
        made[_name(status)] = {
            "description": "\n".join(f"- `/problems/{name}`: {kind.meaning}" for name, kind in kinds.items()),
            "headers": headers,
            "content": {PROBLEM_JSON: {"schema": {"$ref": SCHEMA.format(name=Problem.__name__)}}},
        }
    made[NOT_READY] = {
        "description": "Requests are not taken now; `status` and `reasons` say why.",
        "headers": {"X-Request-ID": _header("X-Request-ID")},
        "content": {"application/json": {"schema": {"$ref": SCHEMA.format(name=ProbeAnswer.__name__)}}},
    }
    return made


def _name(status: int) -> str:
    return f"Problem{status}"


def _header(name: str) -> Json:
    return {"$ref": f"#/components/headers/{name}"}


def _headers() -> Json:
    return {
        "X-Request-ID": {
            "description": "The caller's own, if it sent one of up to 128 letters, digits and _.:/+=-; else a new one.",
            "required": True,
            "schema": {"type": "string", "maxLength": 128},
        },
        "Server-Timing": {
            "description": "Milliseconds by stage, the same as `timing_ms`.",
            "schema": {"type": "string"},
        },
        "Retry-After": {
            "description": "Seconds until it is worth trying again.",
            "required": True,
            "schema": {"type": "integer", "minimum": 1},
        },
    }


def _first_line(answer: Any) -> str:
    return inspect.cleandoc(answer.__doc__).splitlines()[0] if _is_typed(answer) else "What was asked for."


def _describe(schemas: Json, bodies: Iterable[type[msgspec.Struct]]) -> None:
    """Descriptions as people wrote them: docstrings without their indentation, and those behind fields."""
    told: dict[str, dict[str, str]] = {}
    for module in sorted({body.__module__ for body in bodies} | {"limerank.wire.body"}):
        told |= _field_docs(module)
    for name, schema in schemas.items():
        if "description" in schema:
            schema["description"] = inspect.cleandoc(schema["description"])
        for field, described in schema.get("properties", {}).items():
            text = next((told[one][field] for one in _lineage(name, told) if field in told[one]), None)
            if text is not None:
                described["description"] = text


def _lineage(name: str, told: dict[str, dict[str, str]]) -> list[str]:
    """A body and those that it extends."""
    bases = {
        "BundleAnswer": ["BundleFacts"],
        "ChangeOfMany": ["RankingChange"],
        "ChangeOfSegment": ["ChangeOfMany", "RankingChange"],
        "ChangeOfUser": ["RankingChange"],
    }
    return [one for one in [name, *bases.get(name, [])] if one in told]


@cache
def _field_docs(module: str) -> dict[str, dict[str, str]]:
    """By class, what stands as a text behind its fields; Python itself forgets these."""
    found: dict[str, dict[str, str]] = {}
    for node in ast.parse(inspect.getsource(sys.modules[module])).body:
        if isinstance(node, ast.ClassDef):
            fields = found.setdefault(node.name, {})
            for one, following in zip(node.body, node.body[1:], strict=False):
                if (
                    isinstance(one, ast.AnnAssign)
                    and isinstance(one.target, ast.Name)
                    and isinstance(following, ast.Expr)
                    and isinstance(following.value, ast.Constant)
                ):
                    fields[one.target.id] = re.sub(r"\s+", " ", str(following.value.value)).strip()
    return found


def text() -> str:
    """The document as it is checked in."""
    return json.dumps(document(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
