"""Downloads against a real server on this machine: resumed, checked, whole or not there; archives cannot escape."""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from limerank.data.fetch.download import download
from limerank.data.fetch.unpack import unpack
from limerank.data.fetch.web import Patience, fetch_text, published_md5
from limerank.errors import ConflictError, DataError, UnavailableError, UsageError
from limerank.progress import Progress

QUIET = Progress(quiet=True)
HASTY = Patience(attempts=3, pause=0.01, timeout=5)
BODY = bytes(range(256)) * 4096  # 1 MiB


class Server(ThreadingHTTPServer):
    """Serves `body` at /file and can be told to misbehave; remembers what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.body = BODY
        self.etag: str | None = '"one"'
        self.ranges = True
        self.honors_if_range = True
        self.announces_length = True
        self.break_after: list[int] = []
        """How many bytes the next answers send before the connection breaks."""
        self.refuse: list[int] = []
        """The statuses of the next answers."""
        self.asked: list[str | None] = []
        """The Range of every request so far."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/file"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server = self.server
        server.asked.append(self.headers["Range"])
        if server.refuse:
            self.send_error(server.refuse.pop(0))
            return
        if self.path == "/away":
            self.send_response(302)
            self.send_header("Location", "ftp://127.0.0.1/file")
            self.end_headers()
            return
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", server.url)
            self.end_headers()
            return
        if self.path == "/file.md5":
            text = f"MD5 (file) = {md5(server.body)}\n".encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text)
            return
        if self.path != "/file":
            self.send_error(404)
            return
        start = self._start()
        if start is None:
            return
        body = server.body[start:]
        if server.announces_length:
            self.send_header("Content-Length", str(len(body)))
        if server.etag:
            self.send_header("ETag", server.etag)
        self.end_headers()
        if server.break_after:
            self.wfile.write(body[: server.break_after.pop(0)])
            self.close_connection = True
            return
        self.wfile.write(body)

    def _start(self) -> int | None:
        server = self.server
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers["Range"] or "")
        unchanged = not server.honors_if_range or self.headers["If-Range"] == server.etag
        if not (wanted and server.ranges and unchanged):
            self.send_response(200)
            return 0
        start = int(wanted.group(1))
        if start >= len(server.body):
            self.send_error(416)
            return None
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{len(server.body) - 1}/{len(server.body)}")
        return start

    def log_message(self, format: str, *args: object) -> None:
        return None


def md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def fetch(server: Server, folder: Path, path: str = "", *, expected: str | None = None) -> bytes:
    target = folder / "file.bin"
    url = server.url.removesuffix("/file") + path if path else server.url
    download(url, target, md5=expected, progress=QUIET, patience=HASTY)
    assert [entry.name for entry in folder.iterdir()] == ["file.bin"], "no part may be left behind"
    return target.read_bytes()


