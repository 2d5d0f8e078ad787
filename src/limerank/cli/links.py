"""`limerank links`: what the links of a LIME bundle stand for."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from limerank.cli.common import JsonOption, StoreArgument, ThreadsOption, emit_json, emit_table, say, use_threads
from limerank.cli.items import ItemNames
from limerank.errors import UsageError

if TYPE_CHECKING:
    from limerank.serve.explanation.link_profiles import Attribute, LinkProfile

IN_A_CELL = 3


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(epilog="Example: limerank links stores/demo --link 3 --top 10")(links)


def links(
    store: StoreArgument,
    link: Annotated[int | None, typer.Option(min=0, help="One link in detail; default: all, a row each.")] = None,
    top: Annotated[int, typer.Option(min=1, help="How many items and attributes of a link.")] = 5,
    minimum_items: Annotated[
        int | None,
        typer.Option(min=1, help="Leave out values of fewer items; default: 5, or a thousandth of the catalog."),
    ] = None,
    bundle: Annotated[str | None, typer.Option(help="Bundle id; default: the active one.")] = None,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """What each link of a LIME ranker attracts in the catalog, whoever asks: its nearest items and its attributes.

    The lift of an attribute is its fraction of the link's weight divided by its fraction of the catalog.
    """
    from limerank.serve.bundles.store import BundleStore
    from limerank.serve.catalog import Catalog
    from limerank.serve.explanation.link_profiles import link_profiles

    use_threads(threads)
    opened = BundleStore.open(store).open_bundle(bundle)
    profiles = link_profiles(opened, top=top, minimum_items=minimum_items)
    if link is not None and link >= len(profiles):
        raise UsageError(f"--link {link}: this ranker has the links 0 to {len(profiles) - 1}")
    shown, names = profiles if link is None else [profiles[link]], ItemNames(Catalog(opened))
    if as_json:
        emit_json({"bundle": opened.manifest.id, "links": [profile_facts(profile, names) for profile in shown]})
        return
    if link is None:
        emit_table("", ["link", "weight", "attracts", "nearest items"], [_cells(profile, names) for profile in shown])
        say("weight: the mean over items; in brackets the lift of an attribute; --link I shows one link in detail")
        return
    (profile,) = shown
    emit_table(
        f"link {profile.name}, mean weight {profile.weight:.4f}",
        ["attribute", "lift", "share of the link", "items in the catalog"],
        [
            [f"{one.feature}={one.value}", f"{one.lift:.2f}", f"{one.fraction:.1%}", one.items]
            for one in profile.attributes
        ],
    )
    displays = names.cells([item for item, _ in profile.items])
    nearest = zip(profile.items, displays, strict=True)
    emit_table(
        "",
        ["nearest item", *names.columns(), "weight"],
        [[item, *display, f"{weight:.4f}"] for (item, weight), display in nearest],
    )


def profile_facts(profile: LinkProfile, names: ItemNames) -> dict[str, Any]:
    """A profile as JSON."""
    displays = names.facts([item for item, _ in profile.items])
    nearest = zip(profile.items, displays, strict=True)
    items = [{"id": item, **display, "weight": weight} for (item, weight), display in nearest]
    return {**asdict(profile), "items": items}


def attribute_text(attribute: Attribute) -> str:
    """`topic=news (4.1x)`."""
    return f"{attribute.feature}={attribute.value} ({attribute.lift:.1f}x)"


def _cells(profile: LinkProfile, names: ItemNames) -> list[str]:
    return [
        profile.name,
        f"{profile.weight:.4f}",
        ", ".join(map(attribute_text, profile.attributes[:IN_A_CELL])) or "-",
        ", ".join(names.joined([item for item, _ in profile.items[:IN_A_CELL]])),
    ]
