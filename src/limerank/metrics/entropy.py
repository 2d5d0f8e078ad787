"""Logloss, NE and the calibration ratio: sums over rows, so blocks merge by adding.

NE is logloss divided by the entropy of the base rate (He et al. 2014). The paper's formula (section Accuracy) lacks the
1/n and divides by the logarithm of the mean label instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from limerank.metrics.labels import Labels, labeled, positive
from limerank.metrics.runs import Floats, Scores

EPSILON = float(np.finfo(np.float64).eps)


def row_losses(labels: Labels, probability: Scores) -> Floats:
    """Binary cross-entropy of each row in nats; probabilities are clipped to machine epsilon."""
    p = np.clip(probability.astype(np.float64), EPSILON, 1 - EPSILON)
    return -np.where(positive(labels), np.log(p), np.log1p(-p))


def base_entropy(rate: float) -> float:
    """What always predicting the base rate loses."""
    return -(rate * math.log(rate) + (1 - rate) * math.log1p(-rate))


@dataclass
class Sums:
    """What blocks of rows add up to. Sums of blocks are kept and added exactly at the end: their order is no matter."""

    rows: int = 0
    positives: int = 0
    missing: int = 0
    loss: list[float] = field(default_factory=list)
    predicted: list[float] = field(default_factory=list)

    def add(self, labels: Labels, probability: Scores) -> None:
        """One more block."""
        y, p = labeled(labels, probability)
        self.rows += len(y)
        self.positives += int(positive(y).sum())
        self.missing += len(labels) - len(y)
        self.loss.append(float(row_losses(y, p).sum()))
        self.predicted.append(float(p.sum(dtype=np.float64)))

    def merge(self, other: Sums) -> None:
        """The blocks of another."""
        self.rows += other.rows
        self.positives += other.positives
        self.missing += other.missing
        self.loss += other.loss
        self.predicted += other.predicted

    @property
    def positive_rate(self) -> float:
        """Observed; 0 without rows."""
        return self.positives / self.rows if self.rows else 0.0

    def logloss(self) -> float | None:
        """Mean binary cross-entropy in nats; None without rows."""
        return math.fsum(self.loss) / self.rows if self.rows else None

    def normalized_entropy(self) -> float | None:
        """Logloss relative to always predicting the base rate; None where that loses nothing (one class only)."""
        loss = self.logloss()
        if loss is None or self.positives in (0, self.rows):
            return None
        return loss / base_entropy(self.positive_rate)

    def calibration(self) -> float | None:
        """Predicted positives divided by observed ones; None without a positive."""
        return math.fsum(self.predicted) / self.positives if self.positives else None


def logloss(labels: Labels, probability: Scores) -> float | None:
    """Mean binary cross-entropy in nats; None without labeled rows."""
    return _sums(labels, probability).logloss()


def normalized_entropy(labels: Labels, probability: Scores) -> float | None:
    """Logloss relative to always predicting the base rate; 1 is no better than that."""
    return _sums(labels, probability).normalized_entropy()


def _sums(labels: Labels, probability: NDArray[np.floating]) -> Sums:
    sums = Sums()
    sums.add(labels, probability)
    return sums
