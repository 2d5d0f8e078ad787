"""The examples for more than one machine agree with the code and with each other.

Nothing here starts a container. Files parse; images are public and named with a version; every `limerank` command has
the options that it is given, those of the first lines too; hosts, ports, volumes, secrets and probes are those of the
other parts and of the service. What a shell decides is run by one, with stand-ins for `python` and `pip`.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_docs import options_of_commands

from limerank.config import RunConfig
from limerank.models import check_model
from limerank.serve.bundles.store import ACTIVE
from limerank.serve.histories.in_redis.address import PASSWORD, PASSWORD_FILE
from limerank.service.operations import OPERATIONS
from limerank.service.options import ServiceOptions
from limerank.service.security.keys import KEYS
from limerank.training.checkpoint import LAST
from limerank.training.run import RECORD
from limerank.training.unfinished import unfinished_folder

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose-cluster.yaml").read_text())
MANIFESTS: list[dict[str, Any]] = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
PUBLIC = {"redis": r"7\.2-alpine", "rayproject/ray": r"\d+\.\d+\.\d+-py311"}


def of_kind(kind: str, name: str | None = None) -> list[dict[str, Any]]:
    return [one for one in MANIFESTS if one["kind"] == kind and name in (None, one["metadata"]["name"])]


def pods() -> dict[str, dict[str, Any]]:
    """What pods are made of, by the name of who makes them."""
    makers = [one for kind in ("Deployment", "StatefulSet", "Job") for one in of_kind(kind)]
    return {one["metadata"]["name"]: one["spec"]["template"]["spec"] for one in makers}


def containers() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, pod in pods().items():
        for container in [*pod["containers"], *pod.get("initContainers", [])]:
            yield name, container


def words() -> dict[str, list[str]]:
    """What each part runs, as a shell would cut it; `$$` of compose is `$`."""
    found = {}
    for name, service in COMPOSE["services"].items():
        said = [*service.get("entrypoint", []), *service.get("command", [])]
        found[f"compose {name}"] = [word for part in said for word in shlex.split(part.replace("$$", "$"))]
    for name, pod in pods().items():
        (container,) = pod["containers"]
        said = [*container.get("command", []), *container.get("args", [])]
        found[f"kubernetes {name}"] = [word for part in said for word in shlex.split(part)]
    return found


def limerank_commands() -> dict[str, list[str]]:
    """What follows `-m limerank`, by part."""
    found = {}
    for name, said in words().items():
        if "limerank" in said and said[said.index("limerank") - 1] == "-m":
            found[name] = said[said.index("limerank") + 1 :]
    return found


def instructions(file: str) -> list[str]:
    """What the first lines of a file say to type."""
    comment = (DEPLOY / file).read_text().partition("\n\n" if file.startswith("compose") else "\napiVersion")[0]
    return re.findall(r"^#   ((?:docker|kubectl|tar|printf) .*)$", comment, re.MULTILINE)


def script(part: str) -> str:
    """What a shell is given to run."""
    where, _, name = part.partition(" ")
    if where == "compose":
        service = COMPOSE["services"][name]
        said = [*service["entrypoint"], *service.get("command", [])]
    else:
        (container,) = pods()[name]["containers"]
        said = [*container["command"], *container["args"]]
    shell, flag, text = said
    assert (shell, flag) == ("sh", "-c")
    return str(text.replace("$$", "$"))


def run_script(
    part: str, folder: Path, moved: str, package: str = "limerank[serve]==1", **programs: str
) -> tuple[int, list[str]]:
    """A part's script with the volume at `moved` in a folder; `programs` stand in, and note what they are told."""
    (folder / "bin").mkdir(exist_ok=True)
    for name, code in programs.items():
        path = folder / "bin" / name
        path.write_text(f'#!/bin/sh\necho {name} "$@" >> {folder}/told\n{code}\n')
        path.chmod(0o755)
    (folder / "told").write_text("")
    (folder / moved.strip("/")).mkdir(exist_ok=True)
    environment = {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}", "LIMERANK_PACKAGE": package}
    text = re.sub(rf"(?<![\w./]){moved}\b", f"{folder}{moved}", script(part))
    done = subprocess.run(["sh", "-c", text], env=environment, check=False, capture_output=True)
    return done.returncode, (folder / "told").read_text().splitlines()


