"""/ui: the inspector, a page of plain files that come with the package and ask only this service's public API."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources

from limerank.service.calls import Call, Reply, Service, handles
from limerank.service.problems import RefusalError

PAGE, VERSION = "index.html", "{version}"
TYPES = {
    ".html": b"text/html; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}
CSP = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", CSP),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
)
ALWAYS_ASK = (b"cache-control", b"no-cache")
NEVER_ASK = (b"cache-control", b"public, max-age=31536000, immutable")


@dataclass(frozen=True)
class Asset:
    """A file of the page, as it is sent."""

    content: bytes
    media_type: bytes

    @property
    def etag(self) -> bytes:
        """Its fingerprint."""
        return b'"%s"' % hashlib.sha256(self.content).hexdigest()[:32].encode()


@cache
def assets() -> tuple[str, dict[str, Asset]]:
    """All files of the page by name, and their common version.

    They are read once: a request names one of these or nothing, so no path can lead elsewhere. The page loads all
    others below the version, so that an updated service never mixes old files with new ones, and browsers may keep
    them.
    """
    folder = resources.files("limerank.service").joinpath("ui")
    read = {file.name: file.read_bytes() for file in folder.iterdir() if file.name.endswith(tuple(TYPES))}
    digest = hashlib.sha256()
    for name, content in sorted(read.items()):
        digest.update(b"%s %d\n" % (name.encode(), len(content)) + content)
    version = digest.hexdigest()[:16]
    read[PAGE] = read[PAGE].replace(VERSION.encode(), version.encode())
    return version, {name: Asset(content, TYPES["." + name.rpartition(".")[2]]) for name, content in read.items()}


@handles("inspector")
def inspector(service: Service, call: Call) -> Reply:
    """A page for people: try a ranking, ask why, look at links, compare bundles, operate the service.

    It has no rights of its own: whoever opens it gives a key, and can do there what the key can do here.
    """
    return _reply(assets()[1][PAGE], ALWAYS_ASK)


@handles("inspector_file")
def inspector_file(service: Service, call: Call) -> Reply:
    """The scripts and styles of that page."""
    version, files = assets()
    asset = files.get(call.parameters["file"])
    if asset is None or call.parameters["version"] != version or asset is files[PAGE]:
        raise RefusalError("no-such-path", "the inspector has no such file; load /ui again")
    return _reply(asset, NEVER_ASK)


def _reply(asset: Asset, caching: tuple[bytes, bytes]) -> Reply:
    return Reply(asset.content, asset.media_type, headers=[*HEADERS, caching], etag=asset.etag)
