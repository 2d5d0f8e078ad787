"""Exact, vectorized ranking metrics: whole columns at once or in blocks that merge, with intervals by user."""

from limerank.metrics.calibration import Bin, calibration_bins, calibration_error
from limerank.metrics.entropy import logloss, normalized_entropy
from limerank.metrics.labels import MISSING, present
from limerank.metrics.paired import Difference, paired_differences
from limerank.metrics.pairs import Weighting, auc, auc_of_counts, grouped_auc
from limerank.metrics.resampling import Interval, bootstrap_intervals
from limerank.metrics.stream import MetricStream, measure
from limerank.metrics.top import AtK, at_k
from limerank.metrics.values import Metrics

__all__ = [
    "MISSING",
    "AtK",
    "Bin",
    "Difference",
    "Interval",
    "MetricStream",
    "Metrics",
    "Weighting",
    "at_k",
    "auc",
    "auc_of_counts",
    "bootstrap_intervals",
    "calibration_bins",
    "calibration_error",
    "grouped_auc",
    "logloss",
    "measure",
    "normalized_entropy",
    "paired_differences",
    "present",
]
