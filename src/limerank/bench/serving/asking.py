"""Requests of every size that is measured: from a made-up store, from a store of one's own, or from a service alone."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from limerank.bench.engine.made_up_store import made_up_dataset, made_up_export, user_with
from limerank.bench.serving.connection import Address, Blocking
from limerank.bench.serving.load import Kind
from limerank.errors import LimerankError, UnavailableError
from limerank.models import RANKERS, RankerOptions
from limerank.serve.bundles.bundle import Bundle
from limerank.serve.bundles.store import ACTIVE, BUNDLES, INDEXES, BundleStore
from limerank.serve.overlay.changes import FILE, FOLDER

SIZES: dict[str, Any] = {"width": 32, "heads": 4, "links": 16, "head": (64,)}
"""d = 32, H = 4, l = 16: the reference of docs/explanation and of the contracts."""
TOP, LISTS = 100, 4
PATIENT_MS = 60_000
"""The deadline of measured requests: rankings are to be whole, however long they take."""


@dataclass
class Sized:
    """Items and users that requests are made of; users by the length of their histories."""

    model: str
    item_ids: list[str]
    users: dict[int, str] = field(default_factory=dict)
    """Empty where only a service is known: histories then travel in the body."""
    seed: int = 0
    longest: int = 0
    """Events that may travel in a body."""

    def sizes(self, asked: Sequence[int]) -> list[int]:
        """Numbers of candidates that there are items for; if for none, all there are."""
        return [size for size in asked if size <= len(self.item_ids)] or [len(self.item_ids)]

    @cached_property
    def draw(self) -> np.random.Generator:
        """What candidates are drawn with."""
        return np.random.default_rng(self.seed)

    def candidates(self, count: int) -> list[str]:
        """So many items, in no order; at most all there are."""
        chosen = self.draw.choice(len(self.item_ids), min(count, len(self.item_ids)), replace=False)
        return [self.item_ids[number] for number in chosen]

    def body(self, count: int, history: int) -> dict[str, Any]:
        """A request for a ranking."""
        user = self.users.get(history)
        body: dict[str, Any] = {
            "user_id": user or "limerank-bench",
            "item_ids": self.candidates(count),
            "limit": TOP,
            "options": {"deadline_ms": PATIENT_MS},
        }
        if user is None:
            body["history"] = [{"item_id": item} for item in self.candidates(history)]
        return body

    def kind(self, address: Address, count: int, history: int, user_state: str) -> Kind:
        """Some encoded requests with different candidates each."""
        bodies = [self.body(count, history) for _ in range(LISTS)]
        asked = len(bodies[0]["item_ids"])
        requests = [address.request("POST", "/v1/rank", body) for body in bodies]
        return Kind(self.model, asked, history, user_state, requests)


def ranker_options(model: str) -> RankerOptions:
    """A ranker of the reference's sizes."""
    known = RANKERS[model].options_type
    return known(**{name: value for name, value in SIZES.items() if name in known.model_fields})


def made_up_store(folder: Path, model: str, items: int, histories: Sequence[int], seed: int) -> tuple[Path, Sized]:
    """A store with a bundle of a made-up catalog, and a user for every length of history."""
    dataset = made_up_dataset(folder / "dataset", items, histories, seed)
    bundle = made_up_export(dataset, ranker_options(model), folder, epochs=0).bundle
    store = BundleStore(folder / "store")
    store.make_active(bundle)
    return store.path, Sized(model, _names(bundle), {length: user_with(length) for length in histories}, seed)


def own_store(folder: Path, store: Path, histories: Sequence[int], seed: int) -> tuple[Path, Sized]:
    """A copy of a store whose bundles are linked, not copied, and its users whose histories are nearest to those asked.

    A copy, because the events that are measured must not become anybody's history.
    """
    BundleStore.open(store)  # an error names the store itself, not its copy
    copied = folder / "store"
    for name in (BUNDLES, INDEXES):
        if (store / name).is_dir():
            shutil.copytree(store / name, copied / name, copy_function=_linked)
    if (store / ACTIVE).is_file():
        shutil.copy2(store / ACTIVE, copied / ACTIVE)
    if (store / FOLDER / FILE).is_file():
        (copied / FOLDER).mkdir()
        with (
            closing(sqlite3.connect(store / FOLDER / FILE)) as source,
            closing(sqlite3.connect(copied / FOLDER / FILE)) as target,
        ):
            source.backup(target)
    bundle = BundleStore.open(copied).open_bundle()
    lengths = np.diff(bundle.histories["offsets"].numpy())
    nearest = {int(lengths[row]): int(row) for row in (int(np.abs(lengths - length).argmin()) for length in histories)}
    users = {length: bundle.user_ids.names_of([row])[0] for length, row in nearest.items() if row}
    if not users:
        raise LimerankError(f"{store}: no user of its active bundle has a history that could be measured")
    return copied, Sized(bundle.manifest.model["name"], _names(bundle), users, seed)


def known_of_service(address: Address, most: int, seed: int) -> Sized:
    """What a running service tells of itself: its ranker, and as many item ids as are to be ranked."""
    body = {"user_id": "limerank-bench", "history": [], "limit": most, "options": {"deadline_ms": PATIENT_MS}}
    try:
        connection = Blocking(address)
    except OSError as error:
        raise UnavailableError(
            f"http://{address.host}:{address.port}: {error}; is `limerank serve` running?"
        ) from error
    with connection:
        answer = connection.call("POST", "/v1/rank", body)
        if answer.status != 200:
            raise LimerankError(
                f"{address.host}:{address.port}: /v1/rank answers {answer.status}: {answer.body[:300]!r}"
            )
        info = connection.call("GET", "/v1/info").json()
    item_ids = [str(item["id"]) for item in answer.json()["items"]]
    longest = min(info["limits"]["history_events"], len(item_ids))
    return Sized(info["served"]["model"], item_ids, seed=seed, longest=longest)


def _names(bundle: Bundle) -> list[str]:
    """All items of a bundle, without the row of those that are unknown."""
    return bundle.item_ids.names_of(np.arange(1, bundle.manifest.items))


def _linked(source: str, target: str) -> None:
    try:
        Path(target).hardlink_to(source)
    except OSError:
        shutil.copy2(source, target)
