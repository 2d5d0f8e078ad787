"""The three evaluation logs: fixed before any ranker was trained on them, by properties of real logs; never retuned.

docs/explanation/evaluation-logs.md says what was measured, how each number below follows, and why nobody may change
one: a log that is adjusted after a look at results is no evidence any more. tests/data/sources/test_evaluation_logs.py
holds a hash of each. If other logs are wanted, they get other names.
"""

from __future__ import annotations

from dataclasses import replace

from limerank.data.raw.log import RawLog
from limerank.data.sources.simulated import simulate
from limerank.data.sources.simulation.config import SimulatedConfig
from limerank.errors import UsageError, did_you_mean
from limerank.splits import GlobalTime

_ALIKE = SimulatedConfig(
    users=720,
    items=4000,
    sessions=112,
    slots=6,
    drift=0.0025,
    memory=0.993,
    intercept=0.35,
    events_median=65,
    events_spread=1.0,
    popularity_exponent=2.3,
    popularity_offset=600,
    bias_spread=0.9,
    quality_spread=1.3,
    repeats=0.03,
    arrivals=0.35,
)
"""What the three have in common. The strengths of match, creator and interest are the simulator's own."""

EVALUATION_LOGS = {
    "easy": _ALIKE.model_copy(update={"topics": 16, "interests": 4, "noise": 0.0, "seed": 16}),
    "medium": _ALIKE.model_copy(update={"topics": 24, "interests": 6, "noise": 0.05, "seed": 24}),
    "hard": _ALIKE.model_copy(update={"topics": 48, "interests": 12, "noise": 0.1, "seed": 48}),
}
"""They differ in how fragmented interests are, and in how many clicks nothing explains."""


def evaluation_log(name: str, times: int = 1) -> RawLog:
    """Draw one of the three, or its like with so many times the users: all else is what it was, the items too.

    The last fifth by time tests, the tenth before selects.
    """
    if name not in EVALUATION_LOGS:
        raise UsageError(f"no evaluation log '{name}'{did_you_mean(name, EVALUATION_LOGS)}")
    config = EVALUATION_LOGS[name]
    raw = simulate(config.model_copy(update={"users": config.users * times}))
    split = GlobalTime(validation_fraction=0.1, test_fraction=0.2)
    schema = raw.schema.model_copy(update={"split": split})
    called = name if times == 1 else f"{name}-{times}x"
    return replace(raw, schema=schema, origin={**raw.origin, "evaluation_log": called})
