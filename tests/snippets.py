"""Runs the Python snippets of the documentation, as test_docs.py asks for it, in a process of its own.

    python tests/snippets.py FOLDER PAGE...

Each page has one namespace and one folder, in which its snippets run from top to bottom. Pages may rely on what
`given` makes and on nothing else; a page that asks a service at ADDRESS has one, on `stores/demo`. Prints what went
wrong, by page, as JSON.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import sys
import traceback
from pathlib import Path
from typing import Any

import torch

import limerank as lr

SNIPPET = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PROMISE = re.compile(r"^ *print\(.*\)  # (.*)$", re.MULTILINE)
ADDRESS = "http://127.0.0.1:8080"
SMALL = lr.SimulatedConfig(users=60, items=200, topics=6, sessions=8, slots=6, seed=3)


def given(folder: Path) -> dict[str, Any]:
    """The files `datasets/simulated` and `stores/demo` (LIME-MHA), and the frames `events` and `items` of a log."""
    raw = lr.simulate(SMALL)
    data = lr.Dataset.build(raw, out=folder / "datasets/simulated", quiet=True)
    run = lr.train("lime-mha", data, out=folder / "runs/demo", epochs=1, max_history=20, quiet=True)
    run.export(folder / "stores/demo", quiet=True)
    assert raw.items is not None
    return {"events": raw.collect_events(), "items": raw.items}


def run_page(page: Path, names: dict[str, Any]) -> str:
    """What went wrong on a page, with the line; empty if nothing did."""
    text = page.read_text(encoding="utf-8")
    if not any(ADDRESS in snippet for snippet in SNIPPET.findall(text)):
        return run_snippets(page, text, names)
    from serving import serving

    with serving(Path("stores/demo")) as running:
        return run_snippets(page, text.replace(ADDRESS, running.url), names)


def run_snippets(page: Path, text: str, names: dict[str, Any]) -> str:
    """What went wrong in the snippets of a page's text."""
    for snippet in SNIPPET.finditer(text):
        above = text[: snippet.start(1)].count("\n")
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
                exec(compile("\n" * above + snippet[1], str(page), "exec"), names)
        except Exception:
            return traceback.format_exc(limit=-3)
        if (promised := PROMISE.findall(snippet[1])) and printed.getvalue().splitlines() != promised:
            return f"{page}, line {above + 1}: prints {printed.getvalue()!r}, not {promised}"
    return ""


def main() -> None:
    """One page after the other; none sees what another left behind."""
    folder, *pages = map(Path, sys.argv[1:])
    torch.set_num_threads(1)
    names = given(folder / "given")
    wrong = {}
    for number, page in enumerate(pages):
        shutil.copytree(folder / "given", folder / str(number))
        os.chdir(folder / str(number))
        wrong[str(page)] = run_page(page, dict(names))
    print(json.dumps(wrong))  # noqa: T201


if __name__ == "__main__":
    main()
