"""A store that is meant to hurt whoever looks into it: many items, long and wicked names, a user with a long history.

python tests/hostile_store.py FOLDER [ITEMS]     # FOLDER/store; a million items take a minute and about a gigabyte

Items are made by repetition. Their names (the column `title`) and attributes hold markup, right-to-left text, line
breaks and 100,000 characters; so do some ids of users and items. Weights are those that a ranker starts with.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import polars as pl
import torch

from limerank.api.dataset import Dataset
from limerank.models import build_ranker
from limerank.schema import Feature, Kind, Role, Schema, Task
from limerank.serve.bundles.offline import export
from limerank.serve.bundles.store import BundleStore

WICKED = (
    "<script>document.title='owned'</script>",
    '"><img src=x onerror="document.title=\'owned\'">',
    "<svg/onload=document.title='owned'>",
    "javascript:document.title='owned'",
    "\u202eevil \u2066name\u2069\u202c שלום עולם مرحبا",
    "a/b?c=d#e&f=%41 \\ ' ` ${1} {{2}}",
    "two\nlines\tand\ttabs",
)
LONG = "long " * 20_000
"""100,000 characters."""
BUSY, EVENTS = "busy", 16_384
TOPICS, USERS, USERS_EVENTS = 40, 300, 30
FIRST_TIME, MINUTE = 1_700_000_000_000, 60_000
SCHEMA = Schema(
    time="time",
    display="title",
    features=(
        Feature(name="topic", role=Role.ITEM),
        Feature(name="tags", role=Role.ITEM, kind=Kind.MULTI_VALUED, separator="|"),
        Feature(name="clicked", role=Role.EVENT),
        Feature(name="device", role=Role.CONTEXT),
    ),
    tasks=(Task(name="click", column="clicked"),),
)


def hostile_store(folder: Path, items: int = 1_000_000, *, links: int = 16) -> Path:
    """Make the store, with one active bundle, and return its path."""
    dataset = _dataset(folder / "dataset", items)
    store = folder / "store"
    model = {"name": "lime-mha", "links": links}
    torch.manual_seed(0)
    ranker = build_ranker(model, dataset.encoders.space(), len(dataset.schema.tasks), "model").eval()
    BundleStore(store).make_active(export(ranker, model, dataset, store, max_history=EVENTS))
    return store


def _dataset(path: Path, items: int) -> Dataset:
    draw = np.random.default_rng(0)
    numbers = np.arange(items)
    ids = [*WICKED, *(f"item-{number:07}" for number in numbers[len(WICKED) :])]
    topics = [*WICKED, LONG, *(f"topic {number}" for number in range(TOPICS))]
    topic = [topics[number % len(topics)] for number in range(min(items, 50 * len(topics)))]
    topic += [
        f"topic {number % TOPICS}" for number in range(len(topic), items)
    ]  # the long one is not there a million times
    titles = [
        f"{name} #{number}" for number, name in zip(range(items), WICKED * (items // len(WICKED) + 1), strict=False)
    ]
    titles[len(WICKED)] = f"{LONG}#{len(WICKED)}"
    table = pl.DataFrame({"item_id": ids, "topic": topic, "tags": topic, "title": titles})
    users = {
        **dict.fromkeys(WICKED, USERS_EVENTS),
        **{f"user-{n:07}": USERS_EVENTS for n in range(USERS)},
        BUSY: EVENTS,
    }
    popular = draw.integers(0, items, 2_000)
    parts = []
    for user, count in users.items():
        chosen = popular[draw.integers(0, len(popular), count)]
        chosen[: len(WICKED)] = range(len(WICKED))
        parts.append(
            pl.DataFrame(
                {
                    "user_id": [user] * count,
                    "item_id": [ids[number] for number in chosen.tolist()],
                    "time": FIRST_TIME + MINUTE * np.linspace(0, 40_000, count).astype(np.int64),
                    "clicked": draw.integers(0, 2, count),
                    "device": draw.choice(["phone", "tv", WICKED[0]], count),
                }
            )
        )
    return Dataset.build(pl.concat(parts), items=table, schema=SCHEMA, out=path, quiet=True)


if __name__ == "__main__":
    sys.stdout.write(f"{hostile_store(Path(sys.argv[1]), *map(int, sys.argv[2:3]))}\n")
