"""The examples of deploy/ agree with the code: files that parse, options, metrics, routes and reasons that exist.

Nothing here builds an image or starts systemd: these tests need neither.
"""

from __future__ import annotations

import json
import re
import shlex
from configparser import ConfigParser
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_docs import options_of_commands

from limerank.service.metrics import Metrics
from limerank.service.operations import OPERATIONS
from limerank.service.options import ServiceOptions
from limerank.service.problems import KINDS

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
GUIDE = ROOT / "docs/how-to/operate-a-service.md"
PREFIX = "LIMERANK_SERVE_"


def read_yaml(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text())


def unit() -> dict[str, dict[str, list[str]]]:
    """A unit file by section and key; keys may repeat, which ConfigParser alone does not understand."""
    found: dict[str, dict[str, list[str]]] = {}
    section = ""
    for line in (DEPLOY / "limerank.service").read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(section, {}).setdefault(key, []).append(value)
    return found


def serve_commands() -> dict[str, list[str]]:
    """The arguments behind `serve` of each example, by file."""
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    (command,) = re.findall(r"^CMD (\[.*\])$", dockerfile, re.MULTILINE)
    (exec_start,) = unit()["Service"]["ExecStart"]
    return {
        "Dockerfile": json.loads(command),
        "compose.yaml": read_yaml("compose.yaml")["services"]["limerank"]["command"],
        "limerank.service": shlex.split(exec_start)[1:],
    }


def test_every_option_of_the_examples_exists() -> None:
    known = options_of_commands()["serve"]
    for name, (command, _, *options) in serve_commands().items():
        assert command == "serve", name
        assert {option for option in options if option.startswith("--")} <= known, name


def test_every_variable_of_the_examples_is_an_option() -> None:
    known = {f"{PREFIX}{field.name.upper()}" for field in fields(ServiceOptions)}
    text = "\n".join(path.read_text() for path in [*DEPLOY.iterdir(), GUIDE])
    named = set(re.findall(rf"\b{PREFIX}[A-Z_]+\b", text))
    assert named
    assert named <= known


def test_a_service_is_given_time_to_drain() -> None:
    """Whoever stops it waits longer than it may take to answer what is under way."""
    commands = serve_commands()
    grace = {name: float(c[c.index("--grace-seconds") + 1]) for name, c in commands.items() if "--grace-seconds" in c}
    assert int(unit()["Service"]["TimeoutStopSec"][0]) > grace["limerank.service"]
    compose = read_yaml("compose.yaml")["services"]["limerank"]
    assert int(compose["stop_grace_period"].removesuffix("s")) > grace["compose.yaml"]


def test_the_unit_is_a_unit() -> None:
    parser = ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(DEPLOY / "limerank.service")
    assert parser.sections() == ["Unit", "Service", "Install"]
    service = unit()["Service"]
    assert service["User"] != ["root"]
    assert service["NoNewPrivileges"] == ["yes"]
    assert service["ProtectSystem"] == ["strict"]
    assert service["StateDirectory"] == ["limerank"]
    assert "/var/lib/limerank/store" in service["ExecStart"][0]


def test_containers_have_no_more_rights_than_they_need() -> None:
    compose = read_yaml("compose.yaml")
    for name, service in compose["services"].items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert "no-new-privileges:true" in service["security_opt"], name
        for port in service["ports"]:
            assert port.startswith("127.0.0.1:"), "published on this machine only"
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert (DEPLOY / source).is_file() or source in compose["volumes"], volume
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    assert re.search(r"^USER (?!0|root)", dockerfile, re.MULTILINE)
    assert "HEALTHCHECK" in dockerfile
    for copied in re.findall(r"^COPY (?!--from)(.*) \S+$", dockerfile, re.MULTILINE):
        for source in copied.split():
            assert (ROOT / source).exists(), source
            assert f"!{source}" in (DEPLOY / "Dockerfile.dockerignore").read_text().split()


def test_no_example_holds_a_key() -> None:
    for path in DEPLOY.iterdir():
        assert not re.search(r"lr_[0-9a-f]{8}_", path.read_text()), path


EXPRESSIONS = {
    "alerts.yaml": [rule["expr"] for group in read_yaml("alerts.yaml")["groups"] for rule in group["rules"]],
    "grafana.json": [
        target["expr"]
        for panel in json.loads((DEPLOY / "grafana.json").read_text())["panels"]
        for target in panel["targets"]
    ],
}


def exposed() -> dict[str, str]:
    """The series that the service exposes, and what they are."""
    said = re.findall(r"^# TYPE (\S+) (\w+)$", Metrics().text().decode(), re.MULTILINE)
    families = {name: kind for name, kind in said if not name.endswith("_created")}
    parts = {"histogram": ("_bucket", "_sum", "_count")}
    return {f"{name}{part}": kind for name, kind in families.items() for part in parts.get(kind, ("",))}


@pytest.mark.parametrize("name", sorted(EXPRESSIONS))
def test_every_metric_of_the_examples_exists(name: str) -> None:
    """With the routes, codes and reasons that they are asked for by; and counters are read as rates."""
    series = exposed()
    for expression in EXPRESSIONS[name]:
        used = set(re.findall(r"\b(?:limerank|process|python)_\w+", expression))
        assert used <= set(series), used - set(series)
        assert used or "up{" in expression
        for one in used:
            cumulative = series[one] == "histogram" or one.endswith("_total")
            assert not cumulative or re.search(rf"(?:rate|increase)\({one}\b", expression), expression
        for route in re.findall(r'route="([^"]+)"', expression):
            assert route in {operation.path for operation in OPERATIONS}
        for reason in re.findall(r'reason="([^"]+)"', expression):
            assert reason in KINDS
        assert expression.count("(") == expression.count(")")


def test_alerts_say_what_to_do() -> None:
    for group in read_yaml("alerts.yaml")["groups"]:
        for rule in group["rules"]:
            assert rule["labels"]["severity"] in ("page", "warn")
            assert rule["annotations"]["summary"]
            assert rule["annotations"]["action"]
            assert f"`{rule['alert']}`" in GUIDE.read_text(), f"{rule['alert']} is not in the guide"


def test_every_metric_of_the_guide_exists() -> None:
    """And the guide names every metric there is."""
    families = {
        re.sub("_(bucket|sum|count)$", "", name) if kind == "histogram" else name for name, kind in exposed().items()
    }
    assert set(re.findall(r"`(limerank_\w+)", GUIDE.read_text())) == families


def test_the_guide_explains_every_problem() -> None:
    rows = set(re.findall(r"^\| `([a-z-]+)` \| \d{3} \|", GUIDE.read_text(), re.MULTILINE))
    assert rows == set(KINDS)
