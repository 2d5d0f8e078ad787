"""What needs no engine: names of engines, engines that are missing, and rows that others compute."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from calling import refusal
from forging import assert_same_files

from limerank.api.run import Run
from limerank.batch import Features
from limerank.data.store.dataset import StoredDataset
from limerank.errors import UsageError
from limerank.models import Ranker
from limerank.serve.bundles import item_stage
from limerank.serve.bundles.bundle import Bundle
from limerank.serve.bundles.item_stage import ItemStage, Rows, RowType, arrays_of
from limerank.serve.bundles.offline import export_bundle
from limerank.serve.bundles.on_ray.address import address_of, host_and_port, same_cluster
from limerank.serve.bundles.on_ray.worker import recipe_of, stage_of
from limerank.serve.bundles.row_writer import Shard

WITHOUT_RAY = """
import sys
sys.modules["ray"] = None
from limerank.cli import main
main()
"""


@pytest.mark.parametrize(
    ("engine", "address"),
    [
        (None, None),
        ("ray", None),
        ("ray:auto", "auto"),
        ("ray:127.0.0.1:6379", "127.0.0.1:6379"),
        ("ray:ray://host:10001", "ray://host:10001"),
        ("ray://host:10001", "ray://host:10001"),
        ("ray:[::1]:6379", "[::1]:6379"),
    ],
)
def test_an_engine_names_an_address(engine: str | None, address: str | None) -> None:
    assert address_of(engine) == address


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        ("spark", "engine 'spark': no such engine; known: ray .* and ray:ADDRESS"),
        ("ray:", "engine 'ray:': no such engine"),
        ("ray:host", "engine 'ray:host': an address is auto, HOST:PORT or ray://HOST:PORT"),
        ("ray:host:70000", "engine 'ray:host:70000': an address is auto"),
        ("ray:local", "engine 'ray:local': an address is auto"),
        ("ray://host", "engine 'ray://host': an address is auto.* such as ray://10.0.0.1:10001"),
        ("ray:::1:6379", "engine 'ray:::1:6379': an address is auto"),
        ("ray:host:6379/", "engine 'ray:host:6379/': an address is auto"),
    ],
)
def test_a_name_that_is_none_is_refused(engine: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        address_of(engine)


@pytest.mark.parametrize(
    ("address", "parts"),
    [("host:1", ("host", 1)), ("[::1]:6379", ("::1", 6379)), ("10.0.0.1:65535", ("10.0.0.1", 65535))],
)
def test_addresses_have_two_parts(address: str, parts: tuple[str, int]) -> None:
    """The same ones for whoever exports and whoever serves."""
    assert host_and_port(address, "here") == parts == host_and_port(address, "here", client=True)


@pytest.mark.parametrize(
    "address", ["10.0.0.1", "[::1]", "::1", "", ":6379", "host:", "host:0", "host:x", "ray://host:1"]
)
def test_an_address_that_is_none_is_a_line_that_names_the_fix(address: str) -> None:
    with pytest.raises(UsageError) as refused:
        host_and_port(address, "ray at it")
    assert str(refused.value).startswith(
        "ray at it: an address is auto or HOST:PORT, such as 10.0.0.1:6379 or [fd00::1]"
    )


@pytest.mark.parametrize(
    ("address", "joined", "same"),
    [
        ("auto", "10.0.0.1:6379", True),
        ("10.0.0.1:6379", "10.0.0.1:6379", True),
        ("localhost:6379", "127.0.0.1:6379", True),
        ("127.0.0.2:6379", "127.0.0.1:6379", True),  # both are this machine
        ("127.0.0.1:6380", "127.0.0.1:6379", False),
        ("127.0.0.1:6379", "203.0.113.9:6379", False),
        ("203.0.113.8:6379", "203.0.113.9:6379", False),
        ("no-such-name.invalid:6379", "127.0.0.1:6379", False),
        ("ray://127.0.0.1:6379", "127.0.0.1:6379", False),
    ],
)
def test_names_of_one_cluster(address: str, joined: str, same: bool) -> None:
    assert same_cluster(address, joined, "here") is same


def test_a_cluster_has_its_own_number_of_cores(runs: dict[str, Run], tmp_path: Path) -> None:
    said = refusal(2, "export", runs["ttsn"].path, "--store", tmp_path / "s", "--engine", "ray:auto", "--threads", "2")
    assert said == "error: engine 'ray:auto': the cluster knows how many cores it has; leave --threads out\n"
    assert not (tmp_path / "s").exists()


def test_a_missing_engine_is_a_line_with_the_extra(runs: dict[str, Run], tmp_path: Path) -> None:
    """In a process that cannot import Ray; nothing is made."""
    command = ["export", str(runs["ttsn"].path), "--store", str(tmp_path / "s"), "--engine", "ray"]
    done = subprocess.run([sys.executable, "-c", WITHOUT_RAY, *command], capture_output=True, text=True)
    assert done.returncode == 6
    assert done.stderr == "error: this needs ray, which is not installed: pip install 'limerank[ray]'\n"
    assert not (tmp_path / "s").exists()


def test_what_travels_makes_the_same_rows(ranker: Ranker, dataset: StoredDataset) -> None:
    """Of every ranker, without the weights of its user side; the ranker itself stays as it is."""
    stage = ItemStage(ranker, dataset.item_table, "fp32")
    before = {name: tensor.clone() for name, tensor in ranker.state_dict().items()}
    recipe = recipe_of(stage, stage.sample_hash())
    assert set(recipe.weights) < {name for name, _ in [*ranker.named_parameters(), *ranker.named_buffers()]}
    assert all(parameter.is_meta for parameter in recipe.skeleton.parameters())
    assert stage_of(recipe).sample_hash() == recipe.made
    assert all(torch.equal(tensor, before[name]) for name, tensor in ranker.state_dict().items())


class Backwards:
    """A fleet in this process, which takes all parts and gives the last one first."""

    @contextmanager
    def computed(
        self, stage: ItemStage, made: str, parts: Iterable[tuple[Shard, Features]]
    ) -> Iterator[Iterator[tuple[Shard, Rows]]]:
        own = stage_of(recipe_of(stage, made))
        assert own.sample_hash() == made
        yield ((shard, self._rows(own, features)) for shard, features in reversed(list(parts)))

    def _rows(self, stage: ItemStage, features: Features) -> Rows:
        part = ItemStage(stage.ranker, features, stage.row_type)
        blocks = [arrays_of(rows) for _, rows in part.blocks(np.arange(len(features)))]
        return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


@pytest.mark.parametrize("row_type", ["fp16", "fp32", "u8"])
def test_bytes_do_not_depend_on_who_computes_nor_on_the_order(
    dataset: StoredDataset, runs: dict[str, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row_type: RowType
) -> None:
    """Nor on whether some rows are copied from an earlier bundle."""
    monkeypatch.setattr(item_stage, "ITEMS_PER_BLOCK", 16)
    monkeypatch.setattr(item_stage, "ITEMS_PER_SHARD", 32)
    run = runs["lime-mha"]
    ranker, model = run.ranker(dataset), run.config.model

    def exported(store: str, fleet: Backwards | None = None) -> tuple[int, Bundle]:
        done = export_bundle(
            ranker, model, dataset, tmp_path / store, max_history=20, row_type=row_type, threads=1, fleet=fleet
        )
        return done.copied, done.bundle

    _, here = exported("here")
    copied, there = exported("there", Backwards())
    again, once_more = exported("there", Backwards())
    assert (copied, again) == (0, 201)
    assert_same_files(here, there)
    assert_same_files(here, once_more)