def parts(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_whole_file_with_checksum_and_through_a_redirect(server: Server, tmp_path: Path) -> None:
    assert fetch(server, tmp_path, expected=md5(BODY).upper()) == BODY
    assert fetch(server, tmp_path) == BODY
    assert server.asked == [None], "a file that is there is not fetched again"
    (tmp_path / "file.bin").unlink()
    assert fetch(server, tmp_path, "/moved", expected=md5(BODY)) == BODY


def test_broken_connections_resume_at_the_byte_where_they_stopped(server: Server, tmp_path: Path) -> None:
    server.break_after = [300_000, 123_456]
    assert fetch(server, tmp_path, expected=md5(BODY)) == BODY
    assert server.asked == [None, "bytes=300000-", "bytes=423456-"]


def test_attempts_that_bring_something_do_not_use_up_the_patience(server: Server, tmp_path: Path) -> None:
    server.break_after = [100_000] * 8
    assert fetch(server, tmp_path) == BODY
    assert len(server.asked) == 9


def test_another_run_resumes_too(server: Server, tmp_path: Path) -> None:
    server.break_after = [400_000, 0, 0, 0]
    with pytest.raises(UnavailableError, match="what arrived is kept, run the command again"):
        download(server.url, tmp_path / "file.bin", md5=None, progress=QUIET, patience=HASTY)
    assert parts(tmp_path) == ["file.bin.part", "file.bin.part.json"]
    server.asked.clear()
    assert fetch(server, tmp_path, expected=md5(BODY)) == BODY
    assert server.asked == ["bytes=400000-"]


def test_a_whole_part_only_needs_its_renaming(server: Server, tmp_path: Path) -> None:
    server.break_after = [400_000, 0, 0, 0]
    with pytest.raises(UnavailableError):
        download(server.url, tmp_path / "file.bin", md5=None, progress=QUIET, patience=HASTY)
    (tmp_path / "file.bin.part").write_bytes(BODY)
    server.asked.clear()
    assert fetch(server, tmp_path, expected=md5(BODY)) == BODY
    assert server.asked == []


def test_a_server_without_ranges_starts_over(server: Server, tmp_path: Path) -> None:
    server.ranges = False
    server.break_after = [300_000]
    assert fetch(server, tmp_path, expected=md5(BODY)) == BODY
    assert server.asked == [None, "bytes=300000-"]


def test_without_a_version_nothing_is_glued_together(server: Server, tmp_path: Path) -> None:
    server.etag = None
    server.break_after = [300_000]
    assert fetch(server, tmp_path, expected=md5(BODY)) == BODY
    assert server.asked == [None, None]


@pytest.mark.parametrize("honors_if_range", [True, False])
@pytest.mark.parametrize(
    "new", [BODY[::-1], BODY[::-1] + b"longer", BODY[:1000]], ids=["same size", "longer", "shorter"]
)
def test_a_file_that_changes_between_attempts_is_fetched_anew(
    server: Server, tmp_path: Path, new: bytes, honors_if_range: bool
) -> None:
    server.break_after = [400_000, 0, 0, 0]
    with pytest.raises(UnavailableError):
        download(server.url, tmp_path / "file.bin", md5=None, progress=QUIET, patience=HASTY)
    server.body, server.etag, server.honors_if_range = new, '"two"', honors_if_range
    assert fetch(server, tmp_path) == new


def test_a_part_of_another_address_is_not_continued(server: Server, tmp_path: Path) -> None:
    server.break_after = [400_000, 0, 0, 0]
    with pytest.raises(UnavailableError):
        download(server.url, tmp_path / "file.bin", md5=None, progress=QUIET, patience=HASTY)
    server.asked.clear()
    assert fetch(server, tmp_path, "/moved") == BODY
    assert server.asked == [None, None]


def test_wrong_checksum_removes_the_download(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"its MD5 is {md5(BODY)} and should be {'0' * 32}; the download was removed"):
        download(server.url, tmp_path / "file.bin", md5="0" * 32, progress=QUIET, patience=HASTY)
    assert parts(tmp_path) == []


def test_a_wrong_file_that_was_there_before_is_not_touched(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.bin").write_bytes(b"mine")
    with pytest.raises(DataError, match="is there already, but its MD5"):
        download(server.url, tmp_path / "file.bin", md5=md5(BODY), progress=QUIET, patience=HASTY)
    assert (tmp_path / "file.bin").read_bytes() == b"mine"


def test_not_found_is_said_at_once(server: Server, tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="nothing: the server answered 404 Not Found; see the owner's page"):
        download(server.url.replace("/file", "/nothing"), tmp_path / "f", md5=None, progress=QUIET, patience=HASTY)
    assert len(server.asked) == 1


def test_passing_trouble_is_tried_again_but_not_forever(server: Server, tmp_path: Path) -> None:
    server.refuse = [503, 429]
    assert fetch(server, tmp_path) == BODY
    (tmp_path / "file.bin").unlink()
    server.refuse = [500] * 5
    with pytest.raises(UnavailableError, match="cannot be fetched from 127.0.0.1 .the server answered 500"):
        download(server.url, tmp_path / "file.bin", md5=None, progress=QUIET, patience=HASTY)


def test_nobody_listens(server: Server, tmp_path: Path) -> None:
    closed = Server()
    url = closed.url
    closed.server_close()
    with pytest.raises(UnavailableError, match="Connection refused.*is this machine online"):
        download(url, tmp_path / "file.bin", md5=None, progress=QUIET, patience=HASTY)


def test_unknown_length_is_trusted_to_the_checksum(server: Server, tmp_path: Path) -> None:
    server.announces_length = False
    assert fetch(server, tmp_path, expected=md5(BODY)) == BODY
    (tmp_path / "file.bin").unlink()
    server.break_after = [1000]
    with pytest.raises(DataError, match="MD5"):
        download(server.url, tmp_path / "file.bin", md5=md5(BODY), progress=QUIET, patience=HASTY)


@pytest.mark.parametrize("url", ["file:///etc/hostname", "ftp://127.0.0.1/x", "data:,x", "/etc/hostname", "http://"])
def test_only_the_web(url: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="only http and https"):
        download(url, tmp_path / "x", md5=None, progress=QUIET)
    with pytest.raises(UsageError):
        fetch_text(url, progress=QUIET)


def test_a_redirect_cannot_leave_the_web(server: Server, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="only http and https"):
        fetch(server, tmp_path, "/away")


def test_full_disk_is_one_line_that_names_the_place(server: Server, tmp_path: Path) -> None:
    """/dev/full refuses every write the way a full disk does."""
    (tmp_path / "file.bin.part").symlink_to("/dev/full")
    with pytest.raises(UnavailableError, match="file.bin.part: cannot be written .*make room"):
        download(server.url, tmp_path / "file.bin", md5=None, progress=QUIET, patience=HASTY)


def test_too_little_room_is_said_before_the_download(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        free = 1000

    monkeypatch.setattr("limerank.data.fetch.download.shutil.disk_usage", lambda path: Usage)
    with pytest.raises(UnavailableError, match="1 MB are to come, but only 0 MB are free"):
        download(server.url, tmp_path / "file.bin", md5=None, progress=QUIET, patience=HASTY)


def test_two_processes_do_not_write_one_part(server: Server, tmp_path: Path) -> None:
    import fcntl

    with (tmp_path / "file.bin.part").open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(ConflictError, match="another process is downloading it"):
            download(server.url, tmp_path / "file.bin", md5=None, progress=QUIET, patience=HASTY)


def test_published_checksum(server: Server) -> None:
    assert published_md5(server.url, progress=QUIET, patience=HASTY) == md5(BODY)
    server.refuse = [503]
    assert "MD5 (file)" in fetch_text(f"{server.url}.md5", progress=QUIET, patience=HASTY)
    with pytest.raises(UnavailableError, match="404"):
        published_md5(f"{server.url}/none", progress=QUIET, patience=HASTY)


def zipped(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def tarred(path: Path, members: dict[str, bytes | tarfile.TarInfo]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, data in members.items():
            if isinstance(data, tarfile.TarInfo):
                archive.addfile(data)
                continue
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def test_zip_and_tar_come_out_without_the_folder_around_them(tmp_path: Path) -> None:
    members = {"ml/u.data": b"1", "ml/deep/x": b"2", "ml/ml": b"3", "ml/huge.csv": b"4"}
    for number, archive in enumerate([zipped(tmp_path / "a.zip", members), tarred(tmp_path / "a.tar.gz", {**members})]):
        folder = unpack(archive, tmp_path / f"out{number}", progress=QUIET, leave_out={"huge.csv"})
        found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        assert found == {"u.data": b"1", "deep/x": b"2", "ml": b"3"}


def test_loose_files_stay_where_they_are(tmp_path: Path) -> None:
    folder = unpack(zipped(tmp_path / "a.zip", {"a": b"1", "b/c": b"2"}), tmp_path / "out", progress=QUIET)
    assert sorted(path.name for path in folder.iterdir()) == ["a", "b"]


@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/evil", "..\\evil", "C:/evil"])
def test_members_that_leave_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "deep" / "folder"
    folder.mkdir(parents=True)
    for archive in (
        zipped(folder / "a.zip", {"good": b"1", name: b"2"}),
        tarred(folder / "a.tar.gz", {"good": b"1", name: b"2"}),
    ):
        with pytest.raises(DataError, match="would leave the folder; the archive is refused"):
            unpack(archive, folder / "out", progress=QUIET)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.tar.gz", "a.zip", "deep", "folder"]


def test_links_and_doubles_are_refused(tmp_path: Path) -> None:
    for kind, where in ((tarfile.SYMTYPE, "/etc"), (tarfile.LNKTYPE, "../x"), (tarfile.FIFOTYPE, "")):
        link = tarfile.TarInfo("link")
        link.type, link.linkname = kind, where
        with pytest.raises(DataError, match="'link' is a link or a device"):
            unpack(tarred(tmp_path / "a.tar.gz", {"link": link}), tmp_path / "out", progress=QUIET)
    linked = zipfile.ZipInfo("link")
    linked.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(linked, "/etc")
    with pytest.raises(DataError, match="'link' is a link or a device"):
        unpack(tmp_path / "a.zip", tmp_path / "out", progress=QUIET)
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
        archive.writestr("x", "1")
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("x", "2")
    with pytest.raises(DataError, match="holds 'x' twice"):
        unpack(tmp_path / "b.zip", tmp_path / "out", progress=QUIET)
    assert not (tmp_path / "out").exists()


def test_damaged_archives_leave_nothing(tmp_path: Path) -> None:
    good_zip = zipped(tmp_path / "a.zip", {"x": BODY}).read_bytes()
    good_tar = tarred(tmp_path / "a.tar.gz", {"x": BODY}).read_bytes()
    for name, data in (
        ("cut.zip", good_zip[:-40]),
        ("bent.zip", good_zip[:100] + b"\0\0\0\0" + good_zip[104:]),
        ("cut.tar.gz", good_tar[: len(good_tar) // 2]),
        ("bent.tar.gz", good_tar[:100] + b"\0\0\0\0" + good_tar[104:]),
        ("text.zip", b"<html>not found</html>"),
        ("text.tar.gz", b"<html>not found</html>"),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(DataError, match=f"{name}: damaged .*; delete it and download it again"):
            unpack(tmp_path / name, tmp_path / "out", progress=QUIET)
    assert not list(tmp_path.glob("out*"))


def test_other_archives_and_missing_ones(tmp_path: Path) -> None:
    (tmp_path / "a.rar").write_bytes(b"x")
    with pytest.raises(UsageError, match="should end in .zip or .tar.gz"):
        unpack(tmp_path / "a.rar", tmp_path / "out", progress=QUIET)
    with pytest.raises(DataError, match="no such file"):
        unpack(tmp_path / "b.zip", tmp_path / "out", progress=QUIET)
