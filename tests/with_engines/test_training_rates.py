"""What `limerank.bench.cluster` measures of training comes from real processes."""

from __future__ import annotations

import pytest
from engines import need

from limerank.bench.cluster.training import measure_all
from limerank.progress import Progress

need("torchrec", "torchrec")


def test_one_and_two_processes_are_measured() -> None:
    """Whole tables on one and two, cut ones on two; all of them do the same steps."""
    rates = measure_all(Progress(quiet=True), users=60, epochs=1, model="ttsn")
    assert [(rate.processes, rate.embeddings) for rate in rates] == [
        (1, "replicated"),
        (2, "replicated"),
        (2, "torchrec"),
    ]
    assert len({rate.steps for rate in rates}) == 1
    assert all(rate.rows_per_second > 0 and rate.train_seconds > 0 for rate in rates)
    assert rates[0].as_dict()["model"] == "ttsn"
    assert [rate.efficiency for rate in rates] == [
        pytest.approx(rate.rows_per_second / rate.processes / rates[0].rows_per_second) for rate in rates
    ]
