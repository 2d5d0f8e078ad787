"""Optional engines: a test that needs one is skipped where it is missing, and fails on CI, which has them all."""

from __future__ import annotations

import importlib.util
import os

import pytest


def need(module: str, extra: str) -> None:
    """Go on only with this engine."""
    if importlib.util.find_spec(module) is None:
        missing = f"{module} is not installed: pip install 'limerank[{extra}]'"
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
