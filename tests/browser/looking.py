"""Look at a page as a reader does: at a width, in a scheme, with everything closed and with every table opened."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from playwright.sync_api import Browser

LOOKING = (Path(__file__).parent / "looking.js").read_text()
DESKTOP, PHONE = 1280, 375
LEAST_TEXT = 9.0  # pixels, of text in pictures
HEIGHT = 900

Scheme = Literal["light", "dark"]


def problems_of(browser: Browser, page: Path, width: int, scheme: Scheme, picture: Path | None = None) -> list[str]:
    """Everything that is wrong with it; `picture` is where a screenshot goes."""
    context = browser.new_context(viewport={"width": width, "height": HEIGHT}, color_scheme=scheme)
    try:
        tab = context.new_page()
        told: list[str] = []
        address = page.resolve().as_uri()
        tab.on("request", lambda asked: None if asked.url == address else told.append(f"asks for {asked.url}"))
        tab.on("console", lambda said: told.append(f"console: {said.text}") if said.type != "log" else None)
        tab.on("pageerror", lambda error: told.append(f"script: {error}"))
        tab.goto(address)
        told += tab.evaluate(LOOKING, LEAST_TEXT)
        if picture is not None:
            tab.screenshot(path=picture, full_page=True)
        tab.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true })")
        told += tab.evaluate(LOOKING, LEAST_TEXT)
        return list(dict.fromkeys(told))
    finally:
        context.close()
