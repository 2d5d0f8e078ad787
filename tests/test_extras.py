"""Optional engines that are too old: one line with the extra to install, before anything of them is loaded."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from calling import python, refusal
from serving import copied

from limerank.api.run import Run
from limerank.errors import OLDEST, UnavailableError, require_extra
from limerank.serve.bundles.on_ray.connection import connected
from limerank.serve.histories.in_redis.store import RedisHistories
from limerank.serve.sharded.cluster import check_ray
from limerank.training.distributed.torchrec_tables import check_engine

ROOT = Path(__file__).parents[1]


def installed(folder: Path, module: str, version: str) -> None:
    """A package of this version is what is found in a folder."""
    (folder / module).mkdir(parents=True)
    (folder / module / "__init__.py").write_text("raise AssertionError('loaded')")
    (folder / f"{module}-{version}.dist-info").mkdir()
    (folder / f"{module}-{version}.dist-info" / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {module}\nVersion: {version}\n"
    )


def use_ray() -> None:
    with connected(None):
        raise AssertionError("there is one")


@pytest.mark.parametrize(
    ("module", "version", "use"),
    [
        ("ray", "2.49.2", use_ray),
        ("ray", "2.9.0rc1", lambda: check_ray(None)),
        ("redis", "5.2.1", lambda: RedisHistories("redis://127.0.0.1:1?prefix=x")),
        ("torchrec", "1.7.0+cpu", check_engine),
    ],
)
def test_an_engine_that_is_too_old(
    module: str, version: str, use: Callable[[], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(tmp_path / "site", module, version)
    monkeypatch.syspath_prepend(tmp_path / "site")
    oldest = ".".join(map(str, OLDEST[module]))
    said = f"this needs {module} {oldest} or newer, and {version} is installed: pip install 'limerank[{module}]'"
    with pytest.raises(UnavailableError, match=f"^{re.escape(said)}$"):
        use()


def test_the_command_says_so(runs: dict[str, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`export --engine ray` as well as what serves in shards; nothing is made."""
    installed(tmp_path / "site", "ray", "2.49.2")
    monkeypatch.syspath_prepend(tmp_path / "site")
    message = refusal(6, "export", runs["lime-mha"].path, "--store", tmp_path / "store", "--engine", "ray")
    assert message == ("error: this needs ray 2.52 or newer, and 2.49.2 is installed: pip install 'limerank[ray]'\n")
    assert not (tmp_path / "store").exists()


WITHOUT_REDIS = """
import sys
sys.modules["redis"] = None
from limerank.cli import main
main()
"""


def test_redis_that_is_missing(store: Path, tmp_path: Path) -> None:
    """In a process that cannot import it: one line with the extra, for a service and for what looks at histories."""
    shop, where = copied(store, tmp_path), ("--histories", "redis://127.0.0.1:1/0")
    for command in (("serve", shop, "--port", "0"), ("events", "status", shop)):
        done = python("-c", WITHOUT_REDIS, *command, *where)
        assert done.returncode == 6
        assert done.stderr == "error: this needs redis, which is not installed: pip install 'limerank[redis]'\n"


def test_versions_that_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest and newer ones, and one that says no version."""
    for number, version in enumerate(("2.52.0", "2.53", "3.0", "nightly")):
        with monkeypatch.context() as patched:
            installed(tmp_path / str(number), "ray", version)
            patched.syspath_prepend(tmp_path / str(number))
            require_extra("ray", "ray")


def test_the_oldest_versions_are_those_of_the_package() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for module, oldest in OLDEST.items():
        (bound,) = re.findall(rf"^{module}(?:\[\w+\])?>=(\d+)\.(\d+)", extras[module][0])
        assert tuple(map(int, bound)) == oldest
