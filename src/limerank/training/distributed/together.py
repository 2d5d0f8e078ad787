"""What a step does besides when several ranks share its batch: ask peers, draw apart, add gradients up."""

from __future__ import annotations

import json

import numpy as np
import torch
from torch import Tensor, nn
from torch import distributed as dist

from limerank.batch import RequestBatch
from limerank.config import DistributedConfig, RunConfig
from limerank.errors import UsageError
from limerank.models import Ranker
from limerank.training.checkpoint import comparable
from limerank.training.distributed.gradients import sum_dense, sum_tables
from limerank.training.distributed.pieces import WHOLE, CutTables
from limerank.training.distributed.ranks import Ranks
from limerank.training.distributed.spread import Spread, set_peers
from limerank.training.optimizer import Optimizer


class Together:
    """The ranks of one training step. `rows` are those of the last batch, of all ranks."""

    def __init__(self, ranker: Ranker, ranks: Ranks, config: DistributedConfig, device: torch.device) -> None:
        self.ranks = ranks
        self.device = device
        self.peers = Spread(ranks)
        self.rows = 0
        self.in_pieces: list[nn.Parameter] = []
        set_peers(ranker, self.peers)
        self.cut = WHOLE if config.embeddings == "replicated" else _cut(ranker, config, ranks, device)

    def begin(self, batch: RequestBatch) -> None:
        """This rank's share is about to be learned from."""
        self.peers.empty = batch.empty
        self.cut.asked.clear()

    def add_up(self, optimizer: Optimizer, batch: RequestBatch, loss: Tensor, whole: Tensor) -> tuple[Tensor, Tensor]:
        """Make gradients those of the whole batch; returns the whole batch's loss, without and with the own term."""
        rows = 0 if batch.empty else len(batch.labels)
        dense = optimizer.parameters_of("dense")
        told = torch.stack([loss.detach(), whole.detach(), loss.new_tensor(rows)]).to(dense[0].dtype)
        told = sum_dense(dense, told)
        tables = optimizer.parameters_of("tables")
        whole_tables = [table for number, table in enumerate(tables) if number not in self.cut.numbers]
        sum_tables(whole_tables, self.ranks, dense=not optimizer.sparse)
        self.in_pieces = [tables[number] for number in self.cut.numbers]
        for table in self.in_pieces:
            if table.grad is None:  # nobody asked this rank for a row: a step without rows is a step
                table.grad = torch.zeros_like(table)
        self.rows = round(float(told[2]))
        return told[0], told[1]

    def whole_norm(self, parameter: nn.Parameter, norm: Tensor) -> Tensor:
        """The norm of a gradient from that of the rows that are here; of what every rank has whole it is the same."""
        if not any(parameter is table for table in self.in_pieces):
            return norm
        square = norm.square()
        dist.all_reduce(square)
        return square.sqrt()


def draw_apart(seed: int, step: int, ranks: Ranks) -> None:
    """Let every rank draw numbers of its own in this step, which is a function of these three alone.

    So nothing of generators has to be kept for a training to go on as it would have on as many ranks.
    """
    if ranks.size > 1:
        torch.manual_seed(int(np.random.SeedSequence([seed, step, ranks.rank]).generate_state(1, np.uint64)[0] >> 1))


def check_agreed(config: RunConfig, fingerprint: str, ranks: Ranks) -> None:
    """Refuse, on all ranks, if one was told or has something else than the first: their gradients would not add up."""
    distributed = {f"distributed.{key}": value for key, value in config.distributed.model_dump().items()}
    own = comparable(config) | distributed | {"what is in the dataset": fingerprint, "torch": torch.__version__}
    first = json.loads(ranks.told(json.dumps(own)))
    apart = [
        f"{key}: is {own[key]} in process {ranks.rank} and {first.get(key)} in the first one; all processes of a "
        "training need the same configuration, copies of the same dataset and the same torch"
        for key in own
        if json.loads(json.dumps(own[key])) != first.get(key)
    ]
    said = np.frombuffer("".join(apart[:1]).encode(), dtype=np.uint8)
    complaints = [one["said"].tobytes().decode() for one in ranks.gathered({"said": said})]
    if complaint := ranks.told(next(filter(None, complaints), "")):
        raise UsageError(complaint)


def check_shared(config: RunConfig, ranks: Ranks) -> None:
    """Refuse what several processes cannot train."""
    training = config.train
    if training.batch_requests < ranks.size:
        raise UsageError(
            f"train.batch_requests: {training.batch_requests} requests a step are too few for {ranks.size} processes; "
            "raise it, or start fewer processes"
        )
    if training.compile:
        raise UsageError("train.compile: is for one process; set it to false, or do without torchrun")
    if training.precision == "fp16" and config.distributed.embeddings == "torchrec":
        raise UsageError("train.precision: fp16 cannot be trained with distributed.embeddings=torchrec; use bf16")


def _cut(ranker: Ranker, config: DistributedConfig, ranks: Ranks, device: torch.device) -> CutTables:
    from limerank.training.distributed.torchrec_tables import cut_tables

    return cut_tables(ranker, config, ranks, device)
