"""The documentation agrees with the code: links resolve, defaults and commands are the real ones."""

from __future__ import annotations

import json
import pkgutil
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from calling import python
from pydantic.fields import FieldInfo

from limerank.config import DistributedConfig, RunConfig, TrainConfig
from limerank.data.sources.table.read import Description, read_description
from limerank.models import RANKERS
from limerank.models.presets import PRESETS
from limerank.training.configuration_text import render_configuration

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


PAGES_OF_TODAY = [page for page in PAGES if page.name != "CHANGELOG.md"]


@pytest.mark.parametrize("page", PAGES_OF_TODAY, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_names_of_modules_and_files_exist(page: Path) -> None:
    """`limerank.room.module.name`, `tests/file.py` and `room/file.py`, also of a room of data, in backticks."""
    text = page.read_text()
    for name in re.findall(r"`(limerank(?:\.\w+)+)[`(]", text):
        assert resolves(name), name
    for path in re.findall(r"`([\w/]+/\w+\.py)`", text):
        assert any((ROOT / above / path).is_file() for above in ("", "src/limerank", "src/limerank/data")), path


def resolves(name: str) -> bool:
    """Whether a dotted name can be imported, or is an attribute of what can."""
    try:
        return bool(pkgutil.resolve_name(name))
    except (ImportError, AttributeError):
        return False


def test_the_plan_of_the_house_shows_every_room() -> None:
    plan = (ROOT / "docs/explanation/house.md").read_text().split("```")[1]
    shown = re.findall(r"^( *)(\w+)/ ", plan, re.MULTILINE)
    source = ROOT / "src/limerank"
    rooms = {path.parent.name for depth in ("*", "data/*") for path in source.glob(f"{depth}/__init__.py")}
    assert {name for _, name in shown} == rooms


def test_configuration_page_lists_every_key_with_its_default() -> None:
    """`model.key` for the default that rankers share, `<ranker>.key` where one differs, and no row too many."""
    text = (ROOT / "docs/reference/configuration.md").read_text()
    listed = {
        key: yaml.safe_load(shown) for key, shown in re.findall(r"^\| `([\w.-]+)` \| ([^|]+?) \|", text, re.MULTILINE)
    }
    assert {"dataset", "model.name"} <= set(listed)
    used = {"dataset", "model.name"}

    def check(field: FieldInfo, *keys: str) -> None:
        key = next(key for key in keys if key in listed)
        value = field.get_default(call_default_factory=True)
        assert listed[key] == (list(value) if isinstance(value, tuple) else value), keys
        used.add(key)

    for name in ("seed", "preset"):
        check(RunConfig.model_fields[name], name)
    for name, field in TrainConfig.model_fields.items():
        check(field, f"train.{name}")
    for name, field in DistributedConfig.model_fields.items():
        check(field, f"distributed.{name}")
    for ranker in RANKERS.values():
        for name, field in ranker.options_type.model_fields.items():
            check(field, f"{ranker.name}.{name}", f"model.{name}")
    assert set(listed) == used
    for known in RANKERS:
        assert f"`{known}`" in text


def test_configuration_page_shows_the_presets() -> None:
    text = (ROOT / "docs/reference/configuration.md").read_text()
    keys = ["learning_rate", "batch_requests", "heads", "epochs", "width", "links", "max_history", "head"]
    table = re.search(r"^\| \| (.*?)\n\n", text, re.MULTILINE | re.DOTALL)
    assert table is not None
    names, _, *rows = ([cell.strip(" `") for cell in line.split("|")[2:-1]] for line in table[0].strip().splitlines())
    assert names == list(PRESETS)
    for place, preset in enumerate(PRESETS.values()):
        assert [yaml.safe_load(row[place]) for row in rows] == [preset.model_dump(mode="json")[key] for key in keys]


@pytest.mark.parametrize("path", sorted(ROOT.glob("examples/*.yaml")), ids=lambda path: path.name)
def test_examples_are_what_models_prints(path: Path) -> None:
    """limerank models --config NAME --dataset ../datasets/simulated > examples/NAME.yaml"""
    assert path.read_text() == render_configuration(path.stem, "../datasets/simulated")


def test_the_description_in_the_how_to_is_valid() -> None:
    text = (ROOT / "docs/how-to/bring-your-own-log.md").read_text()
    (block,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert Description.model_validate(yaml.safe_load(block)).tasks[0].name == "click"


@pytest.mark.parametrize("path", sorted(ROOT.glob("examples/datasets/*.yaml")), ids=lambda path: path.name)
def test_example_descriptions_are_valid(path: Path) -> None:
    assert read_description(path)[0].tasks


def options_of_commands() -> dict[str, set[str]]:
    """Every command, such as `train` or `bundle list`, with its options."""
    from typer.main import get_command

    from limerank.cli import app

    found: dict[str, set[str]] = {}

    def walk(command: Any, *path: str) -> None:
        for name, inner in getattr(command, "commands", {}).items():
            walk(inner, *path, name)
        found[" ".join(path)] = {"--help", *(o for one in command.params for o in (*one.opts, *one.secondary_opts))}

    walk(get_command(app))
    return found


def test_commands_in_the_docs_exist() -> None:
    """In blocks of code and in backticks, with their options; `a|b` stands for any of them."""
    known = options_of_commands()
    for page in PAGES:
        text = page.read_text()
        code = "\n".join(re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
        quoted = re.findall(
            r"`limerank ([a-z][^`]*)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
        )
        for line in [*re.findall(r"^limerank ([a-z][^#\n]*)", code, re.MULTILINE), *quoted]:
            first, *others = line.replace("\\|", "|").split()
            group = any(command.startswith(f"{first} ") for command in known)
            for command in [f"{first} {second}" for second in others[0].split("|")] if group and others else [first]:
                assert command in known, f"{page.name}: limerank {line}"
                unknown = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", line)) - known[command]
                assert not unknown, f"{page.name}: limerank {command} has no {unknown}"


SNIPPETS = [page for page in PAGES if "\n```python\n" in page.read_text()]


@pytest.fixture(scope="module")
def wrong_snippets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """All pages in one process: importing torch takes longer than most of them, and duckdb is loud when it ends."""
    done = python(ROOT / "tests/snippets.py", tmp_path_factory.mktemp("snippets"), *SNIPPETS)
    assert done.returncode == 0, done.stderr
    wrong: dict[str, str] = json.loads(done.stdout)
    return wrong


@pytest.mark.parametrize("page", SNIPPETS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_python_snippets_run(page: Path, wrong_snippets: dict[str, str]) -> None:
    """From top to bottom, as they stand; see tests/snippets.py for what they are given."""
    assert not wrong_snippets[str(page)], wrong_snippets[str(page)]


def test_the_api_reference_has_every_name_of_the_front_door() -> None:
    stub = (ROOT / "src/limerank/__init__.pyi").read_text()
    offered = {f"limerank.{name}" for name in re.findall(r" as (\w+)$", stub, re.MULTILINE)}
    shown = re.findall(r"^::: (\S+)$", (ROOT / "docs/reference/api.md").read_text(), re.MULTILINE)
    assert offered
    assert offered <= set(shown)
    assert len(shown) == len(set(shown))
