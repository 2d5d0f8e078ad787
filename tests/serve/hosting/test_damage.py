"""F3, S2: whatever happens to the files of a bundle, a host refuses it, names it, and goes on serving the old one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hosts import answers_as, mapped
from safetensors.torch import load_file, save_file

from limerank import files
from limerank.errors import BundleError
from limerank.serve.bundles.bundle import CONTENTS, MANIFEST
from limerank.serve.hosting.host import Host

pytest_plugins = ("host_fixtures",)

Open = Callable[..., Host]
NAMES = (MANIFEST, *sorted(CONTENTS))
Damage = tuple[str, Callable[[Path, Path], None]]


def _written(change: Callable[[bytes], bytes]) -> Callable[[Path, Path], None]:
    """A file with other bytes: those that the change makes."""

    def damage(path: Path, other: Path) -> None:
        before = path.read_bytes()
        after = change(before)
        assert after != before
        path.write_bytes(after)

    return damage


def _flipped(content: bytes, part: int, parts: int) -> bytes:
    position = min(len(content) - 1, len(content) * part // parts)
    return content[:position] + bytes([content[position] ^ (1 << part % 8)]) + content[position + 1 :]


def _zeroed(content: bytes) -> bytes:
    last = next(position for position in range(len(content) - 1, -1, -1) if content[position]) + 1
    count = min(4096, last // 2)
    return content[: last - count] + bytes(len(content) - last + count)


def _swapped(path: Path, other: Path) -> None:
    """The file of another bundle; where both have the same, another file of it."""
    same = (other / path.name).read_bytes() == path.read_bytes()
    shutil.copy(other / ("model.safetensors" if same else path.name), path)


def _folder(path: Path, other: Path) -> None:
    path.unlink()
    path.mkdir()


def _dangling(path: Path, other: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


FLIPS = 12
DAMAGES: list[Damage] = [
    ("missing", lambda path, other: path.unlink()),
    ("empty", _written(lambda content: b"")),
    ("a byte less", _written(lambda content: content.rstrip()[:-1])),
    ("half", _written(lambda content: content[: len(content) // 2])),
    ("a byte more", _written(lambda content: content + b"x")),
    ("zeroed suffix", _written(_zeroed)),
    ("swapped", _swapped),
    ("a folder", _folder),
    ("a link to nothing", _dangling),
    *(
        (f"bit {part} flipped", _written(lambda content, part=part: _flipped(content, part, FLIPS)))  # type: ignore[misc]
        for part in range(FLIPS)
    ),
]


class Victim:
    """A bundle that is damaged and made whole again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.content = {name: (folder / name).read_bytes() for name in NAMES}

    def restore(self) -> None:
        for path in self.folder.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        for name, content in self.content.items():
            (self.folder / name).write_bytes(content)


@pytest.fixture
def host(opened: Open) -> Host:
    return opened(warmup_requests=1, keep_previous=False)


@pytest.fixture
def victim(hosted_store: Path, ids: list[str]) -> Victim:
    return Victim(hosted_store / "bundles" / ids[1])


def refused(host: Host, victim: Victim, name: str) -> str:
    """The bundle cannot be activated, and the error names the file."""
    with pytest.raises(BundleError) as caught:
        host.activate(victim.folder.name)
    said = str(caught.value)
    assert f"{victim.folder / name}:" in said, said
    assert "\n" not in said
    return said


def accepted(host: Host, victim: Victim) -> bool:
    """Whether the bundle is activated; if not, the error names it."""
    try:
        return host.activate(victim.folder.name).current == victim.folder.name
    except BundleError as error:
        if str(victim.folder) not in str(error):
            raise
        return False


@pytest.mark.parametrize("name", NAMES)
def test_damaged_files_are_refused(
    host: Host, victim: Victim, hosted_store: Path, ids: list[str], expected: Any, name: str
) -> None:
    """Every file in 21 ways: 210 bundles. In a manifest, bits that only describe may be others: nothing proves them."""
    for what, damage in DAMAGES:
        damage(victim.folder / name, hosted_store / "bundles" / ids[2])
        if name == MANIFEST and what.startswith("bit"):
            if accepted(host, victim):
                answers_as(host, expected, ids[1])
                host.activate(ids[0])
        else:
            refused(host, victim, name)
        answers_as(host, expected, ids[0])
        victim.restore()
    assert host.activate(ids[1]).current == ids[1]
    assert host.activate(ids[0]).current == ids[0]
    assert mapped(victim.folder) == 0


