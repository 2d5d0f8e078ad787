"""A store of bundles: list, activate, roll back, collect. ACTIVE.json names the active and the previous one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from limerank import files
from limerank.errors import BundleError, ConflictError, did_you_mean
from limerank.serve.bundles.bundle import MANIFEST, Bundle, BundleManifest, read_manifest
from limerank.typed import validate

ACTIVE, BUNDLES, INDEXES = "ACTIVE.json", "bundles", "indexes"
ROUTING = "routing.json"  # `limerank.serve.experiments.routing`
CHANGING = "active.lock"
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
        return self.active().current

    def previous_id(self) -> str | None:
        """The bundle that was active before."""
        return self.active().previous

    def open_bundle(self, bundle_id: str | None = None) -> Bundle:
        """Verify and map a bundle, the active one unless told otherwise."""
        chosen = bundle_id or self.current_id()
        if chosen is None:
            raise BundleError(f"{self.path}: no bundle is active; choose one with `limerank bundle activate`")
        path = self.bundle_path(chosen)
        if (found := read_manifest(path).id) != chosen:
            raise BundleError(f"{path / MANIFEST}: is that of bundle {found}; export the run again")
        return Bundle.open(path)

    def activate(self, bundle_id: str) -> Bundle:
        """Verify a bundle, then make it the active one; a bundle that fails changes nothing."""
        bundle = self.open_bundle(bundle_id)
        self.make_active(bundle)
        return bundle

    def make_active(self, bundle: Bundle) -> None:
        """Make a bundle of this store active that was verified when it was opened."""
        self.point_to(bundle.manifest.id)

    def point_to(self, bundle_id: str, expected: str | None = None) -> Active:
        """Let ACTIVE.json name a verified bundle, if it still names the `expected` one; returns what it says now."""
        with self.changing():
            active = self.active()
            if expected is not None and active.current != expected:
                raise ConflictError(
                    f"{self.path}: the active bundle is {active.current}, not {expected}: somebody else activated "
                    "another; look at it, then ask again"
                )
            self.bundle_path(bundle_id)  # nobody has collected it since it was verified
            if active.current != bundle_id:
                active = Active(current=bundle_id, previous=active.current)
                with files.full_disk_named(self.path, "free some, then activate it", "nothing was changed"):
                    files.write_json(self.path / ACTIVE, active.model_dump())
            return active

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Wait for others who change which bundles are there or active, in any process, and keep them waiting."""
        import fcntl  # Windows has none, and must be able to say so

        with (self.path / CHANGING).open("a") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def roll_back(self) -> Bundle:
        """Make the previously active bundle active again."""
        previous = self.previous_id()
        if previous is None:
            raise ConflictError(f"{self.path}: there is no previous bundle to roll back to")
        return self.activate(previous)

    def collect(self, keep: int, others: Collection[str] = ()) -> list[str]:
        """Delete all but the newest `keep` bundles and those in use, and interrupted leftovers.

        In use are the active and the previous bundle, those that routing.json names, and `others`. An unfinished export
        that nobody works on is a leftover.
        """
        with self.changing():
            active, ids = self.active(), self.ids()
            kept = {active.current, active.previous, *self._routed(), *others, *ids[-keep:]}
            removed = [bundle_id for bundle_id in ids if bundle_id not in kept]
            removed += [folder.name for folder in self._folders() if files.is_leftover(folder)]
            for name in removed:  # moved away first: killed meanwhile, no half of a bundle is left under its name
                doomed = (
                    self.path / BUNDLES / f"{name.partition(files.STAGING_MARK)[0]}{files.STAGING_MARK}{os.getpid()}"
                )
                (self.path / BUNDLES / name).rename(doomed)
                shutil.rmtree(doomed)
            removed += [folder.name for folder in filter(is_unfinished, self._folders()) if collected(folder)]
        for index in self._useless_indexes():
            shutil.rmtree(index, ignore_errors=True)
        return removed

    def _routed(self) -> set[str]:
        """The bundles that arms and shadows of an experiment name; a file that cannot be read is no file without."""
        path = self.path / ROUTING
        if not path.exists():
            return set()
        fix = "clear it with `limerank routing clear STORE`, then collect"
        said: Any = files.read_json(path, BundleError, fix)
        try:
            return {str(one["bundle"]) for one in (*said["current"]["arms"], *said["current"]["shadows"])}
        except (KeyError, TypeError):
            raise BundleError(f"{path}: does not list arms and shadows; {fix}") from None

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

    def active(self) -> Active:
        """The active and the previous bundle, as of one time."""
        path = self.path / ACTIVE
        if not path.exists():
            return Active()
        fix = "delete it, then name a bundle with `limerank bundle activate`"
        return validate(Active, files.read_json(path, BundleError, fix), str(path), BundleError)


def is_unfinished(folder: Path) -> bool:
    """Whether a folder beside bundles is that of an export which was not finished."""
    return folder.name.endswith(UNFINISHED_ENDING)


def collected(folder: Path) -> bool:
    """Delete an unfinished export or archive, unless somebody works on it; nobody can begin to while it disappears."""
    try:
        with files.locked(folder / LOCK, "exporting"):
            shutil.rmtree(folder)
    except ConflictError:
        return False
    return True
