"""One contestant of `limerank bench threads`: a process of its own, because how threads wait is read when torch loads.

    python -m limerank.bench.thread_work rank|train THREADS ITEMS WAITING

Says `ready`, then does its work once for each line on standard input and answers with the seconds it took and the
seconds of CPU.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial

import torch

from limerank.bench.made_up import BUILT_IN, random_request, sized_ranker
from limerank.bench.models import TrainingSteps, random_batch
from limerank.bench.threads import WORKERS
from limerank.ops.candidate import RowStore, best_candidates
from limerank.serve.scorer import choose_path, request_head
from limerank.serve.threads.workers import Workers

HISTORY, TOP = 100, 10
STEPS, REQUESTS, CANDIDATES = 20, 64, 8
SIZES = {"l": 32, "d": 32}


def ranking(items: int, workers: Workers | None) -> Callable[[], object]:
    """The candidate stage of LIME-MHA over `items` fp16 rows, on torch's threads, or on workers as in the engine."""
    ranker = sized_ranker("lime-mha", SIZES).eval()
    with torch.inference_mode():
        heads, links = ranker.row_shape()
        rows = RowStore(torch.rand(items, heads * links).half(), torch.randn(items, ranker.options.head[0]).half())
        head = request_head(ranker, ranker.encode_user(random_request(BUILT_IN, HISTORY)), choose_path(ranker, items))

    def work() -> None:
        with torch.inference_mode():
            best_candidates(rows, head, TOP, 0, None)

    def dealt(workers: Workers) -> None:
        workers.run(lambda: best_candidates(rows, head, TOP, 0, None, deal=workers.deal))

    return work if workers is None else partial(dealt, workers)


def training() -> Callable[[], object]:
    """Some steps of TTSN, whose operations are small."""
    steps = TrainingSteps(sized_ranker("ttsn", SIZES), random_batch(REQUESTS, HISTORY, CANDIDATES))

    def work() -> None:
        for _ in range(STEPS):
            steps.step()

    return work


def main() -> None:
    """Serve the parent until it closes the pipe."""
    name, threads, items, waiting = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    work = ranking(items, Workers(threads) if waiting == WORKERS else None) if name == "rank" else training()
    work()
    _say("ready")
    for _ in sys.stdin:
        started, used = time.perf_counter(), time.process_time()
        work()
        _say(json.dumps([time.perf_counter() - started, time.process_time() - used]))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
