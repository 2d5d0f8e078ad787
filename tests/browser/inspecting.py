"""The inspector of a real `limerank serve` process in a real browser: opened, watched, and compared with the API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import httpx
from processes import PATIENCE, Served, serving

from browser.looking import DESKTOP, HEIGHT, Scheme

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Dialog, Locator, Page

WAIT = PATIENCE * 500
WATCHING = """
addEventListener("securitypolicyviolation", (event) =>
  console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`));
window.executed = 0;
"""
SETTLED = """() => !document.querySelector("[aria-busy], .waiting") && document.querySelector("main h1")"""
Json = dict[str, Any]


@dataclass
class Inspector:
    """One tab, and everything that went wrong in it."""

    tab: Page
    address: str
    key: str = ""
    told: list[str] = field(default_factory=list)
    """What the browser complained of, and what should never happen: other machines asked, dialogs, broken policies."""
    asked: list[str] = field(default_factory=list)
    """Addresses of all requests."""

    def open(self, view: str = "try", **params: str) -> None:
        """Open a view afresh, and wait until all of it is there."""
        self.tab.goto("about:blank")
        self.tab.goto(f"{self.address}/ui#/{view}?{urlencode(params)}")
        self.settle()

    def settle(self) -> None:
        """Wait for everything that was asked for."""
        self.tab.wait_for_function(SETTLED, timeout=WAIT)

    def find(self, selector: str) -> Locator:
        """An element, or several."""
        return self.tab.locator(selector)

    def click(self, selector: str) -> None:
        """Click it, and wait for what follows."""
        self.tab.locator(selector).first.click()
        self.settle()

    def call(self, method: str, path: str, body: Json | None = None) -> Json:
        """The same service, asked without the page."""
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        answer = httpx.request(
            method, f"{self.address}{path}", json=body, headers=headers, timeout=PATIENCE, trust_env=False
        )
        assert answer.status_code == 200, answer.text
        found: Json = answer.json()
        return found

    def ranked(self) -> list[str]:
        """The items of the ranking on the page, from the first on."""
        found: list[str] = self.tab.eval_on_selector_all(
            "#ranking tr[data-item]", "rows => rows.map(r => r.dataset.item)"
        )
        return found

    def wait_for_ranking(self, before: str) -> None:
        """Until the page shows another answer than this one."""
        self.tab.wait_for_function(
            "before => document.getElementById('ranking').dataset.request !== before", arg=before, timeout=WAIT
        )
        self.settle()

    def request_id(self) -> str:
        """Of the ranking on the page."""
        return self.find("#ranking").get_attribute("data-request") or ""

    def hear(self, said: ConsoleMessage) -> None:
        """What the browser complains of."""
        if said.type in ("error", "warning"):
            self.told.append(f"console: {said.text}")

    def refuse(self, dialog: Dialog) -> None:
        """The page has no dialogs of the browser's: one that opens was opened by data."""
        self.told.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def watch(self, url: str) -> None:
        """Remember an address; only those of the service are right."""
        self.asked.append(url)
        if not url.startswith((f"{self.address}/", "about:", "data:", "blob:")):
            self.told.append(f"asks for {url}")

    def sideways(self) -> int:
        """By how many pixels the page is wider than its window."""
        wider: int = self.tab.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        return wider


@contextmanager
def inspector(
    browser: Browser, address: str, width: int = DESKTOP, scheme: Scheme = "light", key: str = ""
) -> Iterator[Inspector]:
    """A tab of its own; `key` is one for calls without the page."""
    context = browser.new_context(viewport={"width": width, "height": HEIGHT}, color_scheme=scheme)
    try:
        tab = context.new_page()
        tab.set_default_timeout(WAIT)
        looked = Inspector(tab, address, key)
        tab.add_init_script(WATCHING)
        tab.on("console", looked.hear)
        tab.on("pageerror", lambda error: looked.told.append(f"script: {error}"))
        tab.on("dialog", looked.refuse)
        tab.on("request", lambda asked: looked.watch(asked.url))
        yield looked
    finally:
        context.close()


@contextmanager
def inspected(store: Path, *arguments: str) -> Iterator[Served]:
    """`limerank serve STORE` with patience: a shared machine may be slow."""
    with serving(store, "--threads=1", "--warmup-requests=1", "--deadline-ms=20000", *arguments) as served:
        yield served


def steps(*changes: Any) -> str:
    """Changes as the address has them."""
    return json.dumps(list(changes))
