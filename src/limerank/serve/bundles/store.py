"""A store of bundles: list, activate, roll back, collect. ACTIVE.json names the active and the previous one."""

from __future__ import annotations

import shutil
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from limerank import files
from limerank.errors import BundleError, ConflictError, did_you_mean
from limerank.serve.bundles.bundle import Bundle, BundleManifest, read_manifest
from limerank.typed import validate

ACTIVE, BUNDLES, INDEXES = "ACTIVE.json", "bundles", "indexes"
UNFINISHED_ENDING, LOCK = ".unfinished", "lock"


class Active(BaseModel):
    """Which bundle serves and which did before; one file, so that both change at once."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    current: str | None = None
    previous: str | None = None


class BundleStore:
    """A directory of bundles with at most one active."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def open(cls, path: files.AnyPath) -> BundleStore:
        """A store that must exist already."""
        path = Path(path)
        if not (path / BUNDLES).is_dir():
            raise BundleError(f"{path}: no bundle store here; make one with `limerank export RUN --store {path}`")
        return cls(path)

    def bundle_path(self, bundle_id: str) -> Path:
        """Where a bundle of this id lives; an id that is not in the store is an error."""
        if bundle_id not in self.ids():
            raise BundleError(f"{self.path}: no bundle '{bundle_id}'{did_you_mean(bundle_id, self.ids())}")
        return self.path / BUNDLES / bundle_id

    def ids(self) -> list[str]:
        """Published bundles, oldest first; leftovers of interrupted work are not bundles."""
        return sorted(f.name for f in self._folders() if not (files.STAGING_MARK in f.name or is_unfinished(f)))

    def manifests(self) -> dict[str, BundleManifest | BundleError]:
        """The manifest of every bundle, oldest first, or what is wrong with it."""
        found: dict[str, BundleManifest | BundleError] = {}
        for bundle_id in self.ids():
            try:
                found[bundle_id] = read_manifest(self.path / BUNDLES / bundle_id)
            except BundleError as broken:
                found[bundle_id] = broken
        return found

    def current_id(self) -> str | None:
        """The active bundle."""
        return self._active().current

    def previous_id(self) -> str | None:
        """The bundle that was active before."""
        return self._active().previous

    def open_bundle(self, bundle_id: str | None = None) -> Bundle:
        """Verify and map a bundle, the active one unless told otherwise."""
        chosen = bundle_id or self.current_id()
        if chosen is None:
            raise BundleError(f"{self.path}: no bundle is active; choose one with `limerank bundle activate`")
        return Bundle.open(self.bundle_path(chosen))

    def activate(self, bundle_id: str) -> Bundle:
        """Verify a bundle, then make it the active one; a bundle that fails changes nothing."""
        bundle = self.open_bundle(bundle_id)
        self.make_active(bundle)
        return bundle

    def make_active(self, bundle: Bundle) -> None:
        """Make a bundle of this store active that was verified when it was opened."""
        current, chosen = self.current_id(), bundle.manifest.id
        if current != chosen:
            files.write_json(self.path / ACTIVE, Active(current=chosen, previous=current).model_dump())

    def roll_back(self) -> Bundle:
        """Make the previously active bundle active again."""
        previous = self.previous_id()
        if previous is None:
            raise ConflictError(f"{self.path}: there is no previous bundle to roll back to")
        return self.activate(previous)

    def collect(self, keep: int) -> list[str]:
        """Delete all but the newest `keep` bundles, never the active or the previous one; and interrupted leftovers.

        An unfinished export that nobody works on is one of them.
        """
        kept = {self.current_id(), self.previous_id(), *self.ids()[-keep:]}
        removed = [bundle_id for bundle_id in self.ids() if bundle_id not in kept]
        removed += [folder.name for folder in self._folders() if files.is_leftover(folder)]
        for name in removed:
            shutil.rmtree(self.path / BUNDLES / name)
        for index in self._useless_indexes():
            shutil.rmtree(index, ignore_errors=True)
        return removed + [folder.name for folder in filter(is_unfinished, self._folders()) if _collected(folder)]

    def _folders(self, kind: str = BUNDLES) -> list[Path]:
        folder = self.path / kind
        return [path for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []

    def _useless_indexes(self) -> list[Path]:
        """Of bundles that are gone, even if an engine that has one open made it later; and interrupted leftovers."""
        ids = set(self.ids())
        return [
            folder
            for folder in self._folders(INDEXES)
            if files.is_leftover(folder) or folder.name.partition(files.STAGING_MARK)[0] not in ids
        ]

    def _active(self) -> Active:
        path = self.path / ACTIVE
        if not path.exists():
            return Active()
        fix = "delete it, then name a bundle with `limerank bundle activate`"
        return validate(Active, files.read_json(path, BundleError, fix), str(path), BundleError)


def is_unfinished(folder: Path) -> bool:
    """Whether a folder beside bundles is that of an export which was not finished."""
    return folder.name.endswith(UNFINISHED_ENDING)


def _collected(folder: Path) -> bool:
    """Delete an unfinished export, unless somebody works on it; nobody can begin to while it disappears."""
    try:
        with files.locked(folder / LOCK, "exporting"):
            shutil.rmtree(folder)
    except ConflictError:
        return False
    return True
