"""Where limerank runs: what only some systems have is named in the docs, and the others are told in one line."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import limerank

ROOT = Path(__file__).parent.parent
SOURCE = Path(limerank.__file__).parent
PAGE = ROOT / "docs/reference/systems.md"

# what Python's documentation marks as not available on Windows, or on Linux only
MODULES = re.findall(
    r"\w+", "crypt curses fcntl grp nis ossaudiodev posix pty pwd readline resource spwd syslog termios tty"
)
OF_OS = """
    chown chroot copy_file_range fchmod fchown fork forkpty getegid geteuid getgid getgroups getloadavg getpgid
    getpriority getsid getuid initgroups killpg lchown lockf memfd_create mkfifo mknod nice openpty pidfd_open pipe2
    posix_fadvise posix_fallocate posix_spawn posix_spawnp pread preadv pwrite pwritev readv sched_getaffinity
    sched_setaffinity sched_yield sendfile setgid setpgid setpriority setsid setuid splice statvfs sync sysconf
    tcgetpgrp uname wait wait3 wait4 waitid writev O_CLOEXEC O_DIRECT O_DIRECTORY O_DSYNC O_NOFOLLOW O_NONBLOCK O_SYNC
    O_TMPFILE
"""
OF_SIGNAL = """
    SIGALRM SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGQUIT SIGSTOP SIGTSTP SIGUSR1 SIGUSR2 SIGWINCH alarm getitimer
    pause pthread_kill pthread_sigmask setitimer sigpending sigtimedwait sigwait sigwaitinfo
"""
SPECIAL = {"os": re.findall(r"\w+", OF_OS), "signal": re.findall(r"\w+", OF_SIGNAL), "time": ["tzset", "clock_settime"]}
PATHS = re.compile(r"/(?:proc|sys|dev)\b|\blib\w+\.so\b\S*")


def special_names(path: Path) -> Iterator[str]:
    """Modules, functions and paths in a file that some systems do not have; a path by its first folder."""
    tree = ast.parse(path.read_text())
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            yield from [module] if module in MODULES else []
            yield from (f"{module}.{alias.name}" for alias in node.names if alias.name in SPECIAL.get(module, []))
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.attr in SPECIAL.get(node.value.id, []):
                yield f"{node.value.id}.{node.attr}"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield from PATHS.findall(node.value)


def test_what_not_every_system_has_is_named_in_the_docs() -> None:
    """A new one needs a row in docs/reference/systems.md, and with it a thought of the other systems."""
    found = {name for path in SOURCE.rglob("*.py") for name in special_names(path)}
    special = {*MODULES, *(f"{module}.{name}" for module, names in SPECIAL.items() for name in names)}
    named = {name for name in re.findall(r"`([^`]+)`", PAGE.read_text()) if name in special or PATHS.fullmatch(name)}
    assert found == named


AS_ON_WINDOWS = f"""
import sys
sys.modules.update(dict.fromkeys({[name for name in MODULES if name != "posix"]}))  # their import fails
import limerank.cli
sys.platform = "win32"
sys.argv = ["limerank", *sys.argv[1:]]
limerank.cli.main()
"""


@pytest.mark.parametrize("arguments", [("models",), ("--help",), ("append", "nowhere", "--events", "x.csv", "--json")])
def test_windows_is_told_in_one_line(arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-c", AS_ON_WINDOWS, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 6, done.stderr
    (line,) = done.stderr.strip().splitlines()
    assert "does not run on Windows" in line
    assert "WSL" in line
    if "--json" in arguments:
        assert json.loads(done.stdout)["exit_code"] == 6
    else:
        assert not done.stdout


def test_classifiers_name_the_systems_that_the_docs_do_not_refuse() -> None:
    rows = re.findall(r"^\| (Linux|macOS|Windows)\b[^|]*\| ([^|]+) \|$", PAGE.read_text(), re.MULTILINE)
    assert {system for system, _ in rows} == {"Linux", "macOS", "Windows"}
    classifiers = {"Linux": "POSIX :: Linux", "macOS": "MacOS", "Windows": "Microsoft :: Windows"}
    wanted = {f"Operating System :: {classifiers[s]}" for s, state in rows if not state.startswith("not supported")}
    given = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    assert {one for one in given if one.startswith("Operating System")} == wanted
