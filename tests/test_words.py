"""One word for one thing: words that the glossary of docs/explanation/house.md retires are refused."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
GLOSSARY = ROOT / "docs/explanation/house.md"
SOURCES = sorted([*ROOT.glob("src/limerank/**/*.py"), *ROOT.glob("examples/*.py")])
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.yaml")])
ROW = re.compile(r"^\|[^|]*\|[^|]*\|([^|]*)\|$", re.MULTILINE)


def retired() -> tuple[set[str], list[str]]:
    """Identifiers (in backticks) and phrases (in quotation marks) of the last column."""
    cells = " ".join(ROW.findall(GLOSSARY.read_text().partition("## The words")[2]))
    return set(re.findall(r"`(\w+)`", cells)), re.findall(r'"([^"]+)"', cells)


IDENTIFIERS, PHRASES = retired()
PHRASE = re.compile("|".join(rf"\b{phrase}s?\b".replace(" ", r"[\s-]+") for phrase in PHRASES), re.IGNORECASE)


def bound(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every name that code gives: to functions, classes, arguments, variables, attributes, imports and keywords."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.alias):
            yield node.lineno, node.asname or node.name
        elif isinstance(node, ast.keyword) and node.arg is not None:
            yield node.value.lineno, node.arg


def retired_in(name: str) -> bool:
    return name.strip("_") in IDENTIFIERS


def test_the_glossary_retires_words() -> None:
    """The test below reads the page: a table that cannot be read must not pass for one that forbids nothing."""
    assert {"EventLog", "place", "share"} <= IDENTIFIERS
    assert "event log" in PHRASES
    given = {name for _, name in bound(ast.parse("def f(place, *, share=1): self._when = g(moment=2)"))}
    assert given == {"f", "place", "share", "_when", "moment"}
    assert PHRASE.search("two Event-logs")
    assert not PHRASE.search("an event of the log")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_code_uses_the_words_of_the_house(path: Path) -> None:
    text = path.read_text()
    assert not retired_in(path.stem), f"{path.name} is named with a retired word"
    found = sorted({(line, name) for line, name in bound(ast.parse(text)) if retired_in(name)})
    assert not found, f"retired names; see the words in {GLOSSARY.relative_to(ROOT)}"
    assert not [match[0] for match in PHRASE.finditer(text)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_docs_use_the_words_of_the_house(page: Path) -> None:
    text = page.read_text()
    if page == GLOSSARY:
        text = text.partition("## The words")[0]
    assert not [match[0] for match in PHRASE.finditer(text)]
