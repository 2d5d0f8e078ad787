"""SECURITY.md says which test tries what: every test that it names is there, and every line names one."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from limerank.service.operations import OPERATIONS
from limerank.service.security.keys import SCOPES

ROOT = Path(__file__).parent.parent.parent
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def threats() -> list[str]:
    """The rows of the table."""
    table = (ROOT / "SECURITY.md").read_text().partition("## What an attacker may try")[2]
    return [line for line in table.splitlines() if line.startswith("| ")][1:]


def test_every_line_names_tests_that_are_there() -> None:
    assert len(threats()) >= 25
    for line in threats():
        named = NAMED.findall(line)
        assert named, line
        for path, name in named:
            tree = ast.parse((ROOT / path).read_text())
            assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, (path, name)


def test_the_table_of_scopes_is_the_one_that_is_checked() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    assert all(f"| `{scope}` |" in text for scope in SCOPES)
    public = {operation.path for operation in OPERATIONS if operation.scope == "public"}
    assert all(f"`{path}`" in text for path in public)


def test_no_operation_takes_an_address() -> None:
    """No body of any operation has a field for a URL, a host or a path of a file: nothing can be fetched or read."""
    import msgspec

    for operation in OPERATIONS:
        if operation.body in (None, bytes):
            continue
        schema = str(msgspec.json.schema(operation.body)).lower()
        assert not re.search(r"'(\w*_)?(url|uri|host|path|file|callback|webhook)'", schema), operation.name
