"""The negative control: the same service, but every ranking leaks memory, or a file, as a careless change would.

    python tests/soak/leaking.py memory|files serve STORE ...

The leak is planted from here; the product has no switch for it.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from limerank.cli import main
from limerank.serve.engine import Engine

LEAKED_BYTES = 64 * 1024
RANKINGS_PER_FILE, MOST_FILES = 50, 500
KEPT: list[bytes] = []
OPENED: list[int] = []


def plant(kind: str) -> None:
    """Make every ranking keep something for ever."""
    ranked = Engine._ranked

    def leaking(self: Engine, *arguments: Any, **named: Any) -> Any:
        KEPT.append(os.urandom(LEAKED_BYTES) if kind == "memory" else b"")
        if kind == "files" and len(KEPT) % RANKINGS_PER_FILE == 0 and len(OPENED) < MOST_FILES:
            OPENED.append(os.dup(2))
        return ranked(self, *arguments, **named)

    Engine._ranked = leaking  # type: ignore[method-assign]


if __name__ == "__main__":
    plant(sys.argv.pop(1))
    main()
