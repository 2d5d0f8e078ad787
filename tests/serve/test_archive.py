"""B4: an archive is a bundle, whole and verified, or nothing: whatever else it holds is refused and leaves no trace."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from calling import answer, limerank, refusal
from forging import bundle_folder

from limerank import files
from limerank.errors import BundleError, ConflictError, UnavailableError
from limerank.serve.bundles import archive
from limerank.serve.bundles.bundle import CONTENTS, MANIFEST, REPORT
from limerank.serve.bundles.store import BundleStore

Members = list[tuple[tarfile.TarInfo, bytes]]


@pytest.fixture(scope="module")
def whole(store: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The archive of the active bundle."""
    path = tmp_path_factory.mktemp("archives") / "bundle.tar"
    assert archive.save(BundleStore(store).open_bundle(), path) == path.stat().st_size
    return path.read_bytes()


@pytest.fixture
def empty(tmp_path: Path) -> BundleStore:
    """A store without bundles."""
    (tmp_path / "here" / "bundles").mkdir(parents=True)
    return BundleStore.open(tmp_path / "here")


def members(content: bytes) -> Members:
    with tarfile.open(fileobj=io.BytesIO(content)) as opened:
        return [(info, opened.extractfile(info).read()) for info in opened]  # type: ignore[union-attr]


