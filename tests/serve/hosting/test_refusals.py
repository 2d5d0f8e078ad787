"""What the files around a host may be besides well: an owner that cannot say so, notices that nobody wrote."""

from __future__ import annotations

import json
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from limerank.errors import UnavailableError
from limerank.serve.hosting.erasure import FILE as NOTICES
from limerank.serve.hosting.host import Host
from limerank.serve.hosting.owner import FILE, Owner

pytest_plugins = ("host_fixtures",)


def test_a_store_that_nobody_can_own_says_so(tmp_path: Path) -> None:
    """Nothing may be written there, as in a folder that is read-only: an error that names the file."""
    (tmp_path / FILE).mkdir()
    with pytest.raises(UnavailableError, match=FILE):
        Owner(tmp_path)


def test_a_full_disk_does_not_keep_a_store_from_being_served(tmp_path: Path) -> None:
    """Who owns it cannot be said there then; it is owned all the same."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
        owner = Owner(tmp_path)
        owner.release()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    Owner(tmp_path).release()


def test_notices_that_somebody_damaged_do_not_stop_an_erasure(opened: Callable[..., Host], hosted_store: Path) -> None:
    """They are only about the last minute."""
    host = opened()
    (hosted_store / NOTICES).write_text(json.dumps([{"time": "x", "key": "k", "digest": None}]))
    host.look()
    assert host.erase_user("u1").deleted["events"] == 0
