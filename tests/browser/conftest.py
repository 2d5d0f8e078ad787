"""Reports and the inspector in a real browser: `make test-browser`. The plain `make test` leaves this folder out.

Chromium comes from the system (Debian: `chromium`), playwright from the extra `browser`; nothing is downloaded. Where
one of them is missing tests are skipped and say so; on continuous integration (`CI`) that is a failure.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from limerank.api.run import Run

HERE = Path(__file__).parent
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Collected only when somebody names this folder or a file in it."""
    named = [Path(config.invocation_params.dir, argument.split("::")[0]).resolve() for argument in config.args]
    return None if any(path.is_relative_to(HERE) for path in named) else True


def missing(what: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The system's Chromium, without a window."""
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        missing("playwright is not installed: pip install 'limerank[browser]'")
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        missing(f"no Chromium on this machine (looked for {', '.join(NAMES)}): apt install chromium")
    root = ["--no-sandbox"] if os.geteuid() == 0 else []  # the sandbox refuses to run as root
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=root)
        yield started
        started.close()


@pytest.fixture(scope="session")
def two_bundles(runs: dict[str, Run], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store for the inspector, of a small log like the quickstart's: LIME-MHA is active, LIME-XOR was before."""
    store = tmp_path_factory.mktemp("inspected") / "store"
    for name in ("lime-xor", "lime-mha"):
        runs[name].publish(store, quiet=True)
    return store
