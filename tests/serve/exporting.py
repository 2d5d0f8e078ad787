"""What an overlay must equal: a bundle exported anew, by the real export, from a dataset with other items."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import polars as pl
import torch

from limerank.data.build.entities import read_table, write_table
from limerank.data.raw.location import Location
from limerank.data.store.column_files import write_ids
from limerank.data.store.dataset import StoredDataset
from limerank.data.store.manifest import seal
from limerank.models import Ranker, build_ranker
from limerank.schema import Role
from limerank.serve.bundles.bundle import Bundle
from limerank.serve.bundles.offline import RowType, export
from limerank.serve.bundles.store import BundleStore


def fresh_ranker(name: str, dataset: StoredDataset) -> Ranker:
    """A ranker of chance weights, the same for every call; what rows and scores are made of matters here, not AUC."""
    torch.manual_seed(5)
    ranker = build_ranker({"name": name}, dataset.encoders.space(), len(dataset.schema.tasks), "test")
    with torch.no_grad():  # starting weights are small: probabilities must differ by more than rounding
        for parameter in ranker.parameters():
            parameter.mul_(1.4)
    return ranker.eval()


def with_items(dataset: StoredDataset, items: pl.DataFrame) -> StoredDataset:
    """The same dataset and encoders with other items: raw ones, in row order, cleaned and encoded as `prepare` does."""
    schema, manifest = dataset.schema, dataset.manifest
    folder = Path(tempfile.mkdtemp(dir=dataset.path.parent)) / "d"
    shutil.copytree(dataset.path, folder)
    (segment,) = manifest.segments
    shutil.rmtree(folder / segment.name / "items")
    described = read_table(items, Location("items"), schema.item_id, schema.with_role(Role.ITEM), None)
    table = described.of(items[schema.item_id].cast(pl.String))
    write_table(folder / segment.name, "items", dataset.encoders.item, table, unknown=True)
    write_ids(folder / segment.name / "item_ids.arrow", table.ids, None, unknown=True)
    segments = [segment.model_copy(update={"items": items.height + 1})]
    seal(folder, manifest.model_copy(update={"segments": segments}))
    return StoredDataset.open(folder)


def exported(name: str, dataset: StoredDataset, store: Path, row_type: RowType = "fp32") -> Bundle:
    """A bundle of chance weights in a store, active."""
    bundle = export(fresh_ranker(name, dataset), {"name": name}, dataset, store, max_history=20, row_type=row_type)
    BundleStore(store).make_active(bundle)
    return bundle
