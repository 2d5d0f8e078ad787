"""`make docs` on a tiny tree: what it refuses, and what it makes of links that lead out of docs/."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from calling import python

ROOT = Path(__file__).parent.parent


def recipe_of_docs() -> list[str]:
    """What `make docs` runs: with `--quiet`, for one, MkDocs would count no warnings and never fail."""
    recipe = re.search(r"^docs:.*\n.*?/python (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    return recipe[1].split()


PAGE = """# Here

[a page](there.md), [a part of it](there.md#part), [a script](../examples/tiny.py), [the changelog](../CHANGELOG.md)

| `a\\|b` |
|---|

::: limerank.Part

<!-- operations of tiny.json -->
"""
INTERFACE = {
    "paths": {
        "/v1/rank": {
            "post": {
                "summary": "Order candidates.",
                "parameters": [{"name": "X-Request-ID", "in": "header", "description": "Echoed."}],
                "requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Body"}}}},
                "responses": {
                    "200": {"description": "A ranking."},
                    "422": {"$ref": "#/components/responses/Problem422"},
                },
            }
        }
    },
    "components": {
        "schemas": {
            "Body": {
                "required": ["user_id"],
                "properties": {
                    "user_id": {"anyOf": [{"type": "string", "maxLength": 256}, {"type": "integer"}]},
                    "limit": {"type": "integer", "default": 100},
                    "missing": {"enum": ["prior", "drop"], "default": "prior"},
                    "others": {"type": "array", "items": {"$ref": "#/components/schemas/Body"}, "default": []},
                },
            }
        }
    },
}


@pytest.fixture
def tiny_site(tmp_path: Path) -> Path:
    """Two pages, built as all of docs/ is."""
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    config["nav"] = ["index.md", "there.md", "examples/tiny.md", "CHANGELOG.md"]
    config["plugins"][1]["mkdocstrings"]["handlers"]["python"]["paths"] = [str(ROOT / "src")]
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(config))
    (tmp_path / "docs").mkdir()
    (tmp_path / "examples").mkdir()
    shutil.copy(ROOT / "mkdocs_hooks.py", tmp_path)
    (tmp_path / "docs/index.md").write_text(PAGE)
    (tmp_path / "docs/tiny.json").write_text(json.dumps(INTERFACE))
    (tmp_path / "docs/there.md").write_text("# There\n\n## Part\n")
    (tmp_path / "examples/tiny.py").write_text("print('tiny')\n")
    (tmp_path / "CHANGELOG.md").write_text("# Changes\n\n[back](docs/there.md)\n")
    return tmp_path


def test_the_site_follows_links_out_of_docs(tiny_site: Path) -> None:
    done = python(*recipe_of_docs(), cwd=tiny_site)
    assert done.returncode == 0, done.stderr
    page = (tiny_site / "site/index.html").read_text()
    for target in ("there.html", "there.html#part", "examples/tiny.html", "CHANGELOG.html"):
        assert f'href="{target}"' in page
    assert "<code>a|b</code>" in page
    assert 'id="limerank.Part.TEST"' in page
    for said in (
        "POST /v1/rank",
        "X-Request-ID (header): Echoed.",
        "string (maxLength 256) or integer",
        'href="#body"',
    ):
        assert said in page
    assert "tiny" in (tiny_site / "site/examples/tiny.html").read_text()
    assert 'href="there.html"' in (tiny_site / "site/CHANGELOG.html").read_text()
    assert not re.findall(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=.?https?:[^>]*>", page)


def test_a_dead_link_fails_the_site(tiny_site: Path) -> None:
    """A page, a part of a page, a file outside docs/, a page that the navigation forgets; each is named."""
    dead = "[a](gone.md) [b](there.md#gone) [c](../examples/gone.py)"
    (tiny_site / "docs/index.md").write_text(f"# Here\n\n{dead}\n")
    (tiny_site / "docs/forgotten.md").write_text("# Forgotten\n")
    done = python(*recipe_of_docs(), cwd=tiny_site)
    assert done.returncode == 1
    for named in ("'gone.md'", "'there.md#gone'", "'../examples/gone.py'", "forgotten.md"):
        assert named in done.stderr


def test_a_name_that_is_not_there_fails_the_site(tiny_site: Path) -> None:
    (tiny_site / "docs/index.md").write_text("# Here\n\n::: limerank.Gone\n")
    done = python(*recipe_of_docs(), cwd=tiny_site)
    assert done.returncode == 1
    assert "limerank.Gone" in done.stderr
