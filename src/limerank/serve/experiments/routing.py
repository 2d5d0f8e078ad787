"""Which bundle answers whom: STORE/routing.json, and the arm of a user.

An arm is a part of the users for whom another bundle than the active one answers; everybody else is in the arm
`control`. Which arm a user has is computed, never stored: `point_of(experiment, user)` is a number in [0, 1) that only
depends on the two texts, and arms own ranges of these numbers. So it is the same in every process and after every
restart, and independent between experiments of different names.

Ranges grow from the two ends: the first, third, ... arm upwards from 0, each behind the one before it, the second,
fourth, ... arm downwards from 1; control is what is left between. Raising the percent of an arm keeps all its users,
and with one or two arms takes the new ones from control alone. (No rule that looks at percents only can promise this
for three: arms that stand behind the one that grew move by as much.) So add arms at the end of the list, and give an
arm that is over 0 percent until the experiment ends: its range stays where it is, and so do the others.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from limerank import files
from limerank.errors import BundleError
from limerank.typed import Typed, validate

if TYPE_CHECKING:
    from limerank.serve.bundles.store import BundleStore

ROUTING, LOCK = "routing.json", "routing.lock"
CONTROL = "control"
MOST_ARMS, MOST_SHADOWS, MOST_EARLIER = 16, 4, 200
POINTS = 2**53
"""How many points there are: as many as numbers in [0, 1) are exact."""
ROUNDING = 1e-9  # percents such as 33.3 + 33.3 + 33.4
FIX = "clear it with `limerank routing clear STORE`"

Name = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.-]+$")]
BundleId = Annotated[str, StringConstraints(min_length=1, max_length=256)]


class Arm(Typed):
    """A part of the users, for which another bundle answers."""

    name: Name
    bundle: BundleId
    percent: float = Field(ge=0, le=100)


class Shadow(Typed):
    """A bundle that ranks a sample of requests beside the one that answers; nobody sees its rankings."""

    bundle: BundleId
    sample: float = Field(gt=0, le=1)
    """The fraction of requests."""


class Routing(Typed):
    """Which bundle answers whom. The default says: the active bundle, everybody."""

    experiment: Name | None = None
    """What assignments hang on: the same name assigns the same users."""
    arms: tuple[Arm, ...] = Field(default=(), max_length=MOST_ARMS)
    shadows: tuple[Shadow, ...] = Field(default=(), max_length=MOST_SHADOWS)
    since: int | None = None
    """Milliseconds since 1970, when it was written; None: it was not."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [arm.name for arm in self.arms]
        if names and self.experiment is None:
            raise ValueError("arms need an experiment: its name decides which users they have")
        if CONTROL in names:
            raise ValueError(f"'{CONTROL}' is the arm of the active bundle; give the other arm another name")
        if len(set(names)) < len(names):
            raise ValueError("two arms have the same name")
        if len({shadow.bundle for shadow in self.shadows}) < len(self.shadows):
            raise ValueError("two shadows have the same bundle")
        total = sum(arm.percent for arm in self.arms)
        if total > 100 + ROUNDING:
            raise ValueError(f"the arms have {total:g} percent together, more than 100")
        return self

    @property
    def is_logged(self) -> bool:
        """Whether rankings are to be logged: an experiment or a shadow runs."""
        return self.experiment is not None or bool(self.shadows)

    def bundles(self) -> list[str]:
        """Bundles that have to be served beside the active one; an arm of 0 percent has nobody to serve."""
        named = [arm.bundle for arm in self.arms if arm.percent] + [shadow.bundle for shadow in self.shadows]
        return list(dict.fromkeys(named))

    def bundle_of(self, arm: str) -> str | None:
        """The bundle of an arm; None: the active one."""
        return next((one.bundle for one in self.arms if one.name == arm), None)

    def percents(self) -> dict[str, float]:
        """What every arm has of the users, control first."""
        own = {arm.name: arm.percent for arm in self.arms}
        return {CONTROL: max(0.0, 100.0 - sum(own.values())), **own}


