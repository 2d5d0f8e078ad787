"""The commands of a page, typed one after the other by somebody who tries them, against a real `limerank serve`."""

from __future__ import annotations

import http.client
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).parent.parent.parent
WRITTEN = "http://127.0.0.1:8080"
"""The address that pages name; tests listen on a free port."""
SECONDS = 60


def commands_of(page: str, section: str = "") -> list[str]:
    """The commands in the blocks of a page, or of one of its sections, each in one line."""
    text = (ROOT / page).read_text()
    if section:
        text = re.split(r"^## ", text.split(f"\n## {section}\n")[1], flags=re.MULTILINE)[0]
    blocks = re.findall(r"^```\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [line for line in lines if line.startswith(("curl ", "limerank "))]


@contextmanager
def served(store: Path, *options: str) -> Iterator[str]:
    """`limerank serve` as a process on a port of its own: its address. It must end well when it is asked to."""
    command = [sys.executable, "-m", "limerank", "serve", str(store), "--port", "0", "--json", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as service:
        try:
            assert service.stdout is not None
            first = service.stdout.readline()
            assert first, service.communicate()[1]
            yield json.loads(first)["address"]
        finally:
            service.send_signal(signal.SIGTERM)
            _, said = service.communicate(timeout=SECONDS)
        assert service.returncode == 0, said


def type_curl(line: str, address: str, folder: Path | None = None, status: str = "2", **variables: str) -> Any:
    """A curl command as it is written, with curl itself where there is one: what it answers, as JSON."""
    for name, value in variables.items():
        line = line.replace(f"${name}", value)
    arguments = shlex.split(line.replace(WRITTEN, address))
    answer = _with_curl(arguments, folder) if shutil.which("curl") else without_curl(arguments, folder)
    body, _, code = answer.rpartition("\n")
    assert code.startswith(status), f"{line}\n{answer}"
    return json.loads(body)


def _with_curl(arguments: list[str], folder: Path | None) -> str:
    command = [*arguments, "--noproxy", "*", "--max-time", str(SECONDS), "--write-out", "\n%{http_code}"]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder).stdout


def without_curl(arguments: list[str], folder: Path | None) -> str:
    """The same request, for machines that have no curl."""
    method, headers, body, url = "", {}, None, ""
    rest = iter(arguments[1:])
    for one in rest:
        if one == "-X":
            method = next(rest)
        elif one == "-H":
            name, _, value = next(rest).partition(": ")
            headers[name] = value
        elif one == "-d":
            body = next(rest).encode()
        elif one == "-T":
            body = ((folder or Path()) / next(rest)).read_bytes()
        elif one != "-s":
            url = one
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=SECONDS)
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    connection.request(method or ("GET" if body is None else "POST"), target, body, headers)
    response = connection.getresponse()
    said = response.read().decode()
    connection.close()
    return f"{said}\n{response.status}"


def follow_the_readme(store: Path, names: dict[str, str] | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Type what the README says, and look at somebody else's ranking before and after; returns the two rankings.

    `names`: ids that have other names in this store.
    """
    serve, rank, happened, again = commands_of("README.md", "Serve it")
    for old, new in (names or {}).items():
        rank, happened, again = (line.replace(f'"{old}"', f'"{new}"') for line in (rank, happened, again))
    assert serve == "limerank serve limerank-quickstart/store"
    assert rank == again
    with served(store, "--deadline-ms", "20000") as address:
        other = re.sub(r'"u\d+"', '"u7"', rank)
        assert other != rank
        before, other_before = type_curl(rank, address), type_curl(other, address)
        assert before["user"]["known"]
        assert other_before["user"]["known"]
        told = type_curl(happened, address)
        assert (told["accepted"], told["durable"]) == (1, True)
        after, other_after = type_curl(again, address), type_curl(other, address)
    assert after["user"]["history_used"] >= before["user"]["history_used"]
    assert other_after["items"] == other_before["items"]
    return before, after
