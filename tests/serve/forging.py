"""Bundles changed by hand and compared: for tests that damage one and make its hashes right again."""

from __future__ import annotations

import json
from pathlib import Path

from limerank import files
from limerank.serve.bundles.bundle import CONTENTS, Bundle


def bundle_folder(store: Path) -> Path:
    """The only bundle of a store."""
    (folder,) = (store / "bundles").iterdir()
    return folder


def rehash(folder: Path) -> None:
    """Make the manifest agree with the files again, as a careful forger would."""
    manifest = json.loads((folder / "manifest.json").read_text())
    for record in manifest["files"]:
        path = folder / record["path"]
        record["bytes"], record["sha256"] = path.stat().st_size, files.sha256_of_file(path)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def assert_same_files(bundle: Bundle, other: Bundle) -> None:
    """Two bundles differ in their manifests only."""
    for name in CONTENTS:
        assert (bundle.path / name).read_bytes() == (other.path / name).read_bytes(), name