NO_ROUTING = Routing()


class _File(Typed):
    """The file: the routing that holds, and those that held before, which reading an experiment's log needs."""

    format: int = Field(default=1, ge=1, le=1)
    current: Routing = NO_ROUTING
    earlier: tuple[Routing, ...] = ()


def assign(routing: Routing, user_id: str) -> str:
    """The arm of a user: the same for the same experiment, user and percents, always and everywhere."""
    if routing.experiment is None or not routing.arms:
        return CONTROL
    point = point_of(routing.experiment, user_id)
    return next((name for name, low, high in ranges(routing) if low <= point < high), CONTROL)


def ranges(routing: Routing) -> Iterator[tuple[str, float, float]]:
    """Which points every arm owns, from the first up to before the last; they never overlap. The rest is control's."""
    low, high = 0, POINTS
    for number, arm in enumerate(routing.arms):
        part = min(round(arm.percent / 100 * POINTS), high - low)
        if number % 2 == 0:
            yield arm.name, low / POINTS, (low + part) / POINTS
            low += part
        else:
            yield arm.name, (high - part) / POINTS, high / POINTS
            high -= part


def point_of(experiment: str, user_id: str) -> float:
    """A number in [0, 1), uniform over users, of 53 bits; other experiments give a user independent ones."""
    name = experiment.encode()
    hashed = blake2b(len(name).to_bytes(4, "little") + name, digest_size=8)  # a length: "a" + "bc" is not "ab" + "c"
    hashed.update(user_id.encode("utf-8", "surrogatepass"))
    return (int.from_bytes(hashed.digest(), "little") >> 11) / POINTS


def read_routing(store: files.AnyPath) -> Routing:
    """The routing of a store; none was written: everybody has the active bundle."""
    return _read(Path(store)).current


def read_routings(store: files.AnyPath) -> list[Routing]:
    """All routings that a store remembers, oldest first, the current one last."""
    found = _read(Path(store))
    return [*found.earlier, found.current]


def write_routing(store: files.AnyPath, routing: Routing) -> Routing:
    """Replace the routing of a store, whole or not at all; gives it with the time since which it holds.

    A routing without arms and shadows ends what was running. Whoever serves the store sees the change in a moment.
    """
    path = Path(store)
    with files.locked(path / LOCK, "changing the routing", "store"):
        before = _read(path) if routing.is_logged else _readable(path)
        if before is not None and _said(before.current) == _said(routing):
            return before.current
        before = before or _File()
        newest = before.current.since or 0
        now = routing.model_copy(update={"since": max(time.time_ns() // 1_000_000, newest + 1)})
        earlier = (*before.earlier, *([before.current] if before.current.since is not None else []))
        kept = _File(current=now, earlier=earlier[-MOST_EARLIER:])
        files.write_json(path / ROUTING, kept.model_dump(mode="json"))
        return now


def check_bundles(store: BundleStore, routing: Routing) -> None:
    """Raise unless every bundle that a routing names is in the store and can be read."""
    from limerank.serve.bundles.bundle import read_manifest  # needs torch, which reading a routing does not

    for bundle_id in dict.fromkeys([*(arm.bundle for arm in routing.arms), *(one.bundle for one in routing.shadows)]):
        read_manifest(store.bundle_path(bundle_id))


def _read(store: Path) -> _File:
    path = store / ROUTING
    if not path.exists():
        return _File()
    return validate(_File, files.read_json(path, BundleError, FIX), str(path), BundleError)


def _readable(store: Path) -> _File | None:
    """The same, or None where the file is damaged: ending everything must work then, too."""
    try:
        return _read(store)
    except BundleError:
        return None


def _said(routing: Routing) -> Routing:
    return routing.model_copy(update={"since": None})