def _manifests(values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Manifests that do not fit their bundle, by what is wrong."""
    for key in values:
        yield f"no {key}", {other: value for other, value in values.items() if other != key}
        if key not in ("metrics", "display", "history_items", "watermark"):
            yield f"{key} is null", {**values, key: None}
        yield f"{key} is of another type", {**values, key: {"x": [1]} if key not in ("metrics", "model") else 7}
    for key, wrong in (
        ("items", values["items"] + 1),
        ("items", 0),
        ("users", values["users"] - 1),
        ("history_items", 5),
        ("row_type", "fp32"),
        ("row_type", "u8"),
        ("row_type", "f64"),
        ("row_fingerprint", "0" * 64),
        ("format", "limerank-bundle-1"),
        ("format", "limerank-bundle-99"),
        ("tasks", [*values["tasks"], "another"]),
        ("model", {**values["model"], "links": 9}),
        ("model", {**values["model"], "name": "no such model"}),
        ("model", {**values["model"], "colour": "red"}),
        ("extra", 1),
    ):
        yield f"{key} is {wrong!r:.30}", {**values, key: wrong}
    records = values["files"]
    yield "a file twice", {**values, "files": [*records, records[0]]}
    yield "no files", {**values, "files": []}
    for number, record in enumerate(records):
        others = [*records[:number], *records[number + 1 :]]
        yield f"{record['path']} not listed", {**values, "files": others}
        for wrong in ({"path": f"../{record['path']}"}, {"bytes": record["bytes"] + 1}, {"sha256": "0" * 64}):
            yield f"{record['path']}: {wrong}", {**values, "files": [*others, {**record, **wrong}]}


def test_manifests_that_do_not_fit_are_refused(
    host: Host, victim: Victim, hosted_store: Path, ids: list[str], expected: Any
) -> None:
    """Types, numbers, names and files that are not the bundle's, and what is no JSON at all."""
    whole = json.loads(victim.content[MANIFEST])
    texts = [
        ("null", "null"), ("a list", "[]"), ("a text", '"x"'), ("nan", "NaN"), ("words", "not JSON"),
        ("deep", "[" * 100_000), ("not UTF-8", "\udcff"),
    ]  # fmt: skip
    cases = [(what, json.dumps(values)) for what, values in _manifests(whole)] + texts
    optional = {"no history_items"}
    assert len(cases) > 90
    for what, text in cases:
        (victim.folder / MANIFEST).write_text(text, encoding="utf-8", errors="surrogateescape")
        if what in optional:
            assert host.activate(ids[1]).current == ids[1]
            host.activate(ids[0])
        else:
            with pytest.raises(BundleError) as caught:
                host.activate(ids[1])
            assert str(victim.folder) in str(caught.value), what
            assert len(str(caught.value)) < 1000, what
        answers_as(host, expected, ids[0])
    victim.restore()
    assert host.activate(ids[1]).current == ids[1]


def _rehash(folder: Path) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    for record in manifest["files"]:
        path = folder / record["path"]
        record["bytes"], record["sha256"] = path.stat().st_size, files.sha256_of_file(path)
    (folder / MANIFEST).write_text(json.dumps(manifest))


def test_what_a_forger_hashed_again_is_refused(
    host: Host, victim: Victim, hosted_store: Path, ids: list[str], expected: Any
) -> None:
    """Tensors of every file missing, of another type, or a row short, with right hashes: one line, no crash.

    What is left to a forger are other numbers in the right shape: other weights, and what users did.
    """
    cases = 0
    for name in sorted(name for name in CONTENTS if name.endswith(".safetensors")):
        for tensor in list(load_file(victim.folder / name))[:6]:
            for change in ("missing", "dtype", "rows"):
                tensors = {key: value.clone() for key, value in load_file(victim.folder / name).items()}
                if change == "missing":
                    del tensors[tensor]
                elif change == "dtype":
                    tensors[tensor] = tensors[tensor].bool()
                else:
                    tensors[tensor] = tensors[tensor][:-1].clone()
                save_file(tensors, victim.folder / name, {"fingerprint": "x"})
                _rehash(victim.folder)
                if accepted(host, victim):  # and has ranked: nothing crashes
                    assert change == "dtype" or (name, tensor) == ("histories.safetensors", "times")
                    host.activate(ids[0])
                cases += 1
                victim.restore()
        answers_as(host, expected, ids[0])
    assert cases > 60


def test_harmless_leftovers_are_tolerated(host: Host, victim: Victim, ids: list[str], expected: Any) -> None:
    """Files that are not of the bundle are nobody's business."""
    for name in ("rows.safetensors.tmp", "manifest.json.staging-1", ".hidden", "x.tmp"):
        (victim.folder / name).write_bytes(b"left over")
    (victim.folder / "folder.tmp").mkdir()
    assert host.activate(ids[1]).verified_files == 9
    answers_as(host, expected, ids[1])


def test_an_open_bundle_that_is_damaged_is_not_activated_again(
    opened: Open, victim: Victim, ids: list[str], expected: Any
) -> None:
    """The previous bundle is open: a rollback looks at lengths, an activation at hashes, for a restart needs them."""
    host = opened()
    host.activate(ids[1])
    host.activate(ids[0])
    for _, damage in DAMAGES[:5]:
        damage(victim.folder / "seen.safetensors", victim.folder)
        refused(host, victim, "seen.safetensors")
        with pytest.raises(BundleError, match=r"seen\.safetensors"):
            host.roll_back()
        answers_as(host, expected, ids[0])
        victim.restore()
    assert host.roll_back().current == ids[1]