def in_bytes(size: str) -> int:
    """1gb as Redis says it, 2g of compose, 4Gi of Kubernetes: all of them powers of two."""
    number, unit = re.fullmatch(r"(\d+)(g|gb|Gi)", size).groups()  # type: ignore[union-attr]
    return int(number) * 2**30 if unit else 0


def option(said: list[str], name: str) -> str:
    """The value of `--name value` or `--name=value`."""
    if name in said:
        return said[said.index(name) + 1]
    return next(word.partition("=")[2] for word in said if word.startswith(f"{name}="))


def test_every_part_is_there() -> None:
    parts = {name.partition(" ")[2]: command[:1] for name, command in limerank_commands().items()}
    assert parts["limerank"] == ["serve"]
    assert parts["train"] == parts["train-0"] == parts["train-1"] == ["train"]
    assert parts["export"] == ["export"]
    assert {one["kind"] for one in MANIFESTS} >= {"ConfigMap", "Service", "Deployment", "StatefulSet", "Job"}
    assert set(COMPOSE["services"]) - {"train-0", "train-1"} == set(pods()) - {"train"}


def test_every_command_has_the_options_it_is_given() -> None:
    known = options_of_commands()
    for name, (command, *arguments) in ((n, c) for n, c in limerank_commands().items() if c):
        given = {word.partition("=")[0] for word in arguments if word.startswith("--")}
        unknown = given - known[command]
        assert not unknown, f"{name}: limerank {command} has no {unknown}"


@pytest.mark.parametrize("file", ["compose-cluster.yaml", "kubernetes.yaml"])
def test_what_is_to_be_typed_exists_and_leads_to_a_service(file: str) -> None:
    """Commands with their options, in an order in which each finds what it needs: the service wants bundle and key."""
    known, order = options_of_commands(), list[str]()
    for line in instructions(file):
        if behind := re.search(r"(?:-m limerank|--rm tool) (.*?)(?:   .*)?$", line):
            said = behind[1].split()
            order.append(" ".join(said[:2]) if " ".join(said[:2]) in known else said[0])
            assert {word for word in said if word.startswith("--")} <= known[order[-1]], line
        elif job := re.search(r"patch job (\w+)|--rm (export)$|up (train)-0 train-1$", line):
            order.append(job[job.lastindex or 0])
        for part in re.findall(r" (?:deploy|job)/(\w+)(?=\s)", line):
            assert part in pods(), line
    assert [step for step in order if step in {"train", "export", "keys create"}] == ["train", "export", "keys create"]
    assert order.index("bundle load") < order.index("bundle activate") < order.index("keys create")
    assert next(number for number, step in enumerate(order) if step.startswith("prepare ")) < order.index("train")


def test_there_is_a_tool_before_there_is_a_service() -> None:
    """The service does not start without a bundle and a key, so neither can be made in its pod: that waits for both."""
    (tool,) = pods()["tool"]["containers"]
    assert tool["command"] == ["sleep", "infinity"]
    assert "ports" not in tool
    mounts = {one["name"]: one["mountPath"] for one in tool["volumeMounts"]}
    assert mounts == {"packages": "/packages", "store": "/store", "runs": "/runs"}
    assert not [line for line in instructions("kubernetes.yaml") if "exec deploy/limerank" in line]
    (waits,) = (one for one in pods()["limerank"]["initContainers"] if one["name"] == "wait-for-bundle-and-key")
    assert re.findall(r"-f ([^\s;]+)", waits["command"][-1]) == [f"/store/{ACTIVE}", f"/store/{KEYS}"]
    assert {one["name"]: one["mountPath"] for one in waits["volumeMounts"]} == {"store": "/store"}


def test_tools_reach_the_histories_of_the_service() -> None:
    tool = COMPOSE["services"]["tool"]
    assert tool["environment"]["LIMERANK_SERVE_HISTORIES"] == option(words()["compose limerank"], "--histories")
    assert tool["environment"][PASSWORD_FILE] == "/run/secrets/redis_password"
    assert tool["secrets"] == ["redis_password"]
    told = {one["name"]: one.get("value") for one in pods()["tool"]["containers"][0]["env"]}
    assert told["LIMERANK_SERVE_HISTORIES"] == option(words()["kubernetes limerank"], "--histories")
    assert PASSWORD in told


