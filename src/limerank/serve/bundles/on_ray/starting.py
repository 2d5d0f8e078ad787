"""Starting a Ray on this machine: more than once if need be, with its files in a folder that goes with it."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from limerank.errors import UnavailableError

LONGEST_FOLDER = 40
"""Ray makes sockets in its folder, with some 65 characters more; a system allows 107."""
FOLDER_TRIES = 50
START_TRIES = 3
PATIENCE = {"RAY_gcs_server_port_wait_time_s": "60"}
"""Seconds that Ray waits for the first of its processes, unless somebody set them; it would give up after 30, which a
busy machine may need."""

log = logging.getLogger("limerank")


@contextmanager
def ray_folder() -> Iterator[Path]:
    """A folder for Ray's sockets and logs, that goes with it; its path is short enough for sockets."""
    usual = tempfile.gettempdir()
    folder = Path(tempfile.mkdtemp(prefix="limerank-ray-", dir=usual if len(usual) < LONGEST_FOLDER - 22 else "/tmp"))  # noqa: S108
    try:
        yield folder
    finally:
        for _ in range(FOLDER_TRIES):  # processes that are ending may write a last line
            shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists():
                break
            time.sleep(0.1)


def guard_own_ray() -> None:
    """Let the Ray that is about to be started here ask for a token that only this process and its children have.

    It listens on the network, and whoever can talk to Ray can run anything. Ray reads this when it is loaded: one that
    is loaded already stays as it is. Who has set RAY_AUTH_MODE has decided, and a token that is set is used.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if "ray" in sys.modules:
        return
    mode = os.environ.setdefault("RAY_AUTH_MODE", "token")
    if mode == "token" and "RAY_AUTH_TOKEN_PATH" not in os.environ:
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


def start_ray(folder: Path, cores: int, **options: Any) -> None:
    """`ray.init` of a Ray of our own, without dashboard; one that does not come up is given up for another.

    What is left of such a one is idle, and ends with the thread that started it.
    """
    import ray

    for name, value in PATIENCE.items():
        os.environ.setdefault(name, value)
    for left in reversed(range(START_TRIES)):
        try:
            with _interrupted_later():  # a Ray that is half started cannot be ended
                ray.init(
                    address="local",
                    num_cpus=cores,
                    include_dashboard=False,
                    log_to_driver=False,
                    _temp_dir=str(folder),
                    **options,
                )
        except Exception as error:  # Ray raises whatever it likes
            ray.shutdown()
            reason = f"Ray did not start on this machine ({' '.join(str(error).split())[:300]}{_last_words(folder)})"
            if not left:
                raise UnavailableError(f"{reason}; tried {START_TRIES} times") from error
            log.warning("%s; trying again", reason)
        else:
            return


def _last_words(folder: Path) -> str:
    """The last line that its first process wrote, if any."""
    for name in ("gcs_server.err", "gcs_server.out"):
        path = folder / "session_latest" / "logs" / name
        lines = path.read_text(errors="replace").strip().splitlines() if path.is_file() else []
        if lines:
            return f"; {name} ends with: {lines[-1][:300]}"
    return ""


@contextmanager
def _interrupted_later() -> Iterator[None]:
    """Ctrl-C inside counts at the end, however that comes; only the main thread gets it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: asked.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.default_int_handler)
        if asked:
            raise KeyboardInterrupt
