"""The pictures of docs/how-to/look-into-a-ranking.md, taken from a service that runs and has had traffic.

python benchmarks/inspector_pictures.py http://127.0.0.1:8080 USER CLICKED_ITEM
"""

from __future__ import annotations

import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

IMAGES = Path(__file__).parents[1] / "docs/images"
DESKTOP, PHONE = (1280, 900), (375, 812)
MOST_BYTES = 150_000
SETTLED = '() => !document.querySelector("[aria-busy], .waiting") && document.querySelector("main h1")'
COLORS = 128
GAP = 24


def taken(browser: Browser, address: str, size: tuple[int, int], scheme: Any, height: int) -> Image.Image:
    """A view from its top to so many pixels further down."""
    context = browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)
    tab = context.new_page()
    tab.goto(address)
    tab.wait_for_function(SETTLED)
    tab.wait_for_timeout(2_500)  # explanations of what moved, and plots that fill
    shown = tab.screenshot(full_page=True)
    context.close()
    picture = Image.open(io.BytesIO(shown)).convert("RGB")
    return picture.crop((0, 0, picture.width, min(height, picture.height)))


def beside(pictures: list[Image.Image]) -> Image.Image:
    """Several in a row."""
    joined = Image.new(
        "RGB", (sum(one.width + GAP for one in pictures) - GAP, max(one.height for one in pictures)), "#888"
    )
    across = 0
    for one in pictures:
        joined.paste(one, (across, 0))
        across += one.width + GAP
    return joined


def save(picture: Image.Image, name: str) -> None:
    """With few colors, which is what such pictures have."""
    path = IMAGES / f"inspector-{name}.png"
    picture.quantize(COLORS, dither=Image.Dither.NONE).save(path, optimize=True)
    if path.stat().st_size > MOST_BYTES:
        raise SystemExit(f"{path.name} has {path.stat().st_size:,} bytes, more than {MOST_BYTES:,}")
    sys.stdout.write(f"{path.name}: {path.stat().st_size:,} bytes\n")


def main(address: str, user: str, item: str) -> None:
    """Take all of them."""
    changes = json.dumps([["context", "device", "phone"], ["event", item, {"clicked": "1", "watched_fraction": 0.97}]])

    def view(name: str, **params: str) -> str:
        return f"{address}/ui#/{name}?{urlencode(params)}"

    tried = view("try", user=user, steps=changes)
    why = view("why", user=user, steps=changes, item=item)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        save(taken(browser, tried, DESKTOP, "light", 1300), "try")
        save(taken(browser, why, DESKTOP, "light", 1300), "why")
        save(taken(browser, view("links", link="30"), DESKTOP, "light", 1580), "links")
        save(taken(browser, view("compare", run="1", user=user), DESKTOP, "dark", 1130), "compare")
        save(taken(browser, view("operate"), DESKTOP, "dark", 1300), "operate")
        phones = [(tried, "light"), (why, "dark"), (view("links", link="30"), "light"), (view("operate"), "dark")]
        save(beside([taken(browser, one, PHONE, scheme, 1300) for one, scheme in phones]), "phone")
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:4])
