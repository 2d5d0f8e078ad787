"""Rules of the house that a machine can check."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import limerank

SOURCE = Path(limerank.__file__).parent
BASE = {"errors", "files", "schema", "protocols", "config", "batch", "progress", "metrics", "threads", "__init__"}
ALLOWED = {
    **dict.fromkeys(BASE, BASE),
    "ops": {"errors"},
    "nn": {"ops", "schema", "batch", "errors"},
    "models": {"nn", "ops", "schema", "batch", "errors", "config"},
    "data": BASE,
    "train": {"models", "data", *BASE},
    "serve": {"models", "data", "ops", *BASE},
    "report": BASE,
    "study": {"models", "data", "train", "serve", "report", "ops", "nn", *BASE},
    "__main__": {"cli"},
    "cli": {"models", "data", "train", "serve", "report", "study", *BASE},
}
ENGINE_MODULES = {"limerank.ops.xor_attention.triton_kernels"}  # kernels cannot be written without their engine
OPTIONAL_ENGINES = {"matplotlib", "triton", "faiss", "ray", "valkey", "torchrec", "onnxruntime"}


def room_of(path: Path) -> str:
    first = path.relative_to(SOURCE).parts[0]
    return first.removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "limerank":
            parts = node.module.split(".")
            rooms |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            rooms |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("limerank.")}
    return rooms


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: p.relative_to(SOURCE).as_posix())
def test_imports_follow_the_arrows(path: Path) -> None:
    """No room imports from a room that lies behind it; in particular serve never imports train."""
    room = room_of(path)
    known = {p.name.removesuffix(".py") for p in SOURCE.iterdir()}
    strangers = (imported_rooms(path) & known) - ALLOWED[room] - {room}
    assert not strangers, f"{path.relative_to(SOURCE)} must not import {strangers}"


def imported_at_once(path: Path) -> set[str]:
    """Modules whose import is a statement of the file itself, not of a function in it."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: p.relative_to(SOURCE).as_posix())
def test_optional_engines_are_imported_where_they_are_needed(path: Path) -> None:
    """Importing limerank never needs an optional engine: not directly, and not through a file of kernels."""
    names = imported_at_once(path)
    assert not ENGINE_MODULES & names
    if f"limerank.{path.relative_to(SOURCE).with_suffix('').as_posix().replace('/', '.')}" not in ENGINE_MODULES:
        assert not {name.split(".")[0] for name in names} & OPTIONAL_ENGINES


def test_no_executable_formats() -> None:
    """Nothing that is loaded can run code: no pickle, no torch.load, no eval."""
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert not {"pickle", "marshal", "shelve"} & {alias.name for alias in node.names}, path
            if isinstance(node, ast.ImportFrom):
                assert node.module not in ("pickle", "marshal", "shelve"), path
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in ("eval", "exec", "torch.load", "pickle.load", "pickle.loads"), path
