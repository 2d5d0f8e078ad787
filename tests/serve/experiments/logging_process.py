"""Logs rankings until it is killed: python logging_process.py STORE NAME [COUNT]; says when it has begun."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from limerank.serve.experiments.log import RankingLog
from limerank.serve.experiments.records import RankingRecord


def main() -> None:
    """`COUNT` records and a clean end, or without end."""
    store, name, *count = sys.argv[1:]
    log = RankingLog.open(Path(store))
    now = time.time_ns() // 1_000_000
    number, last = 0, int(count[0]) if count else None
    while number != last:
        items = [f"{name}-{number}-{position}" for position in range(20)]
        if log.record(RankingRecord(f"{name}-{number}", now, f"user-{number % 50}", "b", items=items)):
            number += 1
        else:
            log.flush()
        if number == 2000:
            log.flush()
            sys.stdout.write("begun\n")
            sys.stdout.flush()
    log.close()


if __name__ == "__main__":
    main()
