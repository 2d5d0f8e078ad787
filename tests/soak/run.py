"""`make soak`: long runs against the real service, a table, and docs/results/soak.json.

    SOAK_MINUTES=60 SOAK_PARTS=memory,kills SOAK_OUT=soak.json make soak

Takes SOAK_MINUTES and about two hours more, most of them for SOAK_KILLS (500), SOAK_STEPS (200,000) and SOAK_EXAMPLES
(1,000); below 10 minutes every part is shorter, to try the soak itself. Parts that are not named stay in the file as
they were. Exits with 1 if anything that does not depend on how fast the machine is was not held.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import limerank
from limerank.files import write_json
from limerank.threads import available_cores
from soak import loads, parts, suites
from soak.verdicts import Part

ROOT = Path(__file__).parent.parent.parent
PARTS: dict[str, Callable[[Path], Part]] = {
    "swaps": parts.swaps,
    "activations": parts.activations,
    "load_held": loads.load_held,
    "overload": loads.overload,
    "kills": parts.kills,
    "suites": suites.suites,
    "leak_control": parts.leak_control,
    "memory": parts.memory,
}


def main() -> int:
    """Run what SOAK_PARTS names, by default everything; parts that are not run again stay in the file as they are."""
    chosen = [name for name in os.environ.get("SOAK_PARTS", ",".join(PARTS)).split(",") if name]
    out = Path(os.environ.get("SOAK_OUT", ROOT / "docs/results/soak.json"))
    record: dict[str, dict[str, Any]] = {}
    if out.exists() and out.stat().st_size:  # `mktemp` makes an empty one
        record = {part["name"]: part for part in json.loads(out.read_text())["parts"]}
    held = True
    for name in chosen:
        _say(f"== {name}")
        part = _run(name)
        held = held and part.held
        record[name] = asdict(part) | {"held": part.held}
        write_json(out, _about([record[one] for one in PARTS if one in record]))  # no hour is lost to what comes later
    return 0 if held else 1


def _run(name: str) -> Part:
    """One part, in a folder of its own."""
    started, load = time.perf_counter(), os.getloadavg()
    with tempfile.TemporaryDirectory(prefix="limerank-soak-") as folder:
        part = PARTS[name](Path(folder))
    part.seconds, part.minutes, part.commit = time.perf_counter() - started, parts.MINUTES, _commit()
    part.load_average = [load[0], os.getloadavg()[0]]
    for one in part.verdicts:
        mark = "held" if one.reached else "MISSED" if one.timed else "FAILED"
        _say(f"{mark:7} {one.name}: {one.measured} (wanted: {one.goal})")
    return part


def _about(done: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "limerank": limerank.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "processor": platform.processor() or platform.machine(),
        "cores": available_cores(),
        "seed": parts.SEED,
        "held": all(part["held"] for part in done),
        "parts": done,
    }


def _commit() -> str | None:
    asked = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return asked.stdout.strip() or None


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
