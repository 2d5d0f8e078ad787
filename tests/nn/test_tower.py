"""The item tower: its values, its shortcut, and what finished runs say of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml

from limerank.config import RunConfig, TrainConfig, finished_model, load_run_config
from limerank.data.batches import RequestLoader
from limerank.data.store.dataset import StoredDataset
from limerank.errors import DataError
from limerank.models import RANKERS, build_ranker
from limerank.nn.features import FeatureEmbedding
from limerank.progress import Progress
from limerank.schema import EncodedFeature, Kind
from limerank.serve.bundles.bundle import row_fingerprint
from limerank.splits import Part
from limerank.training.run import FinishedRun
from limerank.training.trainer import train


@pytest.mark.parametrize("shortcut", [True, False])
def test_values(dataset: StoredDataset, shortcut: bool) -> None:
    """T = W2 relu(h) + b2 + S h with h = W1 x + b1; E the same with the event's part in h; without a shortcut no S."""
    torch.manual_seed(0)
    model = {"name": "ttsn", "tower_shortcut": shortcut}
    tower = build_ranker(model, dataset.encoders.space(), 1, "test").double().eval().item_tower
    loader = RequestLoader(dataset, Part.TEST, batch_requests=20, max_history=20)
    history = loader.user_inputs(loader.requests[:20]).history
    assert tower.event_embedding is not None
    assert tower.from_event is not None
    item = tower.item_embedding(history.items) @ tower.from_item.weight.T + tower.from_item.bias
    event = tower.event_embedding(history.events) @ tower.from_event.weight.T
    for found, hidden in (
        (tower.candidates(history.items), item),
        (tower.history(history), item[history.item_of_event] + event),
    ):
        expected = hidden.clamp(min=0) @ tower.to_output.weight.T + tower.to_output.bias
        assert (tower.shortcut is not None) is shortcut
        if tower.shortcut is not None:
            expected = expected + hidden @ tower.shortcut.weight.T
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", RANKERS)
def test_rows_are_tied_to_the_shortcut(dataset: StoredDataset, name: str) -> None:
    """All rankers have it by default, and rows made with another one are known by their fingerprint."""
    torch.manual_seed(0)
    ranker = build_ranker({"name": name}, dataset.encoders.space(), 1, "test").eval()
    assert ranker.item_tower.shortcut is not None
    before = row_fingerprint(ranker, dataset.item_table)
    with torch.no_grad():
        ranker.item_tower.shortcut.weight.mul_(2.0)
    assert row_fingerprint(ranker, dataset.item_table) != before


def test_a_run_names_every_option_and_one_of_before_has_no_shortcut(dataset: StoredDataset, tmp_path: Path) -> None:
    """A new run says what it was built with; in one that does not name the shortcut there was none yet."""
    asked = RunConfig(dataset=dataset.path, model={"name": "ttsn"}, train=TrainConfig(epochs=1, max_history=5))
    run = train(asked, tmp_path / "run", Progress(quiet=True))
    assert run.config.model == {"name": "ttsn", **RANKERS["ttsn"].options_type().model_dump(mode="json")}
    assert run.config.model["tower_shortcut"] is True
    file = run.path / "config.yaml"
    values = yaml.safe_load(file.read_text())
    del values["model"]["tower_shortcut"]
    file.write_text(yaml.safe_dump(values))
    assert load_run_config(file).model["tower_shortcut"] is False
    assert finished_model({"name": "lime-xor", "links": 4}) == {
        "name": "lime-xor",
        "links": 4,
        "tower_shortcut": False,
        "id_start": 0.5,
        "sharpness": 1.0,
        "link_start": "normal",
        "value_norm": True,
    }
    assert finished_model({"name": "pma", "tower_shortcut": True, "link_start": "items"})["link_start"] == "items"
    assert finished_model({"name": "hstu"})["sharpness"] is None
    assert finished_model({"name": "hstu", "sharpness": 2.0, "tower_shortcut": True})["sharpness"] == 2.0
    before = {"readout": "last", "final_norm": False, "sharpness": None, "tower_shortcut": False, "id_start": 0.5}
    assert finished_model({"name": "sasrec"}) == {"name": "sasrec", **before}
    assert finished_model({"name": "sasrec", "readout": "target"})["readout"] == "target"
    with pytest.raises(DataError, match="cannot be loaded as weights of 'ttsn'"):
        FinishedRun.open(run.path).ranker(dataset)


def feature(size: int, kind: Kind = Kind.CATEGORICAL) -> EncodedFeature:
    return EncodedFeature(name=f"{kind}-{size}", kind=kind, size=size)


@pytest.mark.parametrize(
    ("others", "small"),
    [
        ((feature(30), feature(200)), True),  # 6,000 combinations for 5,000 ids
        ((feature(12, Kind.CONTINUOUS), feature(25, Kind.MULTI_VALUED)), True),  # 12 x 25 x 25
        ((feature(8, Kind.VECTOR),), True),
        ((feature(17, Kind.CONTINUOUS),), False),
        ((), False),
        ((feature(9000),), False),  # another id tells nothing that is alike
    ],
)
def test_ids_start_small_where_attributes_tell_items_apart(others: tuple[EncodedFeature, ...], small: bool) -> None:
    """The deviation of an id's embeddings at the start is `id_start`, of attributes and lone ids 0.5."""
    torch.manual_seed(0)
    embedding = FeatureEmbedding((feature(5000), *others), 16, unknown_rate=0.01, id_start=0.1)
    deviation = embedding.table[:5000].std().item()  # 80,000 numbers: known to 0.3 %
    assert deviation == pytest.approx(0.1 if small else 0.5, rel=0.02)
    if len(embedding.table) > 5000:
        assert embedding.table[5000:].std().item() == pytest.approx(0.5, rel=0.2)
