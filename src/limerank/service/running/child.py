"""One of several processes on a socket; `python -m limerank.service.running.child` is started by the supervisor."""

from __future__ import annotations

import json
import sys
from typing import Any

from limerank.service.running.processes import run_child
from limerank.threads import sleep_while_waiting


def main() -> None:
    """Answer until a signal comes."""
    sleep_while_waiting()
    sys.exit(run_child(json.loads(sys.argv[1]), say))


def say(facts: dict[str, Any]) -> None:
    """One line for the supervisor."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
