"""Under `torchrun`: the processes find each other, and whatever ends them is said once.

The first rank speaks before all others; one that fails alone speaks for itself, and those that then miss it are silent.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from limerank.errors import InterruptionError, LimerankError, UnavailableError
from limerank.training.distributed.ranks import Ranks, is_lost
from limerank.training.unfinished import finished_folder, is_resumable, resume_command, unfinished_folder

LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun, and others that start processes like it, leave in the environment."""
SAID = "said"
SECONDS_FOR_THE_FIRST = 2.0


def is_launched() -> bool:
    """Whether this process is one of several that were started together."""
    return all(name in os.environ for name in LAUNCHED) and int(os.environ["WORLD_SIZE"]) > 1


@contextmanager
def launched(out: Path | None) -> Iterator[Ranks]:
    """The processes that were started together, connected, while they train the run at `out`; or this one alone."""
    if not is_launched():
        yield Ranks()
        return
    store, ranks = _connected()
    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, signal.default_int_handler) if main else None  # ended as by Ctrl-C
    try:
        yield ranks
        dist.destroy_process_group()
        gc.collect()  # a thread of gloo that lives until Python ends may abort it; what is in a circle would keep one
        if main:
            signal.signal(signal.SIGTERM, before)
    except BaseException as error:
        if main:  # torchrun ends the others when it sees one end; who has something to say says it first
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
        if not _may_speak(store, ranks):
            code = error.exit_code if isinstance(error, LimerankError) else UnavailableError.exit_code
            interrupted = isinstance(error, KeyboardInterrupt)
            raise SystemExit(InterruptionError.exit_code if interrupted else code) from None
        if is_lost(error):
            raise UnavailableError(_lost(out)) from None
        raise


def _connected() -> tuple[Store, Ranks]:
    where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    try:
        meeting, rank, size = next(iter(rendezvous("env://")))
        # torchrun keeps what processes left there before it started them again
        store = PrefixStore(f"limerank/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", meeting)
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    except (RuntimeError, ValueError) as refused:
        reason = str(refused).splitlines()[0]
        raise UnavailableError(
            f"{where}: the processes of this training cannot find each other there ({reason}); start them all with "
            "torchrun and the same --rdzv-endpoint"
        ) from None
    return store, Ranks(rank, size)


def _may_speak(store: Store, ranks: Ranks) -> bool:
    """Whether nobody has said yet why the training ended."""
    try:
        until = time.monotonic() + (0 if ranks.is_first else SECONDS_FOR_THE_FIRST)
        while time.monotonic() < until:
            if store.add(SAID, 0):
                return False
            time.sleep(0.05)
        return bool(store.add(SAID, 1) == 1)
    except RuntimeError:  # the store ended with the rank that kept it
        return True


def _lost(out: Path | None) -> str:
    ended = "another process of this training ended, so this one cannot go on"
    if out is None or not is_resumable(unfinished_folder(finished_folder(out))):
        return f"{ended}; what it said is above, and no checkpoint had been written yet: train anew"
    again = resume_command(finished_folder(out))
    return f"{ended}; from the last checkpoint, on as many processes as you like, goes on: {again}"
