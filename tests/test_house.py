"""Rules of the house that a machine can check."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import limerank

SOURCE = Path(limerank.__file__).parent
GROUND = {path.stem for path in SOURCE.glob("*.py")} - {"__main__"} | {"metrics"}
STORE = {"data.store", "data.batches", *GROUND}
DATA = {"data.new_rows", "data.raw", "data.build", "data.describe", "data.draft", "data.fetch", "data.sources", *STORE}
SERVICE = {"wire", "client", "service"}
PRODUCT = {"ops", "nn", "models", "evaluation", "training", "tuning", "serve", "report", "planning", *SERVICE, *DATA}
ALLOWED = {
    **dict.fromkeys(GROUND, GROUND),
    "ops": {"errors"},
    "nn": {"ops", "schema", "batch", "errors"},
    "models": {"nn", "ops", "schema", "batch", "errors", "config", "typed"},
    "data.store": GROUND,
    "data.batches": STORE,
    "data.new_rows": {"data.build", "data.raw", *STORE},
    "data.raw": {"data.store", *GROUND},
    "data.build": {"data.raw", "data.store", *GROUND},
    "data.describe": STORE,
    "data.fetch": GROUND,
    "data.sources": {"data.raw", "data.fetch", "data.store", *GROUND},
    "data.draft": {"data.raw", "data.sources", *GROUND},
    "data": set(),
    "evaluation": {"models", *STORE},
    "training": {"models", "nn", "evaluation", "report", "data.describe", "data.sources", *STORE},
    "serve": {"models", "ops", *STORE},
    "wire": set(),
    "client": {"wire", *GROUND},
    "service": {"wire", "serve", "models", *STORE},
    "api": {"models", "evaluation", "training", "tuning", "serve", *DATA},
    "tuning": {"models", "evaluation", "training", "report", *STORE},
    "report": GROUND,
    "planning": GROUND,
    "bench": {"api", *PRODUCT},
    "study": {"api", "bench", *PRODUCT},
    "cli": {"api", "bench", "study", *PRODUCT},
    "__main__": {"cli"},
}
MOST_FILES = 12
CROWDED = {"models": "one file per ranker", "cli": "one file per command group", "": "the ground floor"}
ENGINE_MODULES = {"limerank.ops.xor_attention.triton_kernels"}  # kernels cannot be written without their engine
OPTIONAL_ENGINES = {
    "matplotlib",
    "optuna",
    "tensorboard",
    "triton",
    "faiss",
    "ray",
    "redis",
    "valkey",
    "torchrec",
    "onnxruntime",
    "opentelemetry",
}
SERVICE_ENGINES = {"fastapi", "starlette", "uvicorn", "msgspec", "prometheus_client", "httpx"}


def room_of(module: str) -> str:
    """The room of a module named below `limerank`: the longest that the table of arrows knows."""
    parts = module.split(".")
    return next((r for n in range(len(parts), 0, -1) if (r := ".".join(parts[:n])) in ALLOWED), parts[0])


def name_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def is_module(name: str) -> bool:
    path = SOURCE.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def imported_modules(path: Path) -> set[str]:
    """Modules of limerank, named below it, that a file imports anywhere, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "limerank":
            module = ".".join(node.module.split(".")[1:])
            inside = {".".join(filter(None, (module, alias.name))) for alias in node.names}
            found |= {name if is_module(name) else module or "__init__" for name in inside}
        elif isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[2] for alias in node.names if alias.name.startswith("limerank.")}
    return found


def all_paths() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", all_paths(), ids=name_of)
def test_imports_follow_the_arrows(path: Path) -> None:
    """No room imports from a room that lies behind it: serve neither train nor ingest, no product room a study."""
    room = room_of(name_of(path))
    strangers = {room_of(module) for module in imported_modules(path)} - ALLOWED[room] - {room}
    assert not strangers, f"{path.relative_to(SOURCE)} must not import {strangers}"


def test_rooms_and_files_import_in_no_circle() -> None:
    """Neither rooms nor files: each can be read after what it rests on."""
    for level in (room_of, str):
        graph: dict[str, set[str]] = {}
        for path in all_paths():
            here = level(name_of(path))
            graph.setdefault(here, set()).update(level(module) for module in imported_modules(path))
            graph[here] -= {here, "__init__"}
        for package in [name for name in graph if level is str and is_module(f"{name}.__init__")]:
            graph[package] = {name for name in graph[package] if not name.startswith(f"{package}.")}
        list(TopologicalSorter(graph).static_order())  # raises CycleError, which shows the circle


def test_rooms_hold_at_most_a_dozen_files() -> None:
    """A room can be seen at a glance; the exceptions hold one file of each of many equal things."""
    for folder in {path.parent for path in all_paths()}:
        room = ".".join(folder.relative_to(SOURCE).parts)
        files = [path.name for path in folder.glob("*.py") if path.name != "__init__.py"]
        assert room in CROWDED or len(files) <= MOST_FILES, f"{room}: {len(files)} files"


def imported_at_once(path: Path) -> set[str]:
    """Modules whose import is a statement of the file itself, not of a function in it."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


@pytest.mark.parametrize("path", all_paths(), ids=name_of)
def test_optional_engines_are_imported_where_they_are_needed(path: Path) -> None:
    """Importing limerank never needs an optional engine: not directly, and not through a file of kernels."""
    names = imported_at_once(path)
    assert not ENGINE_MODULES & names
    if f"limerank.{name_of(path)}" not in ENGINE_MODULES:
        assert not {name.split(".")[0] for name in names} & OPTIONAL_ENGINES
    if room_of(name_of(path)) not in SERVICE:
        assert not {name.split(".")[0] for name in names} & SERVICE_ENGINES
        assert not {name.split(".")[1] for name in names if name.startswith("limerank.")} & SERVICE


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
