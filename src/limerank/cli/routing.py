"""`limerank routing`: which bundle answers whom; a service that runs follows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from limerank.cli.common import JsonOption, StoreArgument, emit_json, emit_table, say
from limerank.errors import UsageError

if TYPE_CHECKING:
    from limerank.serve.bundles.store import BundleStore
    from limerank.serve.experiments.routing import Arm, Routing, Shadow

app = typer.Typer(no_args_is_help=True, help="Which bundle answers whom: an experiment's arms, and shadows.")


@app.command(epilog="Example: limerank routing show stores/demo")
def show(
    store: StoreArgument,
    user: Annotated[str | None, typer.Option(help="Also say which arm this user has.")] = None,
    as_json: JsonOption = False,
) -> None:
    """The experiment that runs, its arms and shadows."""
    from limerank.serve.experiments.routing import read_routing

    _show(_opened(store), read_routing(store), as_json, user)


@app.command(
    "set",
    epilog="Example: limerank routing set stores/demo --experiment exp7 --arm new=BUNDLE:5 --shadow BUNDLE:0.1",
)
def set_routing(
    store: StoreArgument,
    experiment: Annotated[
        str | None,
        typer.Option(help="What assignments hang on: the same name gives the same users the same arms."),
    ] = None,
    arm: Annotated[
        list[str] | None,
        typer.Option(help="NAME=BUNDLE:PERCENT: a part of the users, for whom this bundle answers; repeat it."),
    ] = None,
    shadow: Annotated[
        list[str] | None,
        typer.Option(help="BUNDLE:FRACTION: a bundle that ranks a sample of requests unseen; repeat it."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Replace the routing: what is not named here ends. The arm `control` has all others, and the active bundle."""
    from limerank.serve.experiments.routing import Routing, check_bundles, write_routing

    opened = _opened(store)
    if not (experiment or arm or shadow):
        raise UsageError("name an --experiment with its --arm, or a --shadow; to end all use `limerank routing clear`")
    asked = Routing(experiment=experiment, arms=tuple(map(_arm, arm or ())), shadows=tuple(map(_shadow, shadow or ())))
    check_bundles(opened, asked)
    _show(opened, write_routing(store, asked), as_json)


@app.command(epilog="Example: limerank routing clear stores/demo")
def clear(store: StoreArgument, as_json: JsonOption = False) -> None:
    """End experiment and shadows: the active bundle answers everybody. What was logged stays."""
    from limerank.serve.experiments.routing import Routing, write_routing

    opened = _opened(store)
    _show(opened, write_routing(store, Routing()), as_json)


def _opened(store: Path) -> BundleStore:
    from limerank.serve.bundles.store import BundleStore

    return BundleStore.open(store)


def _show(store: BundleStore, routing: Routing, as_json: bool, user: str | None = None) -> None:
    from limerank.serve.experiments.routing import CONTROL, assign
    from limerank.times import time_text

    control = store.current_id()
    assigned = None if user is None else assign(routing, user)
    if as_json:
        found = {"control": control, **routing.model_dump(mode="json")}
        emit_json(found if user is None else {**found, "user": user, "arm": assigned})
        return
    since = "" if routing.since is None else f", since {time_text(routing.since)} UTC"
    if not routing.is_logged:
        say(f"no experiment and no shadow: the active bundle {control} answers everybody{since}")
    else:
        say((f"experiment {routing.experiment}" if routing.experiment else "no experiment") + since)
        rows = [
            [name, f"{percent:g} %", routing.bundle_of(name) or f"{control} (active)"]
            for name, percent in routing.percents().items()
        ]
        rows += [["shadow", f"{one.sample:.0%} of requests", one.bundle] for one in routing.shadows]
        emit_table("", ["arm", "part", "bundle"], rows)
    if assigned is not None:
        say(f"user {user} has the arm {assigned}, bundle {routing.bundle_of(assigned or CONTROL) or control}")


def _arm(text: str) -> Arm:
    from limerank.serve.experiments.routing import Arm

    name, equals, rest = text.partition("=")
    bundle, colon, percent = rest.rpartition(":")
    if not (equals and colon):
        raise UsageError(f"--arm {text}: must look like NAME=BUNDLE:PERCENT")
    return Arm(name=name, bundle=bundle, percent=_number(percent, f"--arm {text}"))


def _shadow(text: str) -> Shadow:
    from limerank.serve.experiments.routing import Shadow

    bundle, colon, sample = text.rpartition(":")
    if not colon:
        raise UsageError(f"--shadow {text}: must look like BUNDLE:FRACTION, such as {text}:0.1")
    return Shadow(bundle=bundle, sample=_number(sample, f"--shadow {text}"))


def _number(text: str, option: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{option}: '{text}' is not a number") from None
