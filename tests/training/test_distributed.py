"""What a training on several processes is made of, as far as one can show it; tests/with_engines has the rest."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from calling import limerank, refusal
from torch import Tensor

from limerank.config import DistributedConfig, RunConfig, TrainConfig
from limerank.data.batches import Portion, RequestLoader
from limerank.data.store.dataset import StoredDataset
from limerank.errors import DataError, UnavailableError, UsageError
from limerank.nn.losses import cross_entropy
from limerank.nn.peers import Peers
from limerank.splits import Part
from limerank.training.configuration import overridden_distribution
from limerank.training.distributed.launch import is_launched, launched
from limerank.training.distributed.pieces import CutTable, Piece
from limerank.training.distributed.ranks import Ranks, is_lost
from limerank.training.distributed.together import check_shared, draw_apart
from limerank.training.distributed.torchrec_tables import check_engine, from_words, words_of


def loader_of(dataset: StoredDataset, portion: Portion | None = None) -> RequestLoader:
    return RequestLoader(dataset, Part.TRAIN, batch_requests=7, max_history=5, seed=1, portion=portion)


def test_portions_of_a_batch_are_the_batch(dataset: StoredDataset) -> None:
    """Every request of every batch is read by exactly one of three processes; the plan is the same for all."""
    whole, parts = loader_of(dataset), [loader_of(dataset, Portion(number, 3)) for number in range(3)]
    for requests in whole.plan():
        own = np.concatenate([part.portion.own(requests) for part in parts])
        assert sorted(own) == sorted(requests)
    for batch, *pieces in zip(whole, *parts, strict=True):
        assert len(batch.labels) == sum(len(piece.labels) for piece in pieces if not piece.empty)
        assert float(batch.labels.nansum()) == sum(float(piece.labels.nansum()) for piece in pieces)
        assert len({whole.position, *(part.position for part in parts)}) == 1


def test_a_process_without_requests_brings_one_without_labels(dataset: StoredDataset) -> None:
    """It can take part in every exchange, and nothing is learned from what it brings."""
    loader = loader_of(dataset, Portion(2, 3))
    batch = loader.assemble_own(loader.requests[:2])
    assert batch.empty
    assert len(batch.inputs) == 1
    assert bool(batch.labels.isnan().all())
    assert batch.map(torch.clone).empty


class Known(Peers):
    """Others whose counts are known."""

    def __init__(self, others: Tensor) -> None:
        self.others = others

    def total(self, tensor: Tensor) -> Tensor:
        """Theirs and ours."""
        return tensor + self.others


def test_shares_of_a_loss_add_up(dataset: StoredDataset) -> None:
    """With tasks that miss labels and weigh differently; the mean of the means would be another number."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(23, 2, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 2, (23, 2), generator=generator).double()
    labels[torch.rand(23, 2, generator=generator) < 0.4] = torch.nan
    weights = torch.tensor([1.0, 3.0], dtype=torch.float64)
    cut = 6
    known = labels.isnan().logical_not()
    first = cross_entropy(logits[:cut], labels[:cut], weights, Known(known[cut:].sum(0)))
    second = cross_entropy(logits[cut:], labels[cut:], weights, Known(known[:cut].sum(0)))
    whole = cross_entropy(logits, labels, weights)
    assert float(first + second) == pytest.approx(float(whole), abs=1e-12)
    means = [cross_entropy(logits[part], labels[part], weights) for part in (slice(cut), slice(cut, None))]
    assert abs(float(sum(means)) / 2 - float(whole)) > 1e-3


def test_pieces_of_a_table_are_the_table() -> None:
    """Two features over three ranks, one of which has nothing of the second."""
    table = CutTable([Piece(0, 0, 2), Piece(1, 2, 2), Piece(2, 4, 1), Piece(2, 5, 2), Piece(0, 7, 2)], 9)
    whole = torch.arange(18.0).view(9, 2)
    parts = [table.part(whole, rank) for rank in range(4)]
    assert [len(part) for part in parts] == [4, 2, 3, 0]
    assert torch.equal(parts[0][:, 0], torch.tensor([0.0, 2, 14, 16]))
    alone = CutTable([Piece(0, 4, 5), Piece(0, 0, 4)], 9)
    assert torch.equal(alone.whole(alone.part(whole, 0), Ranks()), whole)  # type: ignore[arg-type]