def packed(parts: Members, form: int = tarfile.GNU_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as made:
        for info, content in parts:
            made.addfile(info, io.BytesIO(content))
    return out.getvalue()


def cut(content: bytes, size: int) -> Iterator[bytes]:
    return (content[start : start + size] for start in range(0, len(content), size))


def everything(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.name != "active.lock")


def refused(empty: BundleStore, content: bytes, match: str, error: type[Exception] = BundleError) -> None:
    """Refused in one line, whatever pieces it comes in, and nothing is left anywhere."""
    outside = empty.path.parent
    before = everything(outside)
    with pytest.raises(error, match=match) as caught:
        archive.receive(empty, cut(content, 10_000))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600
    assert everything(outside) == before


@pytest.mark.parametrize("size", [1, 511, 512, 100_000, 10**9])
def test_a_saved_bundle_is_received(store: Path, whole: bytes, empty: BundleStore, size: int) -> None:
    """In whatever pieces; it is the same bundle, to the byte, and sending it again changes nothing."""
    if size == 1:
        chunks: Iterator[bytes] = iter([b"", *cut(whole[:3000], 1), b"", whole[3000:], b""])
    else:
        chunks = cut(whole, size)
    received = archive.receive(empty, chunks)
    folder = bundle_folder(store)
    assert (received.id, received.files, received.is_new) == (folder.name, 10, True)
    everywhere = sorted([MANIFEST, REPORT, *CONTENTS])
    for name in everywhere:
        assert (empty.path / "bundles" / received.id / name).read_bytes() == (folder / name).read_bytes()
    assert everything(empty.path / "bundles" / received.id) == everywhere
    again = archive.receive(empty, cut(whole, 4096))
    assert (again.id, again.is_new) == (received.id, False)
    assert empty.ids() == [received.id]
    assert everything(empty.path / "bundles") == [
        received.id,
        *(f"{received.id}/{name}" for name in everywhere),
    ]
    assert empty.activate(received.id).manifest.id == received.id


def test_the_order_of_files_does_not_matter(whole: bytes, empty: BundleStore) -> None:
    """But the manifest comes first, for it announces the others."""
    first, *others = members(whole)
    refused(empty, packed([*others, first]), "does not begin with the file manifest.json")
    assert archive.receive(empty, [packed([first, *reversed(others)])]).is_new


def test_another_bundle_of_the_same_id_is_a_conflict(whole: bytes, empty: BundleStore) -> None:
    received = archive.receive(empty, [whole])
    (first, content), *others = members(whole)
    changed = content.replace(b'"metrics": {', b'"metrics": {"x": 1, ')
    assert changed != content
    first.size = len(changed)
    refused(empty, packed([(first, changed), *others]), "there is another bundle of this id", ConflictError)
    assert empty.open_bundle(received.id).manifest.id == received.id


def named(name: str, content: bytes = b"x", **values: Any) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for key, value in values.items():
        setattr(info, key, value)
    return info, content


STRANGERS: list[tuple[str, tuple[tarfile.TarInfo, bytes]]] = [
    ("traversal", named("../outside")),
    ("absolute", named("/tmp/outside")),
    ("in a folder", named("bundle/rows.safetensors")),
    ("with a dot", named("./rows.safetensors")),
    ("backslash", named("..\\outside")),
    ("unknown name", named("run.py", b"print()")),
    ("empty name", named("")),
    ("newline", named("rows\n.safetensors")),
    ("a folder", named("rows.safetensors", b"", type=tarfile.DIRTYPE)),
    ("symbolic link", named("rows.safetensors", b"", type=tarfile.SYMTYPE, linkname="/etc/passwd")),
    ("hard link", named("rows.safetensors", b"", type=tarfile.LNKTYPE, linkname="manifest.json")),
    ("link with content", named("rows.safetensors", b"x", linkname="/etc/passwd")),
    ("character device", named("rows.safetensors", b"", type=tarfile.CHRTYPE, devmajor=1, devminor=5)),
    ("block device", named("rows.safetensors", b"", type=tarfile.BLKTYPE)),
    ("pipe", named("rows.safetensors", b"", type=tarfile.FIFOTYPE)),
    ("sparse", named("rows.safetensors", b"", type=tarfile.GNUTYPE_SPARSE)),
    ("contiguous", named("rows.safetensors", b"", type=tarfile.CONTTYPE)),
    ("long name of GNU", named("rows.safetensors" + "x" * 200)),
    ("manifest twice", named(MANIFEST, b"{}")),
]


@pytest.mark.parametrize(("what", "stranger"), STRANGERS, ids=[what for what, _ in STRANGERS])
@pytest.mark.parametrize("position", [1, 4, 10])
def test_what_is_not_of_a_bundle_is_refused(
    whole: bytes, empty: BundleStore, what: str, stranger: tuple[tarfile.TarInfo, bytes], position: int
) -> None:
    """Wherever it stands, and in the place of a file of the bundle, too."""
    parts = members(whole)
    match = "which is not of the bundle|is no plain file|has 0 bytes|has 1 bytes"
    refused(empty, packed([*parts[:position], stranger, *parts[position:]]), match)
    replaced = [
        stranger if info.name == stranger[0].name and info.name != MANIFEST else (info, content)
        for info, content in parts
    ]
    if replaced != parts:
        refused(empty, packed(replaced), match)


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_headers_that_change_others_are_refused(whole: bytes, empty: BundleStore, form: int) -> None:
    """Pax records could give the next file another name or length: none is read. Long names are the same of GNU."""
    parts = members(whole)
    for info, _ in parts:
        info.pax_headers = {"path": "../outside", "size": "7"}
        info.uname = "x" * 200 if form == tarfile.PAX_FORMAT else ""
        info.linkname = "y" * 200 if form == tarfile.GNU_FORMAT else ""
    refused(empty, packed(parts, form), "does not begin with the file manifest.json")


def test_ten_thousand_files_are_refused_at_the_first(whole: bytes, empty: BundleStore) -> None:
    first, *others = members(whole)
    many = [named(f"file-{number}") for number in range(10_000)]
    pieces = 0

    def counted(content: bytes) -> Iterator[bytes]:
        nonlocal pieces
        for piece in cut(content, 512):
            pieces += 1
            yield piece

    content = packed([first, *many, *others])
    with pytest.raises(BundleError, match="'file-0', which is not of the bundle"):
        archive.receive(empty, counted(content))
    assert pieces < 20  # nobody reads the rest
    assert everything(empty.path) == ["bundles"]


def test_a_compressed_archive_is_refused(whole: bytes, empty: BundleStore) -> None:
    """A bomb is never inflated: nothing is."""
    bomb = gzip.compress(bytes(10**7))
    for content in (gzip.compress(whole), bomb):
        refused(empty, content, "no plain tar file .it is compressed")


def test_what_a_manifest_announces_has_limits(whole: bytes, empty: BundleStore) -> None:
    """Lengths that nobody has room for are refused before a byte of them is read, and so are ids that are paths."""
    (_, content), *others = members(whole)
    values = json.loads(content)

    def announced(match: str, error: type[Exception] = BundleError, **changes: Any) -> None:
        said = json.dumps({**values, **changes}).encode()
        refused(empty, packed([named(MANIFEST, said), *others]), match, error)

    sizes = [{**record, "bytes": 2**62} for record in values["files"]]
    announced("at most 274,877,906,944 may be", files=sizes)
    announced("at most 274,877,906,944 may be", files=[{**record, "bytes": -1} for record in values["files"]])
    free = shutil.disk_usage(empty.path).free
    if free < archive.MOST_BYTES // 2:
        large = [{**values["files"][0], "bytes": free + 2**30}, *values["files"][1:]]
        announced(r"the bundle has [\d,]+ bytes, but [\d,]+ are free", UnavailableError, files=large)
    for wrong in (
        "../outside",
        "/outside",
        "..",
        ".",
        "",
        "a/b",
        "x.staging-1",
        "x.unfinished",
        "a\nb",
        "\0",
        "x" * 200,
    ):
        announced("can be no id of a bundle", id=wrong)
    announced("does not list the files of a bundle", files=values["files"][1:])
    announced("does not list the files of a bundle", files=[*values["files"], values["files"][0]])
    announced("does not list the files", files=[{**values["files"][0], "path": "../x"}, *values["files"][1:]])
    announced("key 'format'", format="limerank-bundle-99")
    announced("model", model={**values["model"], "name": "no such model"})
    for said, match in (
        (b"not JSON", "not valid JSON"),
        (b"[" * 10**5, "not valid JSON"),
        (b"[]", "key 'format'"),
        (b"", "has 0"),
    ):
        refused(empty, packed([named(MANIFEST, said), *others]), match)
    refused(
        empty, packed([named(MANIFEST, b" " * (archive.MOST_MANIFEST_BYTES + 1)), *others]), "at most 4194304 may be"
    )
    with pytest.raises(BundleError, match="at most 1,000 may be"):
        archive.receive(empty, [whole], most_bytes=1000)
    assert everything(empty.path) == ["bundles"]


def test_lengths_that_lie_are_refused(whole: bytes, empty: BundleStore) -> None:
    """A file longer or shorter than the manifest says, and a header that says so while the content is not."""
    for name in sorted(CONTENTS):
        parts = members(whole)
        position = next(number for number, (info, _) in enumerate(parts) if info.name == name)
        _, content = parts[position]
        for wrong in (content + b"x", content[:-1], b""):
            changed = [*parts[:position], named(name, wrong), *parts[position + 1 :]]
            refused(empty, packed(changed), f"{name} in the archive has {len(wrong)} bytes")
    start = whole.index(b"rows.safetensors\0")
    header = bytearray(whole[start : start + 512])
    for size in (b"\x80" + b"\0" * 3 + b"\x7f" + b"\xff" * 7, b"\xff" * 12, b"00000000001\0"):
        header[124:136] = size
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
        refused(empty, whole[:start] + bytes(header) + whole[start + 512 :], "rows.safetensors in the archive has")


class Harmful:
    """What a pickle would run."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (Path("harm"),)


@pytest.mark.parametrize("name", sorted(CONTENTS))
def test_other_content_is_refused(whole: bytes, empty: BundleStore, name: str, tmp_path: Path) -> None:
    """A bit of a file, and a pickle in its stead whose hash the manifest has: verification fails, nothing is run."""
    parts = members(whole)
    position = next(number for number, (info, _) in enumerate(parts) if info.name == name)
    info, content = parts[position]
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 1
    changed = [*parts[:position], (info, bytes(flipped)), *parts[position + 1 :]]
    refused(empty, packed(changed), f"{name} in the archive: content does not match its recorded SHA-256")
    payload = pickle.dumps(Harmful())
    (tmp_path / "payload").write_bytes(payload)
    values = json.loads(parts[0][1])
    record = {"path": name, "bytes": len(payload), "sha256": files.sha256_of_file(tmp_path / "payload")}
    values["files"] = [record if one["path"] == name else one for one in values["files"]]
    changed = [
        named(MANIFEST, json.dumps(values).encode()),
        *parts[1:position],
        named(name, payload),
        *parts[position + 1 :],
    ]
    refused(empty, packed(changed), "bundle .*, as received: ")
    assert not Path("harm").exists()


def test_what_is_cut_or_goes_on_is_refused(whole: bytes, empty: BundleStore) -> None:
    """At any length; zeros behind the end are usual, and anything else is not."""
    end = whole.rstrip(b"\0")
    for length in [0, 1, 511, 512, 1000, 3000, len(whole) // 2, len(end) - 1, (len(end) // 512 + 1) * 512]:
        refused(empty, whole[:length], "the archive ends too early|no plain tar file")
    for tail in (b"x", bytes(600) + b"x", whole, bytes(2**20 + 512)):
        refused(empty, whole + tail, "goes on behind its end")
    stop = (len(end) // 512 + 1) * 512
    refused(empty, whole[: stop - 1] + b"x" + whole[stop:], "bytes behind .* that belong to nothing|SHA-256")
    for name in sorted(CONTENTS):
        refused(empty, packed([part for part in members(whole) if part[0].name != name]), f"the archive lacks {name}")
    assert archive.receive(empty, [whole, bytes(1024)]).is_new


def test_a_source_that_fails_leaves_nothing(whole: bytes, empty: BundleStore) -> None:
    """A client that goes away in the middle; and what a killed process left goes with the next archive."""

    def broken() -> Iterator[bytes]:
        yield whole[: len(whole) // 2]
        raise ConnectionError

    with pytest.raises(ConnectionError):
        archive.receive(empty, broken())
    assert everything(empty.path) == ["bundles"]
    (empty.path / "bundles" / "receive-x.unfinished" / "bundle").mkdir(parents=True)
    assert archive.receive(empty, [whole]).is_new
    assert len(list((empty.path / "bundles").iterdir())) == 1


def test_two_archives_at_once(whole: bytes, empty: BundleStore) -> None:
    """Neither deletes what the other is writing, nor does a collection; the second finds the bundle there."""
    half = len(whole) // 2

    def slow() -> Iterator[bytes]:
        yield whole[:half]
        assert archive.receive(empty, [whole]).is_new
        assert empty.collect(1) == []
        yield whole[half:]

    assert not archive.receive(empty, slow()).is_new
    assert len(list((empty.path / "bundles").iterdir())) == 1


def test_the_commands_save_and_load(store: Path, tmp_path: Path) -> None:
    """From one store to another, which is made; saved twice, it is the same file."""
    out, other = tmp_path / "b.tar", tmp_path / "other"
    saved = answer("bundle", "save", store, "--out", out)
    assert saved["bytes"] == out.stat().st_size
    assert "exists already" in refusal(5, "bundle", "save", store, "--out", out)
    first = out.read_bytes()
    assert limerank("bundle", "save", store, saved["bundle"], "--out", out, "--overwrite").returncode == 0
    assert out.read_bytes() == first
    loaded = answer("bundle", "load", other, out)
    assert (loaded["id"], loaded["is_new"]) == (saved["bundle"], True)
    again = limerank("bundle", "load", other, out)
    assert "was there already, the same; make it active with" in again.stdout
    assert answer("bundle", "activate", other, loaded["id"])["current"] == saved["bundle"]
    out.write_bytes(first[:-5000])
    assert "the archive ends too early" in refusal(4, "bundle", "load", other, out)
    assert "no such file" in refusal(4, "bundle", "load", tmp_path / "third", tmp_path / "nothing.tar")
    assert not (tmp_path / "third").exists()