def test_what_is_in_a_folder_of_compose_is_said_and_mounted() -> None:
    for name in ("tool", "install"):
        assert ".:/in:ro" in COMPOSE["services"][name]["volumes"]
    assert "deploy/, is /in" in (DEPLOY / "compose-cluster.yaml").read_text()


@pytest.mark.parametrize("part", ["compose install", "kubernetes install"])
def test_what_is_installed_is_not_installed_again(part: str, tmp_path: Path) -> None:
    """Compose runs it at every `up`, while others read the volume; what was broken off, or is another, is installed."""
    chown = {"chown": "exit 0"}
    code, told = run_script(part, tmp_path, "/packages", pip="exit 1", **chown)
    assert code != 0
    assert not (tmp_path / "packages/.installed").exists()
    code, told = run_script(part, tmp_path, "/packages", pip="exit 0", **chown)
    assert code == 0
    (pip,) = (line for line in told if line.startswith("pip"))
    assert pip.endswith(" limerank[serve]==1")
    assert "--constraint" in pip
    code, told = run_script(part, tmp_path, "/packages", pip="exit 0", **chown)
    assert code == 0
    assert not [line for line in told if line.startswith("pip")]
    (tmp_path / "packages/.installed").write_text("limerank[serve]==0\n")
    assert [
        line for line in run_script(part, tmp_path, "/packages", pip="exit 0", **chown)[1] if line.startswith("pip")
    ]


