"""Bundles changed by hand: for tests that damage one and make its hashes right again."""

from __future__ import annotations

import json
from pathlib import Path

from limerank import files


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