def test_ranks_draw_apart_and_repeatably() -> None:
    """A step on as many ranks draws the same again, another rank and another step something else; one draws on."""

    def drawn(step: int, rank: int) -> float:
        draw_apart(1, step, Ranks(rank, 2))
        return float(torch.rand(()))

    assert drawn(5, 0) == drawn(5, 0)
    assert len({drawn(step, rank) for step in range(3) for rank in range(2)}) == 6
    before = torch.get_rng_state()
    draw_apart(1, 5, Ranks())
    assert torch.equal(torch.get_rng_state(), before)


def test_one_process_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither started by torchrun, nor as the only one: nothing is opened."""
    monkeypatch.delenv("RANK", raising=False)
    assert not is_launched()
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert not is_launched()
    with launched(None) as ranks:
        assert ranks == Ranks()


def test_a_peer_that_is_gone_is_told_from_other_errors() -> None:
    assert is_lost(RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer"))
    assert is_lost(torch.distributed.DistNetworkError("The client socket has timed out"))
    assert not is_lost(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_lost(DataError("runs/gloo: is damaged"))


def test_torchrec_missing_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchrec", None)
    with pytest.raises(UnavailableError, match=r"needs torchrec, .*pip install 'limerank\[torchrec\]'"):
        check_engine()


def test_what_cannot_be_shared_is_refused(dataset: StoredDataset) -> None:
    """With the key to change; one process may do all of it."""

    def config(embeddings: str = "replicated", **training: object) -> RunConfig:
        distributed = DistributedConfig.model_validate({"embeddings": embeddings})
        train = TrainConfig.model_validate(training)
        return RunConfig(dataset=dataset.path, model={"name": "ttsn"}, train=train, distributed=distributed)

    for refused, key in (
        (config(batch_requests=3), "train.batch_requests"),
        (config(compile=True), "train.compile"),
        (config("torchrec", precision="fp16"), "train.precision"),
    ):
        with pytest.raises(UsageError, match=key):
            check_shared(refused, Ranks(1, 4))
    check_shared(config(batch_requests=4, precision="bf16"), Ranks(1, 4))
    check_shared(config(batch_requests=1), Ranks())


def test_resume_may_change_how_tables_are_held_and_nothing_else() -> None:
    assert overridden_distribution(["distributed.embeddings=torchrec"]).embeddings == "torchrec"
    assert overridden_distribution(["distributed={sharding: row_wise}"]).sharding == "row_wise"
    with pytest.raises(UsageError, match=r"--set train.epochs=9: .* keeps its configuration but distributed"):
        overridden_distribution(["distributed.embeddings=torchrec", "train.epochs=9"])
    with pytest.raises(UsageError, match="distributed.sharding"):
        overridden_distribution(["distributed.sharding=diagonal"])


def test_one_process_has_no_use_for_torchrec(
    dataset: StoredDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A configuration for many processes trains on one that has no TorchRec."""
    monkeypatch.setitem(sys.modules, "torchrec", None)
    asked = ["--set", "distributed.embeddings=torchrec", "--set", "train.epochs=1", "--set", "train.max_history=5"]
    done = limerank("train", "ttsn", "--dataset", dataset.path, *asked, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert "embeddings: torchrec" in (tmp_path / "run/config.yaml").read_text()
    assert "unknown key" in refusal(2, "train", "ttsn", "--set", "distributed.ranks=2", "--out", tmp_path / "other")


def test_words_carry_every_bit_of_a_number() -> None:
    """Through the sums with zeros that TorchRec makes of gradients, too."""
    numbers = torch.randint(-(2**63), 2**63 - 1, (4096, 3), generator=torch.Generator().manual_seed(1))
    special = [[0.0, -0.0, torch.inf], [-torch.inf, torch.nan, 5e-324], [1.0, -1.0, 0.1]]
    rows = torch.cat([numbers.view(torch.float64), torch.tensor(special, dtype=torch.float64)])

    def moved(words: Tensor) -> Tensor:
        return torch.zeros_like(words).index_add_(0, torch.arange(len(words)), words)

    bits = rows.view(torch.int64)
    assert words_of(rows).dtype == torch.float32
    assert torch.equal(from_words(moved(words_of(rows))).view(torch.int64), bits)
    assert from_words(words_of(rows[:0])).shape == (0, 3)
