"""Tests of `make test` that take their size from the environment, at the size of the soak."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from soak.parts import SEED, SHORT
from soak.verdicts import Part, Verdict

ROOT = Path(__file__).parent.parent.parent
SUITES = {
    "F11: a store of histories against a model": (
        "tests/serve/histories/test_history_store.py::test_whatever_happens_the_store_is_what_a_dictionary_would_be",
        {"LIMERANK_STEPS": os.environ.get("SOAK_STEPS", "2000" if SHORT else "200000")},
    ),
    "B1: schemathesis on every operation": (
        "tests/service/test_schemathesis.py",
        {"LIMERANK_FUZZ_EXAMPLES": os.environ.get("SOAK_EXAMPLES", "20" if SHORT else "1000")},
    ),
}


def suites(folder: Path) -> Part:
    """F11 and B1 at their long sizes."""
    part = Part("suites")
    for name, (path, sizes) in SUITES.items():
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--basetemp={folder / 'tmp'}", path]
        environment = os.environ | sizes | {"LIMERANK_SEED": str(SEED)}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        lines = done.stdout.strip().splitlines()
        told = lines[-1] if lines else done.stderr[-300:]
        if done.returncode:
            sys.stderr.write(done.stdout[-5000:] + done.stderr[-2000:])
        part.figures[name] = {"tests": path, **sizes, "said": told}
        passed = re.search(r"\d+ passed", told)
        size = ", ".join(sizes.values())
        part.verdicts.append(Verdict(f"{name}, {size}", "passes", told, done.returncode == 0 and passed is not None))
    return part
