"""Every stage as one question: how long does it take at these sizes? Rates are fitted to answers, checked by others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from limerank.bench.rates import logs
from limerank.bench.rates.catalogs import Catalogs, interaction_seconds, scan_seconds, user_seconds
from limerank.bench.rates.sizes import STAGES, Scale
from limerank.bench.rates.training import training_seconds

FEW, MANY = 4, 64
"""Candidates of a request in training, at which steps are measured."""


@dataclass(frozen=True)
class Measured:
    """Values at sizes: core-seconds, or bytes; `sizes` are the real ones where a log is drawn."""

    sizes: list[int]
    values: list[float]


Probe = Callable[[Sequence[int]], Measured]


class Probes:
    """The probes of one ranker, which work in one folder."""

    def __init__(self, folder: Path, model: Mapping[str, Any], scale: Scale) -> None:
        self.folder, self.model, self.scale = folder, model, scale
        sizes = [scale.of(stage) for stage in STAGES if stage.startswith("user stage")]
        histories = [history for one in sizes for history in (*one.fitted, *one.checked)]
        self.catalogs = Catalogs(folder, model, histories, scale.rounds)
        self.of: dict[str, Probe] = {
            "prepare": self._prepare,
            "history store, write": self._plain(lambda sizes: logs.store_add_seconds(folder, sizes, 2 * scale.repeats)),
            "history store, read": self._plain(lambda sizes: logs.store_read_seconds(folder, sizes, scale.repeats)),
            "history store, bytes": self._plain(lambda sizes: logs.store_bytes(folder, sizes)),
            "training": self._plain(lambda sizes: self.training([(h, FEW) for h in sizes])),
            "offline item stage": self._plain(lambda sizes: [self.catalogs.export_seconds(n) for n in sizes]),
            "user stage, events known": self._plain(lambda sizes: self._user(sizes, known=True)),
            "user stage, events computed": self._plain(lambda sizes: self._user(sizes, known=False)),
            "interaction": self._plain(self._interaction),
            "scan": self._plain(lambda sizes: scan_seconds([self.catalogs.bundle(n) for n in sizes], scale.repeats)),
        }

    def training(self, sizes: Sequence[tuple[int, int]]) -> list[float]:
        """Core-seconds of a step with histories and candidates of these lengths."""
        requests = self.scale.requests
        return training_seconds(self.model, [(requests, *size) for size in sizes], max(3, self.scale.repeats // 2))

    @staticmethod
    def _plain(measure: Callable[[Sequence[int]], list[float]]) -> Probe:
        return lambda sizes: Measured(list(sizes), measure(sizes))

    def _prepare(self, sizes: Sequence[int]) -> Measured:
        return Measured(*logs.prepare_seconds(self.folder, sizes, self.scale.rounds))

    def _user(self, sizes: Sequence[int], *, known: bool) -> list[float]:
        items = max(self.scale.of("offline item stage").fitted)
        return user_seconds(self.catalogs.bundle(items), sizes, self.scale.repeats, known=known)

    def _interaction(self, sizes: Sequence[int]) -> list[float]:
        """From a catalog that was exported anyway, if one is large enough."""
        made = sorted({*self.scale.of("scan").fitted, *self.scale.of("scan").checked})
        enough = [items for items in made if items >= max(sizes)]
        return interaction_seconds(self.catalogs.bundle(enough[0] if enough else max(sizes)), sizes, self.scale.repeats)
