"""The files of the inspector: what is sent, with which headers, and what they may not contain."""

from __future__ import annotations

import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from urllib.parse import urljoin

import pytest
from serving import RunningService

import limerank
from limerank.service.routes.inspector import TYPES, assets

ROOT = Path(__file__).parents[2]
PACKAGE = Path(limerank.__file__).parent
FOLDER = PACKAGE / "service/ui"
SCRIPTS = sorted(FOLDER.glob("*.js"))
MOST_BYTES = 300_000
POLICY = {
    "default-src": ["'none'"],
    "script-src": ["'self'"],
    "style-src": ["'self'"],
    "connect-src": ["'self'"],
    "img-src": ["'self'", "data:"],
    "base-uri": ["'none'"],
    "form-action": ["'none'"],
    "frame-ancestors": ["'none'"],
}
SINKS = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc|setTimeout\(\s*[\"'`]"


def named_by_the_page(text: str) -> list[str]:
    return re.findall(r'(?:src|href)="(ui/[^"]+)"', text)


def test_the_page_and_all_it_names(service: RunningService) -> None:
    """Types, policy and caching: the page is asked for every time, its files never again."""
    page = service.http.get("/ui")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["cache-control"] == "no-cache"
    said = dict(part.split(maxsplit=1) for part in page.headers["content-security-policy"].split("; "))
    assert {name: value.split() for name, value in said.items()} == POLICY
    assert page.headers["x-frame-options"] == "DENY"
    assert page.headers["referrer-policy"] == "no-referrer"
    assert page.headers["x-content-type-options"] == "nosniff"
    assert len(named_by_the_page(page.text)) >= 5
    for named in named_by_the_page(page.text):
        file = service.http.get(urljoin("/ui", named))
        assert file.status_code == 200, named
        assert file.headers["content-type"].encode() == TYPES[Path(named).suffix]
        assert "immutable" in file.headers["cache-control"]
        assert file.headers["x-content-type-options"] == "nosniff"
        assert file.content == (FOLDER / Path(named).name).read_bytes()


def test_what_a_browser_has_is_not_sent_again(service: RunningService) -> None:
    """304 for the fingerprint that it names, alone or in a list; the whole for another one."""
    version, _ = assets()
    for path in ("/ui", f"/ui/{version}/app.js"):
        tag = service.http.get(path).headers["etag"]
        for given in (tag, f'"other", {tag}', f"W/{tag}"):
            kept = service.http.get(path, headers={"If-None-Match": given})
            assert kept.status_code == 304
            assert kept.content == b""
            assert kept.headers["etag"] == tag
        assert service.http.get(path, headers={"If-None-Match": '"other"'}).status_code == 200
    assert service.http.head("/ui").status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/ui/{v}/missing.js",
        "/ui/{v}/index.html",
        "/ui/0000000000000000/app.js",
        "/ui/{v}/..%2Fpage.py",
        "/ui/{v}/%2e%2e%2f%2e%2e%2fpage.py",
        "/ui/{v}/..%5Cpage.py",
        "/ui/{v}/app.js%00",
        "/ui/{v}/app.js/",
        "/ui/../v1/info/../../ui/%2e%2e/page.py",
        "/ui/{v}//etc/passwd",
        "/ui/",
    ],
)
def test_nothing_else_can_be_reached(service: RunningService, path: str) -> None:
    answer = service.http.get(path.format(v=assets()[0]))
    assert answer.status_code in (404, 422), answer.text
    assert b"import" not in answer.content


def test_all_modules_that_are_imported_are_there_and_none_is_forgotten() -> None:
    named = set(re.findall(r"ui/\{version\}/([\w.]+)", (FOLDER / "index.html").read_text()))
    for script in SCRIPTS:
        named |= set(re.findall(r"""(?:from|import\()\s*["']\./([\w.]+)["']""", script.read_text()))
    files = {path.name for path in FOLDER.iterdir()}
    assert named | {"index.html"} == files


def test_the_page_is_small_and_comes_with_the_package() -> None:
    """A wheel has what the patterns of pyproject.toml name."""
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < MOST_BYTES
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["limerank"]
    for path in FOLDER.iterdir():
        assert path.suffix in TYPES
        assert any(fnmatch(path.relative_to(PACKAGE).as_posix(), pattern) for pattern in patterns), path


@pytest.mark.parametrize("path", sorted(FOLDER.iterdir()), ids=lambda path: path.name)
def test_no_file_makes_markup_of_data_or_names_another_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not re.search(SINKS, text.replace("There is no innerHTML in this folder.", ""))
    addresses = set(re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}[^\s\"']*", text))
    assert addresses <= {"http://www.w3.org/2000/svg"}
    assert "@import" not in text
    if path.suffix == ".html":
        assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?! type=\"module\" src=)", text)


def test_the_key_is_kept_in_the_session_only() -> None:
    """No script writes to the storage that outlives a tab, or sets a cookie; one file touches the key at all."""
    for script in SCRIPTS:
        text = script.read_text()
        assert not re.search(r"localStorage|indexedDB|document\.cookie", text), script.name
        assert script.name == "api.js" or "sessionStorage" not in text