def test_a_wheel_of_ones_own_is_waited_for_and_installed(tmp_path: Path) -> None:
    """In Kubernetes it is copied to where the job waits, which is what `sleep` does here; in compose it is mounted."""
    wheel = tmp_path / "packages/limerank-1-py3-none-any.whl"
    copied = {"sleep": f"touch {wheel}", "pip": "exit 0"}
    code, told = run_script("kubernetes install", tmp_path, "/packages", f"{wheel}[serve,redis]", **copied)
    assert code == 0
    waits, pip = told
    assert waits == "sleep 2"
    assert pip.endswith(f" {wheel}[serve,redis]")
    typed = "\n".join(instructions("kubernetes.yaml"))
    (name,) = re.findall(r"exec job/install -- mv /packages/part /packages/(\S+)$", typed, re.MULTILINE)
    assert f"cat > /packages/part' < dist/{name}" in typed
    (version,) = re.findall(r'^version = "(\S+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert name == f"limerank-{version}-py3-none-any.whl"
    assert f"LIMERANK_PACKAGE: /packages/{name}[serve,redis]" in (DEPLOY / "kubernetes.yaml").read_text()
    assert f"LIMERANK_PACKAGE='/in/{name}[serve,redis]'" in (DEPLOY / "compose-cluster.yaml").read_text()


def test_both_install_the_tested_versions() -> None:
    assert "../constraints.txt:/constraints.txt:ro" in COMPOSE["services"]["install"]["volumes"]
    assert option(words()["compose install"], "--constraint") == "/constraints.txt"
    (container,) = pods()["install"]["containers"]
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    assert option(words()["kubernetes install"], "--constraint") == f"{mounts['constraints']}/constraints.txt"


def test_images_are_public_and_named_with_a_version() -> None:
    images = [service["image"] for service in COMPOSE["services"].values()]
    images += [container["image"] for _, container in containers()]
    for image in images:
        name, _, tag = image.partition(":")
        assert re.fullmatch(PUBLIC[name], tag), image
    assert not [name for name, service in COMPOSE["services"].items() if "build" in service]


def test_ray_is_the_version_that_is_tested() -> None:
    """Ray refuses nodes of another version; the image has the one of constraints.txt."""
    (version,) = re.findall(r"^ray==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert {one["image"] for _, one in containers() if "ray" in one["image"]} == {f"rayproject/ray:{version}-py311"}
    assert COMPOSE["services"]["install"]["image"] == f"rayproject/ray:{version}-py311"


def test_what_is_installed_is_this_version() -> None:
    (version,) = re.findall(r'^version = "(\S+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    wanted = f"limerank[serve,redis]=={version}"
    assert wanted in COMPOSE["services"]["install"]["environment"]["LIMERANK_PACKAGE"]
    assert of_kind("ConfigMap", "limerank")[0]["data"]["LIMERANK_PACKAGE"] == wanted


def test_rays_object_store_fits_its_shared_memory() -> None:
    """Left to itself Ray takes 30 % of the container's memory for it, and a file in /tmp where /dev/shm is smaller."""
    nodes = {name: said for name, said in words().items() if "ray start" in " ".join(said)}
    assert len(nodes) == 2 * len(("ray-head", "ray-worker", "limerank", "export"))
    for name, said in nodes.items():
        where, _, part = name.partition(" ")
        if where == "compose":
            shared = in_bytes(COMPOSE["services"][part]["shm_size"])
        else:
            (volume,) = (one for one in pods()[part]["volumes"] if one["name"] == "shm")
            shared = in_bytes(volume["emptyDir"]["sizeLimit"])
        assert 75 * 2**20 <= int(option(said, "--object-store-memory")) < 0.95 * shared, name


def test_workers_are_asked_about_themselves() -> None:
    """`ray health-check` asks the head's GCS, which is well when a worker's own node is not."""
    path = "/api/local_raylet_healthz"
    (container,) = pods()["ray-worker"]["containers"]
    (port,) = container["ports"]
    assert port["containerPort"] == int(option(words()["kubernetes ray-worker"], "--dashboard-agent-listen-port"))
    assert container["readinessProbe"]["httpGet"] == {"path": path, "port": port["name"]}
    worker = COMPOSE["services"]["ray-worker"]
    listens = option(words()["compose ray-worker"], "--dashboard-agent-listen-port")
    assert f"http://127.0.0.1:{listens}{path}" in worker["healthcheck"]["test"][-1]
    for name in ("limerank", "export"):
        assert COMPOSE["services"][name]["depends_on"]["ray-worker"] == {"condition": "service_healthy"}


@pytest.mark.parametrize("part", ["compose limerank", "kubernetes limerank"])
def test_services_ask_parts_that_exist_at_their_ports(part: str) -> None:
    said = words()[part]
    heads = words()[part.replace("limerank", "ray-head")]
    assert option(said, "--ray") == option(said, "--address") == f"ray-head:{option(heads, '--port')}"
    assert option(said, "--histories") == "redis://redis:6379/0"
    assert option(words()[part.replace("limerank", "export")], "--engine") == f"ray:{option(said, '--ray')}"
    assert option(words()[part.replace("limerank", "ray-worker")], "--address") == option(said, "--ray")
    named = {one["metadata"]["name"] for one in of_kind("Service")}
    assert {"redis", "ray-head"} <= (set(COMPOSE["services"]) if part.startswith("compose") else named)


def test_scorers_fit_the_workers() -> None:
    """Each reserves half a core, and those of the next bundle must fit beside them while it is activated."""
    for where, replicas in (
        ("compose", COMPOSE["services"]["ray-worker"]["deploy"]["replicas"]),
        ("kubernetes", of_kind("Deployment", "ray-worker")[0]["spec"]["replicas"]),
    ):
        said = words()[f"{where} limerank"]
        scorers = int(option(said, "--shards")) * int(option(said, "--replicas"))
        assert 2 * 0.5 * scorers <= replicas * int(option(words()[f"{where} ray-worker"], "--num-cpus"))


def test_redis_loses_nothing_it_acknowledged() -> None:
    conf = dict(line.split(maxsplit=1) for line in of_kind("ConfigMap", "redis")[0]["data"]["redis.conf"].splitlines())
    assert (conf["appendonly"], conf["appendfsync"], conf["maxmemory-policy"]) == ("yes", "always", "noeviction")
    said = words()["compose redis"]
    assert option(said, "--appendonly") == "yes"
    assert option(said, "--appendfsync") == "always"
    assert "events:/data" in COMPOSE["services"]["redis"]["volumes"]
    (redis,) = of_kind("StatefulSet", "redis")
    (claim,) = redis["spec"]["volumeClaimTemplates"]
    (container,) = redis["spec"]["template"]["spec"]["containers"]
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    assert mounts[claim["metadata"]["name"]] == conf["dir"] == "/data"


def test_redis_refuses_before_it_is_killed() -> None:
    """Without maxmemory it never refuses; half of the limit is left to who writes the append-only file anew."""
    conf = dict(line.split(maxsplit=1) for line in of_kind("ConfigMap", "redis")[0]["data"]["redis.conf"].splitlines())
    (container,) = pods()["redis"]["containers"]
    assert 0 < 2 * in_bytes(conf["maxmemory"]) <= in_bytes(container["resources"]["limits"]["memory"])
    service = COMPOSE["services"]["redis"]
    assert 0 < 2 * in_bytes(option(words()["compose redis"], "--maxmemory")) <= in_bytes(service["mem_limit"])


def test_probes_are_those_of_the_service() -> None:
    public = {operation.path for operation in OPERATIONS if operation.scope == "public"}
    (container,) = pods()["limerank"]["containers"]
    (port,) = container["ports"]
    assert port["containerPort"] == int(option(words()["kubernetes limerank"], "--port"))
    for probe, path in {"startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/readyz"}.items():
        assert container[probe]["httpGet"] == {"path": path, "port": port["name"]}
        assert path in public
    (service,) = of_kind("Service", "limerank")
    assert service["spec"]["ports"][0]["targetPort"] == port["name"]
    said = words()["compose limerank"]
    test = " ".join(COMPOSE["services"]["limerank"]["healthcheck"]["test"])
    assert f"127.0.0.1:{option(said, '--port')}/readyz" in test
    assert COMPOSE["services"]["limerank"]["ports"] == [f"127.0.0.1:8080:{option(said, '--port')}"]


def test_services_are_given_time_to_drain() -> None:
    grace = float(option(words()["kubernetes limerank"], "--grace-seconds"))
    assert pods()["limerank"]["terminationGracePeriodSeconds"] > grace
    period = COMPOSE["services"]["limerank"]["stop_grace_period"]
    assert float(period.removesuffix("s")) > float(option(words()["compose limerank"], "--grace-seconds"))


def test_one_owner_of_the_store() -> None:
    spec = of_kind("Deployment", "limerank")[0]["spec"]
    assert (spec["replicas"], spec["strategy"]["type"]) == (1, "Recreate")
    assert ServiceOptions().processes == 1, "with shards there is one process"


def test_ranks_find_the_first_one() -> None:
    (job,) = of_kind("Job", "train")
    said = words()["kubernetes train"]
    assert job["spec"]["completionMode"] == "Indexed"
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == int(option(said, "--nnodes"))
    subdomain = pods()["train"]["subdomain"]
    assert option(said, "--master-addr") == f"{job['metadata']['name']}-0.{subdomain}"
    (service,) = of_kind("Service", subdomain)
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["ports"][0]["port"] == int(option(said, "--master-port"))
    assert option(said, "--node-rank") == "$JOB_COMPLETION_INDEX"
    for number in (0, 1):
        part = COMPOSE["services"][f"train-{number}"]
        assert part["environment"]["NODE_RANK"] == str(number)
        assert option(words()[f"compose train-{number}"], "--master-addr") == "train-0"
    assert {"torch.distributed.run"} <= set(said)


@pytest.mark.parametrize("part", ["compose train-0", "compose train-1", "kubernetes train"])
def test_a_training_that_is_started_again_goes_on(part: str, tmp_path: Path) -> None:
    """Of a new pod torchrun counts no restarts: the command looks for what can be resumed itself."""
    new = tmp_path / "runs/new"
    config = "/etc/limerank/run.yaml" if part.startswith("kubernetes") else f"{tmp_path}/runs/run.yaml"

    def trains() -> str:
        code, (told,) = run_script(part, tmp_path, "/runs", python="exit 0")
        assert code == 0
        return told.partition(" -m limerank train ")[2]

    assert trains() == f"{config} --out {new}"
    unfinished_folder(new).mkdir()
    assert trains() == f"{config} --out {new}", "nothing to resume from: no checkpoint was written"
    for what in (LAST, RECORD):
        left = unfinished_folder(new) / what
        left.parent.mkdir(exist_ok=True)
        left.write_text("")
        assert trains() == f"--resume {new}", what
        left.unlink()
    assert {"--out", "--resume"} <= options_of_commands()["train"]
    assert "--max-restarts" not in script(part), "ranks restarted in one pod do not find those of a new one"


def test_the_run_of_the_example_is_a_run() -> None:
    config = RunConfig.model_validate(yaml.safe_load(of_kind("ConfigMap", "run")[0]["data"]["run.yaml"]))
    check_model(config.model, "run.yaml")
    mounts = {one["name"]: one["mountPath"] for one in pods()["train"]["containers"][0]["volumeMounts"]}
    assert f"{mounts['run']}/run.yaml --out" in script("kubernetes train")
    assert str(config.dataset).startswith(mounts["runs"])


def test_volumes_and_secrets_are_there() -> None:
    claims = {one["metadata"]["name"] for one in of_kind("PersistentVolumeClaim")}
    maps = {one["metadata"]["name"] for one in of_kind("ConfigMap")}
    maps |= set(
        re.findall(r"create configmap (\w+) --from-file=constraints\.txt", "\n".join(instructions("kubernetes.yaml")))
    )
    for name, pod in pods().items():
        own = {one["name"] for one in pod.get("volumes", [])} | ({"data"} if name == "redis" else set())
        for container in [*pod["containers"], *pod.get("initContainers", [])]:
            assert {one["name"] for one in container["volumeMounts"]} <= own, name
            assert {one["configMapRef"]["name"] for one in container.get("envFrom", [])} <= maps
        for volume in pod.get("volumes", []):
            assert volume.get("persistentVolumeClaim", {}).get("claimName") in {None, *claims}
            assert volume.get("configMap", {}).get("name") in {None, *maps}
    for name, service in COMPOSE["services"].items():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert source in COMPOSE["volumes"] or (DEPLOY / source).exists(), f"{name}: {volume}"
        assert set(service.get("secrets", [])) <= set(COMPOSE["secrets"])
        assert set(service.get("depends_on", {})) <= set(COMPOSE["services"])


def test_the_password_is_a_secret() -> None:
    """Neither in the files, nor in a URL; the service reads it where it looks for it."""
    assert not of_kind("Secret"), "made by a command, so that none is written down"
    for name in ("limerank", "redis", "tool"):
        (said,) = (one for one in pods()[name]["containers"][0]["env"] if one["name"].endswith("REDIS_PASSWORD"))
        assert said["valueFrom"]["secretKeyRef"] == {"name": "redis", "key": "password"}
    assert [one["name"] for one in pods()["limerank"]["containers"][0]["env"]] == ["LIMERANK_REDIS_PASSWORD"]
    environment = COMPOSE["services"]["limerank"]["environment"]
    assert environment["LIMERANK_REDIS_PASSWORD_FILE"] == "/run/secrets/redis_password"
    assert "@" not in option(words()["compose limerank"], "--histories")
    assert "redis.password" in (ROOT / ".gitignore").read_text()


def test_only_the_port_of_the_service_is_reached_from_elsewhere() -> None:
    """Ray and torchrun run what they are sent, and the pod of the service is a node of Ray: no pod is left out."""
    policies = {one["metadata"]["name"]: one["spec"] for one in of_kind("NetworkPolicy")}
    assert policies["among-parts"] == {
        "podSelector": {},  # every pod of the namespace
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [{"podSelector": {}}]}],
    }
    (port,) = pods()["limerank"]["containers"][0]["ports"]
    assert policies["service"] == {
        "podSelector": {"matchLabels": {"app": "limerank"}},
        "policyTypes": ["Ingress"],
        "ingress": [{"ports": [{"protocol": "TCP", "port": port["name"]}]}],
    }
    assert set(policies) == {"among-parts", "service"}
    assert {one["spec"].get("type", "ClusterIP") for one in of_kind("Service")} == {"ClusterIP"}
    assert [name for name, service in COMPOSE["services"].items() if "ports" in service] == ["limerank"]


def test_pods_have_limits_and_few_rights() -> None:
    for name, container in containers():
        assert set(container["resources"]) == {"requests", "limits"}, name
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        assert pods()[name]["securityContext"]["runAsNonRoot"], name
    for name, service in COMPOSE["services"].items():
        assert "no-new-privileges:true" in service["security_opt"], name
