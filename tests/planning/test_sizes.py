"""Bytes that a plan predicts are those of real datasets, bundles and history stores, at three sizes each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from easy_rates import MACHINES, RANKER, RATES, WORKLOAD

import limerank as lr
from limerank.bench.rates.logs import store_bytes
from limerank.bench.rates.run import dense_parameters, row_numbers
from limerank.models import build_ranker, complete_model
from limerank.nn.features import FeatureEmbedding
from limerank.planning.lines import Line
from limerank.planning.plan import Plan, make_plan
from limerank.planning.workload import Workload
from limerank.schema import Feature, Kind, Role, Schema, Task
from limerank.serve.bundles.bundle import Bundle
from limerank.serve.bundles.offline import RowType, export
from limerank.serve.sharded.row_steps import as_steps

SCHEMA = Schema(
    time="time",
    features=(
        Feature(name="topic", role=Role.ITEM),
        Feature(name="vector", role=Role.ITEM, kind=Kind.VECTOR),
        Feature(name="country", role=Role.USER),
        Feature(name="clicked", role=Role.EVENT),
        Feature(name="device", role=Role.CONTEXT),
    ),
    tasks=(Task(name="click", column="clicked"),),
)
SIZES = [(2000, 300, 20), (9000, 800, 25), (40_000, 1500, 40)]
"""Items, users, events of a user."""
NUMBERS, HISTORY = 8, 30


def made(path: Path, items: int, users: int, events: int) -> lr.Dataset:
    """A log in which every user has the same number of events; ids are of fourteen letters."""
    draw, count = np.random.default_rng(0), users * events
    names = [f"item-{number:09}" for number in range(items)]
    people = [f"somebody-{number:05}" for number in range(users)]
    table = pl.DataFrame(
        {
            "item_id": names,
            "topic": draw.integers(0, 50, items).astype(str),
            "vector": list(draw.normal(size=(items, NUMBERS)).astype(np.float32)),
        }
    )
    log = pl.DataFrame(
        {
            "user_id": np.repeat(people, events),
            "item_id": np.array(names)[draw.integers(0, items, count)],
            "time": 1_700_000_000_000 + 60_000 * np.tile(np.arange(events), users),
            "clicked": draw.integers(0, 2, count),
            "device": draw.choice(["phone", "tv"], count),
        }
    )
    countries = pl.DataFrame({"user_id": people, "country": draw.choice(["fr", "de"], users)})
    return lr.Dataset.build(log, items=table, users=countries, schema=SCHEMA, out=path, quiet=True)


def predicted(dataset: lr.Dataset, row_type: RowType) -> tuple[Plan, Bundle]:
    """A plan of what the dataset is, and the bundle that is really made of it."""
    model = complete_model({"name": "lime-mha", "links": 8}, "model")
    ranker = build_ranker(model, dataset.encoders.space(), 1, "model").eval()
    tables = sum(one.table.shape[0] for one in ranker.modules() if isinstance(one, FeatureEmbedding))
    rates = RANKER.model_copy(
        update={
            "row_numbers": row_numbers(ranker),
            "hidden": 64,
            "dense_parameters": dense_parameters(ranker),
            "embedding_width": ranker.options.embedding_width,
        }
    )
    counts = dataset.manifest.counts
    workload = Workload(
        items=counts["items"],
        users=counts["users"],
        events_per_day=counts["events"],
        days=1,
        events_per_request=1,
        requests_per_second=1,
        history=HISTORY,
        embedding_rows=tables,
        item_features=1,
        vector_numbers=NUMBERS,
        id_bytes=14,
        row_type=row_type,
    )
    store = dataset.path.parent / "store"
    bundle = export(ranker, model, dataset, store, max_history=HISTORY, row_type=row_type)
    return make_plan(RATES, rates, workload, MACHINES), bundle


@pytest.mark.parametrize(("items", "users", "events"), SIZES)
@pytest.mark.parametrize("row_type", ["fp16", "u8"])
def test_bundles(tmp_path: Path, items: int, users: int, events: int, row_type: RowType) -> None:
    plan, bundle = predicted(made(tmp_path / "dataset", items, users, events), row_type)
    size = {record.path.removesuffix(".safetensors"): record.bytes for record in bundle.manifest.files}
    assert plan.figure("row_bytes").value == bundle.manifest.row_bytes
    for figure, files in {
        "rows_bytes": ["rows"],
        "item_tables_bytes": ["items", "item_ids"],
        "user_tables_bytes": ["users", "user_ids"],
        "histories_bytes": ["histories"],
        "seen_bytes": ["seen"],
    }.items():
        assert plan.figure(figure).value == pytest.approx(sum(size[name] for name in files), rel=0.05), figure
    weights = plan.figure("table_bytes").value + plan.figure("dense_bytes").value
    assert weights == pytest.approx(size["model"], rel=0.05)
    whole = sum(record.bytes for record in bundle.manifest.files)
    assert plan.figure("bundle_bytes").value == pytest.approx(whole, rel=0.03)


@pytest.mark.parametrize(("items", "users", "events"), SIZES)
def test_datasets(tmp_path: Path, items: int, users: int, events: int) -> None:
    dataset = made(tmp_path / "dataset", items, users, events)
    plan, _ = predicted(dataset, "fp16")
    found = sum(record.bytes for record in dataset.manifest.files)
    assert plan.figure("dataset_bytes").value == pytest.approx(found, rel=0.05)


def test_history_stores(tmp_path: Path) -> None:
    """A line through two sizes tells three others; pages of the file are what it misses."""
    fitted = [2000, 10_000]
    line = Line.fit(fitted, store_bytes(tmp_path, fitted))
    others = [5000, 15_000, 20_000]
    for size, found in zip(others, store_bytes(tmp_path, others), strict=True):
        assert line.at(size) == pytest.approx(found, rel=0.05)


@pytest.mark.parametrize(
    ("items", "candidates"), [(32_768, 32_768), (262_144, 10_000), (10**7, 5_000), (2 * 10**9, 500)]
)
def test_named_candidates_take_what_the_formula_says(items: int, candidates: int) -> None:
    """Rows of names drawn at random, as they travel: near one byte each, two, or the four that are most."""
    workload = WORKLOAD.model_copy(update={"items": float(items), "candidates": float(candidates)})
    plan = make_plan(RATES, RANKER, workload, MACHINES)
    rows = np.sort(np.random.default_rng(0).integers(0, items, candidates))
    assert plan.figure("named_bytes").value == pytest.approx(as_steps(rows).nbytes, rel=0.12)
